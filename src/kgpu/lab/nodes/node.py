"""One simulated node: registers, keeps its lease and status, takes pods, and hosts the sockets of its agent.

What it tells the API server is little: one create with everything in it, a lease every ten seconds, and a small patch
when the devices of its plugins change, within a second of the change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.errors import KubeError, UserError
from kgpu.kube.port import LEASES, NODES, PODS, Change, KubeApi, KubeRefusedError, Object, Patch
from kgpu.kubelet.fake import REASON, AdmissionError, FakeKubelet
from kgpu.lab.nodes import admit, agents, boots, leftovers, machine, objects, plan, podstate, podstatus
from kgpu.lab.nodes.addresses import PodAddresses
from kgpu.lab.nodes.claims import ClaimManager, DraDrivers, unprepare
from kgpu.lab.nodes.context import NodeContext
from kgpu.lab.nodes.light_agent import LightAgent
from kgpu.lab.nodes.objects import Endpoint
from kgpu.lab.nodes.plugins import DEVICE_PLUGIN, DRA_PLUGIN, DevicePlugins, PluginRegistry
from kgpu.lab.nodes.podevents import KubeletEvent, KubeletRecorder
from kgpu.lab.nodes.podresources import FOLDER as POD_RESOURCES
from kgpu.lab.nodes.podresources import PodResourcesServer
from kgpu.lab.nodes.runtime import Runtime
from kgpu.lab.nodes.spec import CONTAINER_DRIVER, NodeSpec
from kgpu.lab.nodes.usage import NodeProcesses
from kgpu.lab.nodes.worker import PodWorker

log = logging.getLogger(__name__)

_POLICY: Final = BackoffPolicy(first=0.3, cap=10.0)
DEVICES_S: Final = 20.0  # a light node waits so long for its GPUs before it registers
SETTLE_S: Final = 0.2  # changes of devices that come together are told together
PLUGINS_S: Final = 20.0  # after a start, pods wait so long for the plugins that there were
TERMINAL: Final = {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostServices:
    """What all nodes of a host share. ``labels`` gives a Node's labels as the API server has them."""

    api: KubeApi
    recorder: KubeletRecorder
    runtime: Runtime
    addresses: PodAddresses
    endpoint: Endpoint
    kubeconfig: Path
    boot: str
    labels: Callable[[str], Mapping[str, str] | None]
    registrations: asyncio.Semaphore
    starts: asyncio.Semaphore
    pods_known: asyncio.Event  # set once every pod of the API server was told
    service_env: Mapping[str, str]
    mark: Mapping[str, str]  # labels by which the Nodes of this host are known again
    volumes: Path  # the folder of the lab's persistent volumes


