"""A container runtime's side of NRI for tests, speaking the real protocol: takes plugins and asks them.

Does what containerd does: waits for the registration, configures, synchronizes (in pieces when told), and asks one
plugin after the other in the order of their index.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import KubeletError
from kgpu.kubelet.nri import convert, wire
from kgpu.kubelet.nri.model import ContainerAdjustment, NriContainer, NriPod, RuntimeInfo
from kgpu.kubelet.nri.session import CONFIGURE, CREATE, REGISTER, SYNCHRONIZE, Session
from kgpu.kubelet.pb import nri_v1alpha1_pb2 as nri

CALL_SECONDS: Final = 60.0  # a plugin is a process of its own, which a busy machine lets wait
DEFAULT_RUNTIME: Final = RuntimeInfo(name="containerd", version="v2.1.4", request_seconds=2.0)


class _PluginConnection:
    """One plugin."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.registered: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        self.name = self.index = ""


class FakeNriRuntime:
    """Listens at ``socket`` between ``start`` and ``stop``."""

    def __init__(self, socket: Path, *, info: RuntimeInfo = DEFAULT_RUNTIME, pieces: int = 1) -> None:
        self.socket = socket
        self.info = info
        self.pieces = pieces
        """In how many messages existing pods are told."""
        self.refusals: list[KubeletError] = []
        """How plugins' registrations failed."""
        self.connections = 0
        """How many plugins have connected so far."""
        self._plugins: list[_PluginConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; a socket file from before is replaced."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, str(self.socket))

    async def stop(self) -> None:
        """Hang up on everybody, as a runtime that ends; the socket file goes."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.socket.unlink(missing_ok=True)
        await self.hang_up()

    async def hang_up(self) -> None:
        """End every connection but go on listening."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def plugins(self) -> tuple[tuple[str, str], ...]:
        """(index, name) of the plugins that are asked, in their order."""
        return tuple((plugin.index, plugin.name) for plugin in self._plugins)

    async def has_plugins(self, count: int = 1, *, seconds: float = 10.0) -> None:
        """Wait until so many plugins are asked."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: len(self._plugins) == count)

    async def create(self, pod: NriPod, container: NriContainer) -> tuple[ContainerAdjustment | None, ...]:
        """What each plugin wants changed. Raises CallRefusedError for a container that one refuses."""
        request = nri.CreateContainerRequest(
            pod=convert.pod_message(pod), container=convert.container_message(container)
        )
        return tuple(
            [
                convert.adjustment_of(await plugin.session.call(CREATE, request, timeout=CALL_SECONDS))
                for plugin in list(self._plugins)
            ]
        )

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        session = Session(
            reader, writer, serves=wire.RUNTIME_CONNECTION, calls=wire.PLUGIN_CONNECTION,
            answers={REGISTER: lambda request: self._register(plugin, request)},
        )  # fmt: skip
        plugin = _PluginConnection(session)
        running = asyncio.create_task(session.run())
        try:
            await self._admit(plugin)
            await running
        except KubeletError as problem:
            self.refusals.append(problem)
        except TimeoutError:
            self.refusals.append(KubeletError("no registration", "RegisterPlugin", "register"))
        except asyncio.CancelledError:
            pass  # hung up on; the server's own task must end well
        finally:
            running.cancel()
            await session.close()
            with contextlib.suppress(asyncio.CancelledError, KubeletError):
                await running
            self._tasks.discard(task)
            if plugin in self._plugins:
                self._plugins.remove(plugin)
                async with self._changed:
                    self._changed.notify_all()

    async def _register(self, plugin: _PluginConnection, request: Any) -> Any:
        if not plugin.registered.done():
            plugin.registered.set_result((request.plugin_idx, request.plugin_name))
        return nri.Empty()

    async def _admit(self, plugin: _PluginConnection) -> None:
        async with asyncio.timeout(CALL_SECONDS):
            plugin.index, plugin.name = await plugin.registered
        call = plugin.session.call
        reply = await call(CONFIGURE, convert.configure_message(self.info), timeout=CALL_SECONDS)
        if reply.events != convert.EVENTS:
            raise KubeletError(f"events {reply.events:#x}", "only the creation of containers", "subscribe it alone")
        for left in reversed(range(self.pieces)):
            answer = await call(SYNCHRONIZE, nri.SynchronizeRequest(more=left > 0), timeout=CALL_SECONDS)
            if answer.more != (left > 0):
                raise KubeletError("the plugin takes no pods in pieces", "the same word on more", "answer it")
        self._plugins.append(plugin)
        self._plugins.sort(key=lambda admitted: admitted.index)
        async with self._changed:
            self._changed.notify_all()
