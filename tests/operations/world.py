"""A cluster for the engine: nodes, pods that end when they are evicted, budgets that refuse, machines that reboot, and a
process to be killed.

``Cluster`` is an API server in memory with a kubelet and controllers of a few lines. ``Engine`` is one process of kgpu
that leads; it can be killed at any call and started again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from kgpu.base.clock import VirtualClock, settle
from kgpu.base.errors import HostError, UserError
from kgpu.base.service import end
from kgpu.formats import names
from kgpu.formats.node_order import (
    HolderPod,
    NodeOrder,
    OrderAnswer,
    OrderedGpu,
    OrderStep,
    answer,
    encode,
    read_order,
)
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import DAEMON_SETS, NODE_OPERATIONS
from kgpu.kube.port import (
    CONFIG_MAPS,
    NODES,
    PODS,
    KubeRefusedError,
    KubeUnreachableError,
    Object,
    Resource,
    WatchEvent,
)
from kgpu.notifications.notifier import Notifier
from kgpu.operations import node_reboot
from kgpu.operations.config import MigPolicy, OperationBudget, RemediationPolicy, Share
from kgpu.operations.model import REFUSED, UNKNOWN
from kgpu.operations.node_reboot import Machine
from kgpu.operations.run import OperationsController
from tests.operations.sim_drivers import DAEMON_SET, NAMESPACE, RELEASES, SimDriver, SimDrivers
from tests.operations.sim_mig import SimMig

START = 1_700_000_000.0
OPEN = OperationBudget(max_parallel=100, max_unavailable=Share(percent=100))


class Killed(BaseException):
    """The process ends here: no line of it runs any more."""


class SimMachine:
    """A node's machine. ``asked`` are the IDs under which it was asked to reboot, ``boots`` how often it did."""

    def __init__(self, name: str, looks: int) -> None:
        self.name = name
        self.forbids = False
        """Its admin wants no reboots."""
        self._marks: set[str] = set()
        self.boots = 0
        self.asked: list[str] = []
        self.left = 0
        """Looks until it is up again."""
        self.looks = looks
        """For how many looks of kubelets it is away."""
        self.agent = SimAgent(self)
        self.ill: dict[str, str] = {}
        """What is wrong with a GPU, by UUID; a reset cures it."""
        self.reset_gpus: list[tuple[str, ...]] = []
        self.reset_ids: list[str] = []
        self.reset_ends = 0
        """The exit code of a reset."""
        self.cures = True
        self.released = False
        """Whether no program has the driver open."""
        self.driver: SimDriver | None = None

    @property
    def boot(self) -> str:
        return f"boot-of-{self.name}" + (f"-{self.boots}" if self.boots else "")

    def act(self, identity: str, boot: str) -> tuple[int, str]:
        """What the act's program does here: its exit code, and what it says."""

        def mark(act: str) -> bool:
            known = act in self._marks
            self._marks.add(act)
            return not known

        def ask() -> None:
            self.asked.append(identity)
            self.left = self.looks

        machine = Machine(boot=self.boot, forbids=lambda: self.forbids, mark=mark, ask=ask)
        try:
            return 0, node_reboot.reboot(identity, boot, machine)
        except HostError as error:
            return REFUSED, error.one_line()

    def reset(self, identity: str, boot: str, uuids: tuple[str, ...]) -> tuple[int, str]:
        """What the act's program does here, once per ID."""
        if boot != self.boot:
            return REFUSED, "this machine has booted since"
        if identity in self._marks:
            return UNKNOWN, "it was begun before"
        if not self.released:
            return REFUSED, "the driver is open in pid 77 (kgpu)"
        self._marks.add(identity)
        self.reset_gpus.append(uuids)
        self.reset_ids.append(identity)
        if self.cures and not self.reset_ends:
            self.ill = {uuid: why for uuid, why in self.ill.items() if uuid not in uuids}
        return self.reset_ends, "" if not self.reset_ends else "nvidia-smi has failed"

    def boot_anew(self) -> None:
        """Nothing of ``/run`` survives."""
        self.boots += 1
        self._marks.clear()


