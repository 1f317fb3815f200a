"""A simulated node's plugin registration: finds sockets in its ``plugins_registry`` folder and registers them.

As the kubelet's plugin watcher (v1.35): GetInfo within a second, the handler of the plugin's type checks and takes it,
NotifyRegistrationStatus reports the outcome; a failure is tried again after growing pauses, and a socket that goes away
takes its registration with it. Types: ``DevicePlugin`` (the device manager) and ``DRAPlugin`` (``claims``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.errors import KubeletError
from kgpu.base.inotify import ENTRIES, folder_changes
from kgpu.kubelet import model
from kgpu.kubelet.fake import FakeKubelet
from kgpu.kubelet.methods import GET_INFO, GET_OPTIONS, NOTIFY_STATUS
from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp
from kgpu.kubelet.pb import pluginregistration_v1_pb2 as registry
from kgpu.kubelet.rpc import RpcClient
from kgpu.lab.nodes.podstate import is_extended_name

log = logging.getLogger(__name__)

DEVICE_PLUGIN: Final = "DevicePlugin"
DRA_PLUGIN: Final = "DRAPlugin"
CALL_S: Final = 10.0  # the kubelet's own second is too short where a whole cluster shares a busy machine
LOOK_S: Final = 1.0
_POLICY: Final = BackoffPolicy(first=0.5, cap=122.0)


class PluginError(KubeletError):
    """A plugin that is not taken; ``what`` is the message sent to it."""

    def __init__(self, why: str) -> None:
        super().__init__(why, "a plugin as the kubelet takes them", "correct the plugin")


class PluginHandler(Protocol):
    """Takes the plugins of one type."""

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Use it from now on. Raises PluginError when it is not valid, KubeletError when it does not answer."""
        ...

    async def deregister(self, name: str, endpoint: str) -> None:
        """Its socket has gone."""
        ...


class PluginRegistry:
    """Follows ``folder`` while ``run`` runs."""

    def __init__(self, folder: Path, handlers: Mapping[str, PluginHandler]) -> None:
        self.folder = folder
        self._handlers = handlers
        self._tasks: dict[Path, tuple[tuple[int, int], asyncio.Task[None]]] = {}
        self.registered: dict[Path, tuple[str, str, str]] = {}
        """Socket -> type, name and endpoint of what is behind it."""

    async def run(self) -> None:
        """Until cancelled."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            folder = folder_changes(lambda: {self.folder}, seconds=LOOK_S, mask=ENTRIES)
            async with contextlib.aclosing(folder) as changes:
                async for _ in changes:
                    await self._look()
        finally:
            tasks = [task for _, task in self._tasks.values()]
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        current = sockets(self.folder)
        for path, (identity, task) in list(self._tasks.items()):
            if current.get(path) != identity:
                del self._tasks[path]
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await self._forget(path)
        for path, identity in current.items():
            if path not in self._tasks:
                self._tasks[path] = (identity, asyncio.create_task(self._keep(path)))

    async def _forget(self, path: Path) -> None:
        registration = self.registered.pop(path, None)
        if registration is not None:
            kind, name, endpoint = registration
            await self._handlers[kind].deregister(name, endpoint)

    async def _keep(self, path: Path) -> None:
        """Until it is registered."""
        backoff = Backoff(_POLICY)
        while True:
            try:
                await self._register(path)
            except KubeletError as error:
                log.info("plugin at %s: %s", path, error.one_line())
                await asyncio.sleep(backoff.next_delay())
            else:
                return

    async def _register(self, path: Path) -> None:
        async with RpcClient(path) as client:
            info = await client.call(GET_INFO, registry.InfoRequest(), timeout=CALL_S)
            endpoint = info.endpoint or str(path)
            handler = self._handlers.get(info.type)
            try:
                if handler is None:
                    text = f"no handler registered for plugin type: {info.type} at socket {path}"
                    raise PluginError(f"RegisterPlugin error -- {text}")
                # Known before the handler is asked, so that a socket that goes meanwhile is let go of.
                self.registered[path] = (info.type, info.name, endpoint)
                await handler.register(info.name, endpoint, tuple(info.supported_versions))
            except KubeletError as error:
                self.registered.pop(path, None)
                status = registry.RegistrationStatus(plugin_registered=False, error=error.what)
                await client.call(NOTIFY_STATUS, status, timeout=CALL_S)
                raise
            await client.call(NOTIFY_STATUS, registry.RegistrationStatus(plugin_registered=True), timeout=CALL_S)


class DevicePlugins:
    """Takes device plugins that announce themselves in the registry, for the node's device manager."""

    def __init__(self, devices: FakeKubelet) -> None:
        self._devices = devices

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        if model.API_VERSION not in versions:
            shown = (
                f"manager version, {model.API_VERSION}, is not among plugin supported versions [{' '.join(versions)}]"
            )
            raise PluginError(f"RegisterPlugin error -- plugin validation failed with err: {shown}")
        if not is_extended_name(name):
            shown = f'invalid name of device plugin socket: the ResourceName "{name}" is invalid'
            raise PluginError(f"RegisterPlugin error -- plugin validation failed with err: {shown}")
        async with RpcClient(Path(endpoint)) as client:
            options = await client.call(GET_OPTIONS, dp.Empty(), timeout=CALL_S)
        await self._devices.connect(
            model.Registration(
                resource=name, endpoint=endpoint, preferred_allocation=options.get_preferred_allocation_available,
                pre_start=options.pre_start_required,
            )
        )  # fmt: skip

    async def deregister(self, name: str, endpoint: str) -> None:
        await self._devices.disconnect(name, endpoint)


def sockets(folder: Path) -> dict[Path, tuple[int, int]]:
    """The sockets below a folder with what tells one incarnation from the next; names that begin with a dot are not."""
    identities: dict[Path, tuple[int, int]] = {}
    waiting = [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISSOCK(status.st_mode):
                identities[Path(entry.path)] = (status.st_ino, status.st_ctime_ns)
            elif stat.S_ISDIR(status.st_mode):
                waiting.append(Path(entry.path))
    return identities