class SimNode:
    """One node in ``folder``; ``sockets`` is where its sockets are (a short path to the same place)."""

    def __init__(self, spec: NodeSpec, folder: Path, sockets: Path, shared: HostServices) -> None:
        self.spec = spec
        self.folder = folder
        self._sockets = sockets
        self._shared = shared
        self.devices = FakeKubelet(sockets / machine.PLUGINS)
        self.drivers = DraDrivers()
        self.claims = ClaimManager(folder, shared.api, self.drivers)
        self.pod_resources = PodResourcesServer(
            sockets / POD_RESOURCES, self.devices, self.active_pods, self.claims.shown
        )
        self.plugins = PluginRegistry(
            sockets / machine.REGISTRY, {DEVICE_PLUGIN: DevicePlugins(self.devices), DRA_PLUGIN: self.drivers}
        )
        self.drivers.health.changed = self._health_changed
        self.workers: dict[str, PodWorker] = {}
        self.resting: dict[str, Object] = {}  # pods that are over and of which nothing runs here
        self.registered = asyncio.Event()
        self.doubted = asyncio.Event()
        """The API server has the Node as not heard of."""
        self.boot = ""
        """The id of the machine's boot; "" before its first reboot."""
        self._since = objects.stamp(time.time())
        self._uid = ""
        self._rebooted = False  # the API server knew of another boot
        self._told: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._changed = asyncio.Event()
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._known: dict[str, Object] = {}
        self._unrecorded_since = 0.0
        self._begun = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.context = NodeContext(
            name=spec.name, folder=folder, api=shared.api, recorder=shared.recorder, runtime=shared.runtime,
            devices=self.devices, addresses=shared.addresses, host_ip=shared.endpoint.address, claims=self.claims,
            allocatable=self.allocatable, specs=(folder / "cdi-static", folder / "cdi"), light=spec.light,
            machine=machine.of_node(
                folder, sockets, gpus=spec.has_gpus, container_driver=spec.driver == CONTAINER_DRIVER
            ), service_env=shared.service_env,
            scale=spec.time_scale, slots=shared.starts, boot=lambda: self.boot, shared=shared.volumes,
        )  # fmt: skip

    # --- life ---

    async def run(self) -> None:
        """Until cancelled; containers and devices outlive it for the next process to find."""
        self.boot = boots.read(self.folder)
        if self._changed.set not in self.devices.listeners:
            self.devices.listeners.append(self._changed.set)
        try:
            # What the API server knows already must not look dead while this node waits for its turn.
            lease = self._spawn(self._keep_lease()) if self._shared.labels(self.spec.name) is not None else None
            await self._come_up()
            self._spawn(self._publish())
            self._spawn(self._admissions())
            self._spawn(self._sweep())
            await (lease or self._spawn(self._keep_lease()))
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.devices.stop()
            await self.pod_resources.stop()
            await self.drivers.health.stop()

    async def _come_up(self) -> None:
        """Sockets, agent, Node and lease, a few nodes at a time; one that has to wait does not keep the others."""
        backoff = Backoff(_POLICY)
        async with self._shared.registrations:
            await self.devices.start()
            self._begun = time.monotonic()
            if not self.spec.light:
                await self.pod_resources.start()
                self._spawn(self._keep(self.plugins.run))
            if not self.spec.agent:
                await agents.create_files(self.spec, self.context.machine)
            if self.devices.problem:
                self._distrust()
            gpu_labels = await self._start_agent()
            problem = await self._register(gpu_labels)
        if problem is not None:
            log.warning("node %s can't be registered yet: %s", self.spec.name, problem.one_line())
        while problem is not None:
            await asyncio.sleep(backoff.next_delay())
            async with self._shared.registrations:
                problem = await self._register(gpu_labels)
        self.registered.set()
        self._note("Normal", "Starting", "Starting kubelet.")
        if self._rebooted:
            text = f"Node {self.spec.name} has been rebooted, boot id: {self.boot or self._shared.boot}"
            self._note("Warning", "Rebooted", text, light=True)
            self._rebooted = False
        self._note("Normal", "NodeReady", f"Node {self.spec.name} status is now: NodeReady")

    async def _start_agent(self) -> Mapping[str, str]:
        """The node's agent, if it has one; the labels that are known at once."""
        spec = self.spec
        if not spec.has_gpus or not spec.agent:
            return {}
        if not spec.light:
            self._spawn(self._keep(self._full_agent))
            return {}
        try:
            agent = LightAgent(spec, self.devices.socket, self.folder / "agent")
            labels = agent.labels()
        except UserError as error:
            log.warning("node %s has no agent: %s", spec.name, error.one_line())
            return {}
        self._spawn(self._keep(agent.run))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEVICES_S):
                while not any(self.devices.capacity().values()):
                    self._changed.clear()
                    await self._changed.wait()
        return labels

    async def _full_agent(self) -> None:
        agents.end_former(self.folder)
        agents.prepare(self.spec)
        await asyncio.to_thread(agents.make_hardware, self.spec, self.folder / "hw")
        await self.registered.wait()  # its labels need a Node
        await agents.keep_running(
            self.spec, self.context.machine, self.folder, self.devices.socket, self._shared.kubeconfig
        )

    async def _keep(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it for ever; a failure is logged, and it starts again."""
        backoff = Backoff(_POLICY)
        while True:
            try:
                await work()
            except Exception as error:
                log.warning("node %s: %s", self.spec.name, agents.explain(error))
            await asyncio.sleep(backoff.next_delay())

    async def remove(self) -> None:
        """After ``run`` has ended: nothing of the node stays, here or in the API."""
        for worker in list(self.workers.values()):
            worker.vanished()
        api, name = self._shared.api, self.spec.name
        with contextlib.suppress(KubeError):
            for pod in [worker.state.pod for worker in self.workers.values()] + list(self.resting.values()):
                metadata = pod["metadata"]
                await api.delete(
                    PODS, metadata["name"], namespace=metadata["namespace"], grace=0, uid=metadata["uid"]
                )  # fmt: skip
        with contextlib.suppress(KubeError):
            await api.delete(LEASES, name, namespace=objects.LEASE_NAMESPACE)
        await self._until_done(lambda: api.delete(NODES, name))

    # --- the Node ---

    def allocatable(self) -> dict[str, str]:
        """The allocatable resources in the Node's status."""
        return objects.resources(objects.own_capacity(self.spec), self.devices.allocatable())

    def _status(self) -> Object:
        self._told = (dict(self.devices.capacity()), dict(self.devices.allocatable()))
        return objects.status(
            self.spec, self._shared.endpoint, boot=self.boot or self._shared.boot, now=objects.stamp(time.time() - 1),
            since=self._since, capacity=self._told[0], allocatable=self._told[1],
        )  # fmt: skip

    async def _register(self, gpu_labels: Mapping[str, str]) -> KubeError | None:
        """Try once; return the error, None on success."""
        try:
            await self._create(gpu_labels)
            await self._create_lease()
        except KubeError as error:
            return error
        return None

    async def _create(self, gpu_labels: Mapping[str, str]) -> None:
        api = self._shared.api
        wanted = objects.node(self.spec, self._status(), {**gpu_labels, **self._shared.mark})
        try:
            created = await api.create(NODES, wanted)
        except KubeRefusedError as refused:
            if refused.code != 409:
                raise
            created = await api.patch(NODES, self.spec.name, {"metadata": {"labels": wanted["metadata"]["labels"]}})
            info = wanted["status"]["nodeInfo"]
            known = ((created.get("status") or {}).get("nodeInfo") or {}).get("bootID")
            await api.patch(
                NODES, self.spec.name, {"status": wanted["status"]}, subresource="status", kind=Patch.STRATEGIC
            )
            self._rebooted |= bool(known) and known != info["bootID"]
        self._uid = created["metadata"]["uid"]
        if not self.spec.light:  # who creates a Node owns nothing of its status: who patches a condition does
            await self._patch_status(objects.heartbeat_patch(objects.stamp(time.time()), self._since))

    async def _create_lease(self) -> None:
        with contextlib.suppress(KubeRefusedError):  # it is there already
            await self._shared.api.create(LEASES, objects.lease(self.spec.name, self._uid, time.time()))

    async def _until_done(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        backoff = Backoff(_POLICY)
        while True:
            try:
                await call()
            except KubeError as error:
                log.debug("node %s: %s", self.spec.name, error.one_line())
                if isinstance(error, KubeRefusedError) and error.code == 404:
                    return
                await asyncio.sleep(backoff.next_delay())
            else:
                return

    async def _keep_lease(self) -> None:
        """Renew the lease; every five minutes the whole status, and at once where a pause has it doubted, as after a
        laptop's suspend. Chance spreads the nodes over the time.
        """
        status_at = time.monotonic() - objects.HEARTBEAT_SECONDS * random.uniform(-0.5, 0.5)  # noqa: S311 - no secret
        first = objects.RENEW_SECONDS if self.registered.is_set() else objects.RENEW_SECONDS / 4
        await asyncio.sleep(first * random.random())  # noqa: S311 - no secret
        while True:
            doubted = self.doubted.is_set() and self.registered.is_set()  # who registers says that it is well
            self.doubted.clear()  # first: it may be doubted anew meanwhile
            try:
                await self._renew_lease()
                if doubted or time.monotonic() - status_at > objects.HEARTBEAT_SECONDS:
                    await self._patch_status(objects.heartbeat_patch(objects.stamp(time.time()), self._since))
                    status_at = time.monotonic()
            except KubeError:
                await asyncio.sleep(objects.RENEW_SECONDS)
                if doubted:
                    self.doubted.set()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(objects.RENEW_SECONDS):
                    await self.doubted.wait()

    async def _renew_lease(self) -> None:
        try:
            await self._shared.api.patch(
                LEASES, self.spec.name, objects.renewal(time.time()), namespace=objects.LEASE_NAMESPACE
            )
        except KubeRefusedError as refused:
            if refused.code == 404:
                await self._create_lease()

    async def _publish(self) -> None:
        """Report every change of the plugins' devices in the Node's status."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(SETTLE_S)
            self._changed.clear()
            now = (dict(self.devices.capacity()), dict(self.devices.allocatable()))
            if now == self._told:
                continue
            gone = [name for name in self._told[0] if name not in now[0]]
            patch = objects.devices_patch(capacity=now[0], allocatable=now[1], gone=gone)
            backoff = Backoff(_POLICY)
            while True:
                try:
                    await self._patch_status(patch)
                except KubeError as error:
                    log.debug("node %s: %s", self.spec.name, error.one_line())
                    await asyncio.sleep(backoff.next_delay())
                    self._changed.set()  # look again: it may have changed meanwhile
                    break
                else:
                    self._told = now
                    break

    async def _patch_status(self, change: Object) -> None:
        await self._shared.api.patch(NODES, self.spec.name, change, subresource="status", kind=Patch.STRATEGIC)

    def _note(self, kind: str, reason: str, message: str, *, light: bool = False) -> None:
        """Record an Event about the node; ``light``: also on a light one, which has few things to tell."""
        if self.spec.light and not light:
            return
        about = {"kind": "Node", "metadata": {"name": self.spec.name}}
        self._shared.recorder.note(
            KubeletEvent(node=self.spec.name, about=about, kind=kind, reason=reason, message=message)
        )

    # --- pods ---

    def pod_changed(self, change: Change, pod: Object) -> None:
        """A pod that is bound to this node has changed."""
        uid = str(pod["metadata"]["uid"])
        worker = self.workers.get(uid)
        if change is Change.DELETED:
            self._known.pop(uid, None)
            self.resting.pop(uid, None)
            if worker is not None:
                worker.vanished()
            return
        new, self._known[uid] = uid not in self._known, pod
        if worker is not None:
            worker.update(pod)
        elif uid in self.resting:
            self.resting[uid] = pod
            self._confirm_end(pod)
        elif new:
            self._queue.put_nowait(uid)

    async def _admissions(self) -> None:
        """One pod after the other, as they came; first those whose workers ended with an earlier run."""
        for uid in list(self.workers):
            del self.workers[uid]
            self._queue.put_nowait(uid)
        while True:
            uid = await self._queue.get()
            pod = self._known.get(uid)
            if pod is None:
                continue  # gone again while it waited
            try:
                await self._admit(uid, pod)
            except Exception as error:
                # One pod must not stop the node from taking others.
                log.exception("node %s: admission of pod %s failed", self.spec.name, uid)
                self.devices.release(uid)
                self._refuse(pod, admit.PodRejection(REASON, f"the node failed: {type(error).__name__}: {error}"))

    async def _admit(self, uid: str, pod: Object) -> None:
        status = pod.get("status") or {}
        if status.get("phase") in TERMINAL and not self.devices_of(uid):
            self.resting[uid] = pod
            self._confirm_end(pod)
            return
        back = bool(status.get("startTime")) and self._ran_before_reboot(pod)
        judged = back or not status.get("startTime")
        if judged and (missing := self._awaited(pod)):
            self._spawn(self._admit_later(uid, missing))
            return
        refusal = None
        if judged and not pod["metadata"].get("deletionTimestamp"):
            refusal = await self._check(pod)
        if refusal is not None and not back:
            self._refuse(pod, refusal)
            return
        worker = self.workers[uid] = PodWorker(self.context, self._known.get(uid, pod))
        if uid not in self._known:
            worker.vanished()  # while it was being admitted
        elif refusal is not None:
            self.context.event(pod, "Warning", refusal.reason, refusal.message)
            worker.fail(refusal.reason, f"Pod was rejected: {refusal.message}")
        elif status.get("startTime") and self._is_unrecorded(pod):
            worker.fail(REASON, admit.UNRECORDED)
        self._spawn(self._live(uid, worker))

    def _ran_before_reboot(self, pod: Object) -> bool:
        """Whether all that ever ran of a pod was ended by the machine's reboot: it is judged as a new one."""
        ids = podstatus.container_ids(pod)
        return bool(ids) and all(self.context.is_former(container) for container in ids)

    def _awaited(self, pod: Object) -> list[str]:
        """The resources that a pod asks for whose plugins, known from before a restart, have not come back yet."""
        if time.monotonic() > self._begun + PLUGINS_S:
            return []
        wanted = podstate.device_names(pod)
        return [name for name in self.devices.resources() if name in wanted and not self.devices.devices(name)]

    async def _admit_later(self, uid: str, missing: list[str]) -> None:
        """When the plugins are back, or have taken too long."""
        with contextlib.suppress(TimeoutError):
            await self.devices.wait_for(
                lambda: all(self.devices.devices(name) for name in missing),
                seconds=max(0.0, self._begun + PLUGINS_S - time.monotonic()) + 0.1,
            )
        self._queue.put_nowait(uid)

    def _distrust(self) -> None:
        """The checkpoint could not be read: which devices the pods from before hold is not known any more."""
        problem = f"{self.devices.problem}; pods from before that hold devices are ended"
        log.error("node %s: %s", self.spec.name, problem)
        self._note("Warning", "InvalidDeviceCheckpoint", problem)
        self._unrecorded_since = time.time()

    def _is_unrecorded(self, pod: Object) -> bool:
        """Whether a pod that was admitted before holds devices that nobody remembers."""
        started = plan.seconds_of((pod.get("status") or {}).get("startTime"))
        return (
            started < self._unrecorded_since
            and bool(podstate.device_names(pod))
            and not self.devices_of(pod["metadata"]["uid"])
        )

    async def _sweep(self) -> None:
        """Once it is known which pods there are: nothing stays of those that went while this node was down."""
        await self._shared.pods_known.wait()
        known = set(self._known)
        self.devices.keep_only(known)
        for uid in self.claims.pods() - known:
            self._spawn(unprepare(self.claims, uid))
        if not self.spec.light:
            for name in leftovers.sweep(self.folder, known):
                log.info("node %s: removed %s, which belongs to no pod", self.spec.name, name)

    def active_pods(self) -> list[Object]:
        """The pods that were admitted and are not over."""
        return [worker.state.pod for worker in self.workers.values() if not worker.released]

    def processes(self) -> NodeProcesses:
        """Whose use of CPU and memory is this node's."""
        return NodeProcesses(
            name=self.spec.name, agent=agents.pid_of(self.folder),
            containers=[container for worker in self.workers.values() for container in worker.all_running()],
        )  # fmt: skip

    def _health_changed(self, driver: str) -> None:
        """A DRA driver says something else of its devices: pods that have some tell it."""
        for uid in self.claims.with_driver(driver):
            if uid in self.workers:
                self.workers[uid].looked_at()

    def devices_of(self, uid: str) -> bool:
        """Whether a pod holds devices."""
        return any(pod == uid for pod, _ in self.devices.held())

    async def _check(self, pod: Object) -> admit.PodRejection | None:
        """The node's checks, then the device manager's."""
        labels = self._shared.labels(self.spec.name) or objects.labels(self.spec)
        others = self.active_pods()
        # What the scheduler saw of unhealthy devices may be old; the device manager says exactly what is there. What is
        # held counts as there: whether a pod from before a reboot still has its devices is the device manager's to say.
        held: Counter[str] = Counter()
        for rows in self.devices.held().values():
            held.update({name: len(ids) for name, ids in rows.items()})
        capacity = {
            **objects.own_capacity(self.spec),
            **{name: str(max(count, held[name])) for name, count in self.devices.capacity().items()},
        }
        refusal = admit.check(pod, node=self.spec.name, labels=labels, allocatable=capacity, others=others)
        if refusal is not None:
            return refusal
        uid = str(pod["metadata"]["uid"])
        spec = pod["spec"]
        inits = spec.get("initContainers") or []
        reuse: list[str] = []
        try:
            for container in (*inits, *spec["containers"]):
                wants = admit.device_wants(container, self.devices.resources())
                if wants:
                    await self.devices.admit(uid, container["name"], wants, reuse=reuse)
                if container in inits and container.get("restartPolicy") != "Always":
                    reuse.append(container["name"])
        except AdmissionError as error:
            return admit.PodRejection(REASON, error.message)
        return None

    def _refuse(self, pod: Object, refusal: admit.PodRejection) -> None:
        metadata = pod["metadata"]
        self.context.event(pod, "Warning", refusal.reason, refusal.message)
        change = {
            "metadata": {"uid": metadata["uid"]},
            "status": podstatus.rejected(pod, refusal.reason, refusal.message),
        }
        if metadata["uid"] in self._known:
            self.resting[str(metadata["uid"])] = pod
        self._spawn(
            self._until_done(
                lambda: self._shared.api.patch(
                    PODS, metadata["name"], change, namespace=metadata["namespace"], subresource="status",
                    kind=Patch.STRATEGIC,
                )
            )
        )  # fmt: skip

    def _confirm_end(self, pod: Object) -> None:
        """A pod that is over and to be deleted needs no more of this node."""
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            self._spawn(
                self._until_done(
                    lambda: self._shared.api.delete(
                        PODS, metadata["name"], namespace=metadata["namespace"], grace=0, uid=metadata["uid"]
                    )
                )
            )

    async def _live(self, uid: str, worker: PodWorker) -> None:
        backoff = Backoff(_POLICY)
        while not worker.finished.is_set():
            try:
                await worker.run()
            except Exception:
                log.exception("node %s: the worker of pod %s failed", self.spec.name, worker.state.full_name)
                await asyncio.sleep(backoff.next_delay())
                # Another one finds what runs, as after a restart of the whole node.
                gone = worker.gone
                worker = self.workers[uid] = PodWorker(self.context, self._known.get(uid, worker.state.pod))
                if gone or uid not in self._known:
                    worker.vanished()
        self.workers.pop(uid, None)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