class SimAgent:
    """A node's agent, as far as orders go. ``silent``: it is older than orders. ``refuses`` is why it never obeys."""

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine
        self.silent = False
        self.refuses = ""
        self.holders: list[str] = []
        """The names of pods in the namespace default that hold each ordered GPU, while they are there."""
        self.unnamed: set[str] = set()
        """The names of pods that the kubelet does not list."""
        self.lists: tuple[str, ...] | None = None
        """The GPUs that the driver lists after a reset; None for all that are asked about."""
        self.told_of_reset: list[bool] = []
        """What the orders to resume said of the act."""
        self.mig = SimMig()

    def answers(self, annotations: Mapping[str, str], pods: set[str]) -> str | None:
        """The answer to the order on the Node, None without one."""
        given = read_order(annotations)
        self._machine.released = False
        if given is None or given.step is not OrderStep.CHANGE or given.boot != self._machine.boot:
            self.mig.idle()
        if self.silent or given is None or given.boot != self._machine.boot:
            return None
        if self.refuses:
            return encode(answer(given, refused=self.refuses))
        holders = tuple(HolderPod(namespace="default", name=name) for name in self.holders if name in pods)
        if given.step is OrderStep.WITHDRAW:
            others = pods.difference(self.holders, self.unnamed)
            elsewhere = tuple(HolderPod(namespace="default", name=name) for name in others)
            return encode(answer(given, holders=holders, elsewhere=elsewhere))
        self._machine.released = given.step is OrderStep.RELEASE or given.released
        if given.step is OrderStep.CHANGE:
            return encode(self.mig.change(given))
        if given.exchange:
            return encode(self._exchanging(given))
        if given.step is OrderStep.RESUME and given.reset not in self.told_of_reset:
            self.told_of_reset.append(given.reset)
        listed = given.gpus if self.lists is None else self.lists
        read = tuple(OrderedGpu(uuid=uuid, problem=self._machine.ill.get(uuid, "")) for uuid in listed)
        return encode(answer(given, gpus=read if given.step is OrderStep.RESUME else ()))

    def _exchanging(self, given: NodeOrder) -> OrderAnswer:
        if given.step is OrderStep.RELEASE or self._machine.driver is None:
            return answer(given)
        loaded = self._machine.driver.loaded
        return answer(given, driver=RELEASES[loaded]) if loaded else answer(given, waits="the driver can't be read")


