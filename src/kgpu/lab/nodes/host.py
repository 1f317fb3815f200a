"""Hosts every simulated node that has a folder ``DIR/NAME/node.json``, in one process, and follows the folder.

One connection to the API server, one watch of pods and one of nodes, one log server for all of them. A node that fails
does not touch the others; a folder that goes away takes its Node with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.base.inotify import CONTENT, Inotify
from kgpu.kube.port import NODES, PODS, Change, KubeApi, Object, name_of
from kgpu.lab.nodes import runtime, spec, starter
from kgpu.lab.nodes.context import Addresses
from kgpu.lab.nodes.feed import Feed
from kgpu.lab.nodes.logserver import Found, LogServer, Missing
from kgpu.lab.nodes.node import Shared, SimNode
from kgpu.lab.nodes.objects import Endpoint
from kgpu.lab.nodes.podevents import Recorder
from kgpu.lab.nodes.podstate import Phase
from kgpu.lab.nodes.spec import SPEC_FILE, NodeSpec

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
REGISTRATIONS: Final = 12  # nodes that register at the same moment
STARTS: Final = 8  # containers that start at the same moment
SOCKET_ROOM: Final = 40  # bytes that names of sockets in a node's folder may take
SOCKET_LIMIT: Final = 107
SPECIAL: Final = "host"
"""The host's own folder among the nodes': keys, the port, what it probed."""
_POLICY: Final = BackoffPolicy(first=0.5, cap=15.0)


class NodeHost:
    """All nodes below ``folder``. ``address`` is where this host is reached by the API server."""

    def __init__(
        self, folder: Path, api: KubeApi, kubeconfig: Path, *, address: str, ca: bytes, mode: str = ""
    ) -> None:
        self.folder = folder.absolute()
        self._api = api
        self._kubeconfig = kubeconfig.absolute()
        self._address = address
        self._own = self.folder / SPECIAL
        self._own.mkdir(parents=True, exist_ok=True)
        self._mode = mode
        self._recorder = Recorder(api)
        self._pods = Feed(api, PODS, self._pod_changed)
        self._nodes = Feed(api, NODES, lambda *_: None, keep=_labels_only)
        self._by_node: dict[str, dict[str, Object]] = {}
        self._logs = LogServer(self._own, address, ca, self._find_log)
        self.nodes: dict[str, SimNode] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._shared: Shared | None = None

    async def run(self) -> None:
        """Until cancelled. Raises OSError when the log server can't listen."""
        with _only_one(self._own):
            await self._serve()

    async def _serve(self) -> None:
        mode = self._mode or await asyncio.to_thread(runtime.detect_mode, self._own / "probe")
        log.info("containers run with %s", mode)
        await self._logs.start(_former_port(self._own))
        write_atomic(self._own / "port", f"{self._logs.port}\n")
        write_atomic(self._own / "ready", "")
        self._shared = Shared(
            api=self._api, recorder=self._recorder, runtime=runtime.Runtime(mode, hide=[self.folder.parent]),
            addresses=Addresses(), endpoint=Endpoint(address=self._address, port=self._logs.port),
            kubeconfig=self._kubeconfig, boot=_boot_id(), labels=self._labels_of,
            registrations=asyncio.Semaphore(REGISTRATIONS), starts=asyncio.Semaphore(STARTS),
        )  # fmt: skip
        services: list[asyncio.Task[Any]] = [
            asyncio.create_task(work) for work in (self._pods.run(), self._nodes.run(), *_writers(self._recorder))
        ]
        try:
            await self._follow()
        finally:
            for task in (*services, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(*services, *self._tasks.values(), return_exceptions=True)
            await self._logs.close()

    # --- the folder ---

    async def _follow(self) -> None:
        async with Inotify() as inotify:
            while True:
                folders = {self.folder, *(self.folder / name for name in _entries(self.folder))}
                inotify.watch(folders if len(folders) < 2000 else {self.folder}, CONTENT)
                await self._sync()
                await inotify.wait(LOOK_S)

    async def _sync(self) -> None:
        """Bring the nodes in line with the folder."""
        wanted = {name: self.folder / name for name in _entries(self.folder)}
        for name in [name for name in self.nodes if name not in wanted]:
            await self._remove(name)
        for name, folder in wanted.items():
            if name not in self._tasks:
                try:
                    found = spec.load(folder / SPEC_FILE)
                    if found.name != name:
                        raise LabError(f"{folder}: its node is named {found.name}", "the folder's name", "rename one")
                except LabError as error:
                    log.warning("%s", error.one_line())
                    continue
                self._add(found, folder)
                if len(self._tasks) % 50 == 0:
                    await asyncio.sleep(0)

    def _add(self, found: NodeSpec, folder: Path) -> None:
        assert self._shared is not None
        node = SimNode(found, folder, _short_path(folder), self._shared)
        if found.config:
            write_atomic(folder / "config.yaml", found.config)
        self.nodes[found.name] = node
        self._tasks[found.name] = asyncio.create_task(self._keep(node), name=f"node {found.name}")
        for pod in self._by_node.get(found.name, {}).values():
            node.pod_changed(Change.ADDED, pod)

    async def _keep(self, node: SimNode) -> None:
        backoff = Backoff(_POLICY)
        while True:
            try:
                await node.run()
            except Exception:
                log.exception("node %s failed; it starts again", node.spec.name)
            await asyncio.sleep(backoff.next_delay())

    async def _remove(self, name: str) -> None:
        node, task = self.nodes.pop(name), self._tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        kill_containers(node.folder)
        await node.remove()
        await asyncio.to_thread(shutil.rmtree, node.folder, True)
        log.info("node %s is removed", name)

    # --- pods ---

    def _pod_changed(self, change: Change, pod: Object) -> None:
        name = str((pod.get("spec") or {}).get("nodeName") or "")
        if not name:
            return
        uid = str(pod["metadata"]["uid"])
        there = self._by_node.setdefault(name, {})
        if change is Change.DELETED:
            there.pop(uid, None)
        else:
            there[uid] = pod
        node = self.nodes.get(name)
        if node is not None:
            node.pod_changed(change, pod)

    def _labels_of(self, name: str) -> Mapping[str, str] | None:
        found = self._nodes.objects.get(("", name))
        return None if found is None else found["metadata"].get("labels") or {}

    def _find_log(self, namespace: str, pod: str, container: str, previous: bool) -> Found | Missing:
        obj = self._pods.objects.get((namespace, pod))
        node = self.nodes.get(str((obj or {}).get("spec", {}).get("nodeName") or "")) if obj else None
        if obj is None or node is None:
            return Missing(404, f'pod "{pod}" does not exist')
        uid = str(obj["metadata"]["uid"])
        worker = node.workers.get(uid)
        found = next((one for one in worker.state.containers if one.name == container), None) if worker else None
        if worker is not None and found is not None:
            restarts, started, waiting = found.restarts, found.was_started, found.reason
            running = found.phase is Phase.RUNNING
            if found.phase is Phase.WAITING and started:
                started = True
        else:
            row = _status_row(obj, container)
            if row is None:
                return Missing(400, f"container {container} is not valid for pod {pod}")
            restarts, running = int(row.get("restartCount") or 0), False
            started = bool(row.get("containerID"))
            waiting = str(((row.get("state") or {}).get("waiting") or {}).get("reason") or "")
        if previous:
            if restarts == 0:
                return Missing(400, f'previous terminated container "{container}" in pod "{pod}" not found')
            restarts, running = restarts - 1, False
        elif not started:
            return Missing(400, f'container "{container}" in pod "{pod}" is waiting to start: {waiting}')
        path = starter.log_path(node.context, obj, container, restarts)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        if not running or worker is None or found is None:
            return Found(path, lambda: True)
        run = found.id
        return Found(path, lambda: found.id != run or found.phase is not Phase.RUNNING)


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Raises LabError when another host process has these nodes."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(
                f"another process hosts the nodes in {folder.parent}", "one at a time", "end the other one"
            ) from None
        yield


