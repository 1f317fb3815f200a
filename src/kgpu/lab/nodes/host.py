"""Hosts every simulated node that has a folder ``DIR/NAME/node.json``, in one process, and follows the folder.

One connection to the API server, one watch of pods and one of nodes, one log server for all of them. A node that fails
does not touch the others; a folder that goes away takes its Node with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import shutil
import socket
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.boot import BOOT_ID, boot_id
from kgpu.base.errors import LabError, UserError
from kgpu.base.files import write_atomic
from kgpu.base.inotify import CONTENT, Inotify
from kgpu.formats.names import NODE_HOST_LABEL
from kgpu.kube.port import NODES, PODS, Change, KubeApi, Object
from kgpu.lab.common import VOLUMES_FOLDER
from kgpu.lab.nodes import agents, container_processes, driver_programs, host_folder, reboot, runtime, starter
from kgpu.lab.nodes.addresses import PodAddresses, loopback
from kgpu.lab.nodes.feed import ObjectFeed
from kgpu.lab.nodes.folder import SPECIAL, FolderContents, NodeFolder, is_off
from kgpu.lab.nodes.logserver import ContainerLog, LogRefusal, LogServer
from kgpu.lab.nodes.node import HostServices, SimNode
from kgpu.lab.nodes.objects import Endpoint
from kgpu.lab.nodes.podevents import KubeletRecorder
from kgpu.lab.nodes.podstate import Phase
from kgpu.lab.nodes.reachable import PodPlace
from kgpu.lab.nodes.runtime import Running
from kgpu.lab.nodes.spec import CPU_PROFILE, NodeSpec

log = logging.getLogger(__name__)

LOOK_S: Final = 5.0  # how often the folder is looked at without a change
SETTLE_S: Final = 0.5  # between two looks: changes come in hundreds
MANY: Final = 4000  # folders whose changes are heard of at once; those of others are found by looking
UNKNOWN_BOOT: Final = "00000000-0000-0000-0000-000000000000"
REGISTRATIONS: Final = 12  # nodes that come up or go away at the same moment
STARTS: Final = 8  # containers that start at the same moment
_POLICY: Final = BackoffPolicy(first=0.5, cap=15.0)


class NodeHost:
    """All nodes below ``folder``. ``address`` is where this host is reached by the API server."""

    def __init__(
        self, folder: Path, api: KubeApi, kubeconfig: Path, *, address: str, ca: bytes, mode: str = "",
        service_env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder.absolute()
        self._api = api
        self._kubeconfig = kubeconfig.absolute()
        self._address = address
        self._own = self.folder / SPECIAL
        host_folder.make_private(self.folder)
        self._own.mkdir(exist_ok=True)
        self._short = host_folder.ShortPaths(self._own)
        self._refused: dict[str, str] = {}
        self._mode = mode
        self._mark = hashlib.sha256(bytes(self.folder)).hexdigest()[:16]
        self._service_env = dict(service_env or {})
        self._recorder = KubeletRecorder(api)
        self._pods = ObjectFeed(api, PODS, self._pod_changed)
        self._nodes = ObjectFeed(api, NODES, self._node_changed, keep=_labels_only)
        self._by_node: dict[str, dict[str, Object]] = {}
        self._logs = LogServer(
            self._own, address, ca, find=self._find_log, find_running=self._find_running,
            find_place=self._find_place, usage=self._usage,
        )  # fmt: skip
        self.nodes: dict[str, SimNode] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._rebooting: set[str] = set()
        self._folder = NodeFolder(self.folder)
        self._look = FolderContents()

    async def run(self) -> None:
        """Until cancelled. Raises OSError when the log server can't listen."""
        with host_folder.only_one(self._own):
            try:
                await self._serve()
            finally:
                self._short.close()

    async def _serve(self) -> None:
        mode = self._mode or await asyncio.to_thread(runtime.detect_mode, self._own / "probe")
        networks = mode == runtime.NAMESPACES and await asyncio.to_thread(
            runtime.detect_networks, self._own / "network-probe"
        )
        log.info("containers run with %s%s", mode, " and networks" if networks else "")
        await self._logs.start(_former_port(self._own))
        write_atomic(self._own / "port", f"{self._logs.port}\n")
        write_atomic(self._own / "ready", "")
        self._services = HostServices(
            api=self._api, recorder=self._recorder,
            runtime=runtime.Runtime(mode, hide=[self.folder.parent], networks=networks),
            addresses=PodAddresses(), endpoint=Endpoint(address=self._address, port=self._logs.port),
            kubeconfig=self._kubeconfig, boot=boot_id(BOOT_ID) or UNKNOWN_BOOT, labels=self._labels_of,
            registrations=asyncio.Semaphore(REGISTRATIONS), starts=asyncio.Semaphore(STARTS),
            pods_known=self._pods.synced, service_env=self._service_env, mark={NODE_HOST_LABEL: self._mark},
            volumes=self.folder.parent / VOLUMES_FOLDER,
        )  # fmt: skip
        services: list[asyncio.Task[Any]] = [
            asyncio.create_task(work)
            for work in (
                self._pods.run(),
                self._nodes.run(),
                *_writers(self._recorder),
                host_folder.keep_log_short(self._own / host_folder.LOG),
                self._remove_ghosts(),
            )
        ]
        try:
            await self._follow()
        finally:
            everything = (*services, *self._tasks.values(), *self._removals.values())
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            await self._logs.close()

    # --- the folder ---

    async def _follow(self) -> None:
        # A node that is known already goes on with its lease at once, so what the API server has comes first.
        await self._nodes.synced.wait()
        watched: tuple[str, ...] | None = None
        async with Inotify() as inotify:
            while True:
                # Watch first, look second: what happens in between wakes the next wait.
                if self._look.folders != watched:
                    watched = self._look.folders
                    inotify.watch({self.folder, *(self.folder / name for name in watched[:MANY])}, CONTENT)
                self._sync()
                await asyncio.sleep(SETTLE_S)
                if self._look.folders == watched:
                    await inotify.wait(LOOK_S if inotify.available else SETTLE_S)

    def _sync(self) -> None:
        """Bring the nodes in line with the folder."""
        look = self._look = self._folder.look()
        for problem in look.news:
            log.warning("%s", problem.one_line())
        gone = self.nodes.keys() - look.specs.keys() - look.problems.keys()
        for name in (gone | look.leaving) - self._removals.keys():
            self._removals[name] = asyncio.create_task(self._remove(name), name=f"remove {name}")
        for name in sorted(look.specs, key=self._rank):
            node = self.nodes.get(name)
            off = name in look.rebooting and name not in self._rebooting
            if name in self._removals or (node is not None and node.spec == look.specs[name] and not off):
                continue
            if off:  # a machine without power waits for nobody: its agent is not asked to end
                self._rebooting.add(name)
                agents.end_former(self.folder / name)
            elif node is not None:
                log.info("node %s is another one now; it starts again", name)
            try:
                self._add(look.specs[name])
            except (LabError, OSError) as error:  # tried again with every look, told once
                message = error.one_line() if isinstance(error, LabError) else str(error)
                if self._refused.get(name) != message:
                    log.warning("node %s can't be hosted: %s", name, message)
                self._refused[name] = message
            else:
                self._refused.pop(name, None)

    async def _remove_ghosts(self) -> None:
        """Nodes of this host that are known to the API server alone, as when its data is older than the folder."""
        await asyncio.gather(self._pods.synced.wait(), self._nodes.synced.wait())
        folders = self._folder.look().folders
        for _, name in list(self._nodes.objects):
            ours = (self._labels_of(name) or {}).get(NODE_HOST_LABEL) == self._mark
            if ours and name not in folders and name not in self._removals:
                log.info("node %s has no folder any more", name)
                self._removals[name] = asyncio.create_task(self._remove(name), name=f"remove {name}")

    def _rank(self, name: str) -> tuple[bool, int, str]:
        """Nodes that are known already come first, then in the order of their numbers."""
        return self._labels_of(name) is None, len(name), name

    def _add(self, spec: NodeSpec) -> None:
        """Take a node up; a former one of its name ends first."""
        folder = self.folder / spec.name
        sockets = self._short.to(folder)
        former = self._tasks.get(spec.name)
        if former is not None:
            former.cancel()
        node = SimNode(spec, folder, sockets, self._services)
        self.nodes[spec.name] = node
        self._tasks[spec.name] = asyncio.create_task(self._keep(node, former), name=f"node {spec.name}")
        for pod in self._by_node.get(spec.name, {}).values():
            node.pod_changed(Change.ADDED, pod)

    async def _keep(self, node: SimNode, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            await asyncio.wait([former])
        backoff = Backoff(_POLICY)
        while True:
            try:
                if reboot.is_asked(node.folder):
                    await reboot.perform(node.spec, node.folder, node.context.machine, node.claims)
                self._rebooting.discard(node.spec.name)
                await node.run()
            except UserError as error:
                log.warning("node %s: %s", node.spec.name, error.one_line())
            except Exception:
                log.exception("node %s failed; it starts again", node.spec.name)
            await asyncio.sleep(backoff.next_delay())

    async def _remove(self, name: str) -> None:
        """Take a node away that has no ``node.json`` any more; the others do not wait for it."""
        node, task, folder = self.nodes.pop(name, None), self._tasks.pop(name, None), self.folder / name
        try:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            self._rebooting.discard(name)
            if node is None:  # an earlier host's
                node = SimNode(NodeSpec(name=name, profile=CPU_PROFILE), folder, folder, self._services)
                node.resting |= self._by_node.get(name, {})
            await asyncio.to_thread(container_processes.end_all, folder)
            await asyncio.to_thread(driver_programs.end, folder)
            async with self._services.registrations:
                await node.remove()
            await asyncio.to_thread(shutil.rmtree, folder, True)
            log.info("node %s is removed", name)
        except LabError as error:
            log.warning("%s is not removed: %s", folder, error.one_line())
        finally:
            del self._removals[name]

    # --- pods ---

    def _pod_changed(self, change: Change, pod: Object) -> None:
        name = str((pod.get("spec") or {}).get("nodeName") or "")
        if not name:
            return
        uid = str(pod["metadata"]["uid"])
        pods = self._by_node.setdefault(name, {})
        if change is Change.DELETED:
            pods.pop(uid, None)
        else:
            pods[uid] = pod
        node = self.nodes.get(name)
        if node is not None:
            node.pod_changed(change, pod)

    def _node_changed(self, change: Change, obj: Object) -> None:
        node = self.nodes.get(obj["metadata"]["name"])
        if node is not None and change is not Change.DELETED and _is_doubted(obj):
            node.doubted.set()

    def _labels_of(self, name: str) -> Mapping[str, str] | None:
        node = self._nodes.objects.get(("", name))
        return None if node is None else node["metadata"].get("labels") or {}

    def _hosted(self, namespace: str, pod: str, absent: str) -> tuple[Object, SimNode] | LogRefusal:
        """The pod, and the node of this host that has it, if its machine is on."""
        obj = self._pods.objects.get((namespace, pod))
        node = self.nodes.get(str((obj or {}).get("spec", {}).get("nodeName") or "")) if obj else None
        if obj is None or node is None:
            return LogRefusal(404, absent)
        if is_off(node.folder):
            return LogRefusal(500, f"the kubelet of {node.spec.name} does not answer: its machine is switched off")
        return obj, node

    def _find_running(self, namespace: str, pod: str, container: str) -> Running | LogRefusal:
        hosted = self._hosted(namespace, pod, "pod does not exist")
        if isinstance(hosted, LogRefusal):
            return hosted
        obj, node = hosted
        worker = node.workers.get(str(obj["metadata"]["uid"]))
        running = worker.running(container) if worker is not None else None
        return running or LogRefusal(500, f'container not found ("{container}")')

    async def _usage(self) -> bytes:
        from kgpu.lab.nodes import usage

        return await asyncio.to_thread(usage.document, [node.processes() for node in self.nodes.values()])

    def _find_place(self, namespace: str, pod: str) -> PodPlace | LogRefusal:
        hosted = self._hosted(namespace, pod, "pod does not exist")
        if isinstance(hosted, LogRefusal):
            return hosted
        obj, node = hosted
        address = loopback(str((obj.get("status") or {}).get("podIP") or ""), self.folder)
        return PodPlace(uid=str(obj["metadata"]["uid"]), folder=node.folder, address=address)

    def _find_log(self, namespace: str, pod: str, container: str, previous: bool) -> ContainerLog | LogRefusal:
        hosted = self._hosted(namespace, pod, f'pod "{pod}" does not exist')
        if isinstance(hosted, LogRefusal):
            return hosted
        obj, node = hosted
        uid = str(obj["metadata"]["uid"])
        worker = node.workers.get(uid)
        pod_container = (
            next((candidate for candidate in worker.state.containers if candidate.name == container), None)
            if worker
            else None
        )
        if worker is not None and pod_container is not None:
            restarts, started, waiting = pod_container.restarts, pod_container.was_started, pod_container.reason
            running = pod_container.phase is Phase.RUNNING
            if pod_container.phase is Phase.WAITING and started:
                started = True
        else:
            row = _status_row(obj, container)
            if row is None:
                return LogRefusal(400, f"container {container} is not valid for pod {pod}")
            restarts, running = int(row.get("restartCount") or 0), False
            started = bool(row.get("containerID"))
            waiting = str(((row.get("state") or {}).get("waiting") or {}).get("reason") or "")
        if previous:
            if restarts == 0:
                return LogRefusal(400, f'previous terminated container "{container}" in pod "{pod}" not found')
            restarts, running = restarts - 1, False
        elif not started:
            return LogRefusal(400, f'container "{container}" in pod "{pod}" is waiting to start: {waiting}')
        path = starter.log_path(node.context, obj, container, restarts)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            if node.spec.light:  # made when somebody asks: thousands of pods that nobody looks at need no files
                runtime.append_line(path, starter.LIGHT_LINE)
        if not running or worker is None or pod_container is None:
            return ContainerLog(path, lambda: True)
        run = pod_container.id
        return ContainerLog(path, lambda: pod_container.id != run or pod_container.phase is not Phase.RUNNING)


def _status_row(pod: Object, container: str) -> Object | None:
    status = pod.get("status") or {}
    for key in ("containerStatuses", "initContainerStatuses"):
        for row in status.get(key) or ():
            if row.get("name") == container:
                container_status: Object = row
                return container_status
    return None


def _is_doubted(node: Object) -> bool:
    """Whether nothing was heard of the node for so long that its conditions were made Unknown."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any((one.get("type"), one.get("status")) == ("Ready", "Unknown") for one in conditions)


def _labels_only(node: Object) -> Object:
    """Keep only what admission looks at of a Node: there may be thousands."""
    metadata = node["metadata"]
    kept = {key: metadata.get(key) for key in ("name", "uid", "resourceVersion", "labels")}
    return {"metadata": kept}


def _writers(recorder: KubeletRecorder) -> list[Coroutine[Any, Any, None]]:
    return [recorder.run() for _ in range(2)]


def _former_port(folder: Path) -> int:
    """The previous host's port: Nodes contain it, and need no change when it is used again."""
    with contextlib.suppress(OSError, ValueError):
        port = int((folder / "port").read_text())
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("", port))
                return port
    return 0