class Cluster(FakeApi):
    """The API server, and what happens behind it.

    ``budgets`` are refusals of evictions by (namespace, name): status, reason and causes. ``die_at`` is the number of
    the write at which the process is killed; a negative one is killed after the write has taken effect.
    """

    def __init__(self) -> None:
        super().__init__()
        self.budgets: dict[tuple[str, str], tuple[int, str, tuple[tuple[str, str], ...]]] = {}
        self.writes = 0
        self.die_at = 0
        self.lose_at = 0
        self.blind = False
        """Watches of operations and nodes bring nothing."""
        self.served.add(NODE_OPERATIONS)
        self.evictions: list[str] = []
        self.deletions: list[tuple[str, int | None]] = []
        """Pods that the engine has deleted, with the grace period."""
        self.refuses_deletions: KubeRefusedError | None = None
        self.uids = itertools.count(1)
        self.machines: dict[str, SimMachine] = {}
        self.collected: list[str] = []
        """The nodes whose evidence was asked for."""
        self.evidence: bytes | UserError = b"an archive"
        """What collecting yields."""
        self.collecting_ends = asyncio.Event()
        self.collecting_ends.set()
        self.driver_deletions: list[str] = []
        """The uids of drivers' pods that the engine has deleted."""
        self.drivers = SimDrivers(self.put, self._pods_now)
        self.boot_looks = 4
        """Looks of kubelets for which a machine that reboots is away."""

    # The process's writes

    async def apply(self, resource: Resource, obj: Object, **more: Any) -> Object:
        return await self._counted(lambda: super(Cluster, self).apply(resource, obj, **more))

    async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        if subresource == "eviction":
            return await self._counted(lambda: self._evict(resource, obj))
        if resource in (PODS, CONFIG_MAPS):
            return await self._counted(lambda: super(Cluster, self).create(resource, obj))
        return await super().create(resource, obj, subresource=subresource)

    async def delete(self, resource: Resource, name: str, **more: Any) -> bool:
        if resource == PODS and more.get("uid"):  # what people and kubelets delete has none
            if more["namespace"] == NAMESPACE and name.startswith("driver-"):
                self.driver_deletions.append(more["uid"])
            elif not name.startswith(names.ACT_APP):
                self.deletions.append((f"{more['namespace']}/{name}", more.get("grace")))
                if self.refuses_deletions is not None:
                    raise self.refuses_deletions
            return bool(await self._counted(lambda: super(Cluster, self).delete(resource, name, **more)))
        return await super().delete(resource, name, **more)

    async def watch(self, resource: Resource, resource_version: str, **more: Any) -> AsyncIterator[WatchEvent]:
        async for event in super().watch(resource, resource_version, **more):
            if self.blind and resource in (NODE_OPERATIONS, NODES):
                raise KubeUnreachableError("the watch is broken", "a watch", "wait")
            yield event

    async def _evict(self, resource: Resource, obj: Object) -> Object:
        metadata = obj["metadata"]
        where = f"{metadata['namespace']}/{metadata['name']}"
        self.evictions.append(where)
        refusal = self.budgets.get((metadata["namespace"], metadata["name"]))
        if refusal is not None:
            code, message, causes = refusal
            raise KubeRefusedError(message, "", "", code=code, causes=causes)
        pod = await self.get(resource, metadata["name"], namespace=metadata["namespace"])
        wanted = obj["deleteOptions"]["preconditions"]["uid"]
        if pod is not None and pod["metadata"]["uid"] != wanted:
            raise KubeRefusedError("uid mismatch", "", "", code=409)
        return await super().create(resource, obj, subresource="eviction")

    async def _counted(self, write: Callable[[], Any]) -> Any:
        self.writes += 1
        number = self.writes
        if self.die_at == number:
            raise Killed
        answer = await write()
        if self.die_at == -number:
            raise Killed
        if self.lose_at == number:
            self.blind = True
            raise KubeUnreachableError("the answer was lost", "an answer", "wait")
        return answer

    # What is there

    def node(self, name: str, **fields: Any) -> Object:
        """Add a node with GPUs."""
        labels = {names.LABEL_GPU_PRESENT: "true", **fields.pop("labels", {})}
        ready = "True" if fields.pop("ready", True) else "False"
        self.machines.setdefault(name, SimMachine(name, self.boot_looks))
        status = {
            "conditions": [{"type": "Ready", "status": ready}], "nodeInfo": {"bootID": self.machines[name].boot},
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "64"},
        }  # fmt: skip
        return self.put(NODES, {"metadata": {"name": name, "labels": labels}, "spec": fields, "status": status})

    def pod(
        self, name: str, node: str, *, owner: tuple[str, str] | None = ("ReplicaSet", "web"), **fields: Any
    ) -> Object:
        """Add a pod that runs on a node."""
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, **fields.pop("spec", {})}
        owners = [{"kind": owner[0], "name": owner[1], "uid": owner[1], "controller": True}] if owner else []
        metadata = {
            "namespace": "default", "name": name, "uid": f"{name}-{next(self.uids)}", "ownerReferences": owners,
            **fields.pop("metadata", {}),
        }  # fmt: skip
        return self.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}, **fields})

    def _pods_now(self) -> list[Object]:
        return [stored.shown() for (resource, _, _), stored in list(self._objects.items()) if resource == PODS]

    def driven(self, name: str, digest: str = "1", **given: Any) -> SimDriver:
        """Let a node run a driver of a container."""
        self.put(DAEMON_SETS, {"metadata": {"namespace": NAMESPACE, "name": DAEMON_SET}})
        self.machines[name].driver = driver = self.drivers.on(name, digest, **given)
        return driver

    def driver_pods(self, name: str) -> list[str]:
        """The names of a node's driver pods."""
        return [pod["metadata"]["name"] for pod in self.drivers.pods() if pod["spec"]["nodeName"] == name]

    def daemon_set(self, name: str) -> None:
        """Add a DaemonSet."""
        self.put(DAEMON_SETS, {"metadata": {"namespace": "default", "name": name}})

    def operation(self, name: str, node: str, **spec: Any) -> Object:
        """Add a maintenance, as the API server stores it."""
        whole = {"nodeName": node, "type": "Maintenance", "drain": {}, **spec}
        return self.put(
            NODE_OPERATIONS, {"metadata": {"name": name, "creationTimestamp": "2023-11-14T22:13:20Z"}, "spec": whole}
        )

    def say(self, name: str, **spec: Any) -> None:
        """A person changes the spec of an operation."""
        known = self.object(NODE_OPERATIONS, name)
        self.put(NODE_OPERATIONS, {**known, "spec": {**known["spec"], **spec}})

    def uncordon(self, name: str) -> None:
        """A person makes a node schedulable."""
        known = self.object(NODES, name)
        self.put(
            NODES, {**known, "spec": {key: value for key, value in known["spec"].items() if key != "unschedulable"}}
        )

    def object(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """An object as it is."""
        return self._objects[resource, namespace, name].shown()

    def status(self, name: str) -> Mapping[str, Any]:
        """Of an operation."""
        return self.object(NODE_OPERATIONS, name).get("status") or {}

    def unschedulable(self, name: str) -> bool:
        """Whether a node is cordoned."""
        return bool(self.object(NODES, name)["spec"].get("unschedulable"))

    def owners(self, name: str) -> str:
        """Who holds a node."""
        return str((self.object(NODES, name)["metadata"].get("annotations") or {}).get(names.CORDON_ANNOTATION, ""))

    def pods_on(self, node: str) -> set[str]:
        """Names of the pods on a node."""
        rows = (stored.obj for (resource, _, _), stored in self._objects.items() if resource == PODS)
        return {row["metadata"]["name"] for row in rows if row["spec"].get("nodeName") == node}

    def repair(self, name: str) -> None:
        """A person repairs a machine: it boots, and its GPUs are well by the word of its agent."""
        machine = self.machines[name]
        machine.boot_anew()
        self._booted(name, machine.boot)
        known = self.object(NODES, name)
        rows = [row for row in known["status"]["conditions"] if row["type"] != names.GPUS_HEALTHY_CONDITION]
        well = {"type": names.GPUS_HEALTHY_CONDITION, "status": "True"}
        self.put(NODES, {**known, "status": {**known["status"], "conditions": [*rows, well]}})

    def bundles(self) -> list[str]:
        """The names of the ConfigMaps with evidence."""
        return [name for (resource, _, name) in self._objects if resource == CONFIG_MAPS]

    def marked(self, name: str) -> bool:
        """Whether a node's machine is said to need replacement."""
        return (self.object(NODES, name)["metadata"].get("labels") or {}).get(names.NEEDS_REPLACEMENT_LABEL) == "true"

    async def kubelets(self) -> None:
        """Pods that were asked to go do; agents obey orders; acts act; machines that were asked to reboot do."""
        for name in self.machines:
            self._obey(name)
        for machine in self.machines.values():
            if machine.left:
                machine.left -= 1
                if not machine.left:
                    machine.boot_anew()
                    self._booted(machine.name, machine.boot)
        for (resource, _, _), stored in list(self._objects.items()):
            if resource == PODS and (stored.obj["metadata"].get("labels") or {}).get("app") == names.ACT_APP:
                self._act(stored.obj)
        for (resource, namespace, name), stored in list(self._objects.items()):
            metadata = stored.obj["metadata"]
            if resource == PODS and "deletionTimestamp" in metadata and not metadata.get("finalizers"):
                await FakeApi.delete(self, PODS, name, namespace=namespace, grace=0)
        self.drivers.look()

    def _act(self, pod: Object) -> None:
        """Run an act's pod, once."""
        machine = self.machines[pod["spec"]["nodeName"]]
        if machine.left or (pod.get("status") or {}).get("containerStatuses"):
            return
        _, command, *flags = pod["spec"]["containers"][0]["args"]
        words = dict(word.removeprefix("--").split("=", 1) for word in flags)
        if command == "reset-gpu":
            uuids = tuple(word.removeprefix("--gpu=") for word in flags if word.startswith("--gpu="))
            code, said = machine.reset(words["id"], words["boot-id"], uuids)
        else:
            code, said = machine.act(words["id"], words["boot-id"])
        ended = {"exitCode": code, "message": said}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": {"terminated": ended}}]}
        self.put(PODS, {**pod, "status": status})

    def _obey(self, name: str) -> None:
        """Let a node's agent answer the order on its Node."""
        if (NODES, "", name) not in self._objects:
            return
        known = self.object(NODES, name)
        annotations = known["metadata"].get("annotations") or {}
        machine = self.machines[name]
        said = None if machine.left else machine.agent.answers(annotations, self._holders_on(name))
        if annotations.get(names.OPERATION_REPORT_ANNOTATION) != said:
            rest = {key: text for key, text in annotations.items() if key != names.OPERATION_REPORT_ANNOTATION}
            told = rest if said is None else {**rest, names.OPERATION_REPORT_ANNOTATION: said}
            self.put(NODES, {**known, "metadata": {**known["metadata"], "annotations": told}})

    def _holders_on(self, name: str) -> set[str]:
        """The pods of a node whose agent knows of pods that hold GPUs."""
        return self.pods_on(name) if self.machines[name].agent.holders else set()

    def order(self, name: str) -> str:
        """What a node's agent is ordered to do."""
        annotations = self.object(NODES, name)["metadata"].get("annotations") or {}
        return str(annotations.get(names.OPERATION_ANNOTATION, ""))

    def _booted(self, name: str, boot: str) -> None:
        known = self.object(NODES, name)
        status = {**known["status"], "nodeInfo": {"bootID": boot}}
        self.put(NODES, {**known, "status": status})


class SimCollector:
    """Gets what the cluster says that a node's evidence is."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def collect(self, node: str) -> bytes:
        self._cluster.collected.append(node)
        await self._cluster.collecting_ends.wait()
        if isinstance(self._cluster.evidence, UserError):
            raise self._cluster.evidence
        return self._cluster.evidence


class Engine:
    """One process that leads. ``run_for`` lets time pass."""

    def __init__(
        self,
        cluster: Cluster,
        budget: OperationBudget = OPEN,
        *,
        clock: VirtualClock | None = None,
        own_pod: tuple[str, str] = ("", ""),
        remediation: RemediationPolicy | None = None,
        notifier: Notifier | None = None,
        mig: MigPolicy | None = None,
        ahead: float = 0.0,
    ) -> None:
        """``ahead`` is how far its clock is, in seconds."""
        self.cluster = cluster
        self.clock = clock or VirtualClock()
        self.controller = OperationsController(
            cluster,
            budget,
            own_pod=own_pod,
            remediation=remediation,
            notifier=notifier,
            mig=mig,
            clock=self.clock,
            collector=SimCollector(cluster),
            now=lambda: START + ahead + self.clock.monotonic(),
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Follow and lead."""
        works = [self.controller.watch(), *self.controller.term(self.cluster)]
        self._tasks = [asyncio.create_task(work) for work in works]
        await settle()

    async def stop(self) -> None:
        """End at once, without a word."""
        await end(*self._tasks)
        self._tasks = []

    @property
    def killed(self) -> bool:
        """Whether a task has ended by itself."""
        return any(task.done() for task in self._tasks)

    async def run_for(self, seconds: float, *, step: float = 0.5) -> None:
        """Let time pass; kubelets do their work every half second."""
        passed = 0.0
        while passed < seconds and not self.killed:
            await self.clock.advance(step)
            await self.cluster.kubelets()
            await settle()
            passed += step