def _status_row(pod: Object, container: str) -> Object | None:
    status = pod.get("status") or {}
    for key in ("containerStatuses", "initContainerStatuses"):
        for row in status.get(key) or ():
            if row.get("name") == container:
                found: Object = row
                return found
    return None


def _labels_only(node: Object) -> Object:
    """Of a Node only what admission looks at is kept: there may be thousands."""
    metadata = node["metadata"]
    kept = {key: metadata.get(key) for key in ("name", "uid", "resourceVersion", "labels")}
    return {"metadata": kept}


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(
            entry.name for entry in os.scandir(folder) if entry.is_dir() and os.path.exists(f"{entry.path}/{SPEC_FILE}")
        )
    except FileNotFoundError:
        raise LabError(f"{folder} is gone", "the folder of the nodes", "bring the lab up again") from None


def _writers(recorder: Recorder) -> list[Coroutine[Any, Any, None]]:
    return [recorder.run() for _ in range(2)]


def _former_port(folder: Path) -> int:
    """The port of before: Nodes tell it, and need not be changed when it stays."""
    with contextlib.suppress(OSError, ValueError):
        port = int((folder / "port").read_text())
        import socket

        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("", port))
                return port
    return 0


def _short_path(folder: Path) -> Path:
    """A path to a node's folder that leaves room for the names of sockets."""
    if len(os.fsencode(folder)) + SOCKET_ROOM <= SOCKET_LIMIT:
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]
    link = Path(tempfile.gettempdir()) / f"kgpu-{os.getuid()}-{digest}"
    with contextlib.suppress(FileNotFoundError):
        if link.is_symlink() and link.lstat().st_uid == os.getuid():
            link.unlink()
    link.symlink_to(folder)
    return link


def kill_containers(folder: Path) -> None:
    """End every container process of a node's folder, whoever started it."""
    import signal

    for state in folder.glob("c/*/state.json"):
        for pid in runtime.processes_of(state.parent):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "00000000-0000-0000-0000-000000000000"


def ready_file(folder: Path) -> Path:
    """Written once the host listens."""
    return folder / SPECIAL / "port"


__all__ = ["NodeHost", "kill_containers", "name_of", "ready_file"]
