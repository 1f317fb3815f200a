"""A cluster in memory in which everything acts on what kgpu writes: DaemonSets make pods, pods load drivers, agents report.

``LiveFleet`` is what NVIDIA's operator and kgpu share: an API server, its controllers, kubelets, machines. A driver that
is unloaded while a pod with GPUs runs there, or whose pod is ended, is noted in ``harm``, whoever was to blame.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kgpu.base.clock import VirtualClock
from kgpu.base.times import stamp_of
from kgpu.fit import read
from kgpu.fit.selectors import NodeTerm
from kgpu.formats import agent_report, names, validation_report
from kgpu.formats.driver_revision import release_of
from kgpu.formats.node_order import NodeOrder, OrderAnswer, OrderStep, answer
from kgpu.kube import kinds
from kgpu.kube.fake import FakeObject
from kgpu.kube.kinds import DAEMON_SETS, NODE_OPERATIONS
from kgpu.kube.port import NODES, PODS, Change, Object, Resource, name_of
from kgpu.operations.model import asks_for_gpus
from tests.operations.world import START, Cluster, SimAgent, SimMachine
from tests.operator.world import NAMESPACE, node_object, report

OLD, NEW, NEWER = "550.54.15", "570.86.15", "580.95.05"
POLICY: Final = "cluster-policy"
_POLICY_KINDS: Final = ("ClusterPolicy", "NVIDIADriver")
_GPUS: Final = {"limits": {"nvidia.com/gpu": "1"}}


@dataclass
class Machine:
    """A machine's driver. ``looks``: how long one takes until it is loaded; ``fails``: the containers that end, by the
    driver's release, "" for any; ``passes`` is False where the validator finds fault with what is loaded.
    """

    loaded: str = ""
    looks: int = 3
    fails: dict[str, str] = field(default_factory=dict)
    passes: bool = True
    seen: dict[str, int] = field(default_factory=dict)
    """How often the kubelet has looked at a pod, by its uid."""


class DriverAgent(SimAgent):
    """An agent that reads which driver is loaded."""

    def __init__(self, machine: SimMachine, driver: Machine) -> None:
        super().__init__(machine)
        self._driver = driver

    def _exchanging(self, given: NodeOrder) -> OrderAnswer:
        if given.step is OrderStep.RELEASE:
            return answer(given)
        loaded = self._driver.loaded
        return answer(given, driver=loaded) if loaded else answer(given, waits="the driver can't be read")


class LiveFleet(Cluster):
    """The cluster. ``unpublished`` are releases that no registry has; ``too_old`` those that do not know the GPUs."""

    def __init__(self, *nodes: str) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.served |= {kinds.CLUSTER_POLICIES, kinds.NVIDIA_DRIVERS}
        self.unpublished: set[str] = set()
        self.too_old: set[str] = set()
        self.harm: list[str] = []
        self.driven_by: dict[str, Machine] = {}
        self._ended: set[str] = set()
        self.put(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for name in nodes:
            self.gpu_node(name)

    def _write(self, resource: Resource, stored: FakeObject, change: Change) -> Object:
        metadata = stored.obj.setdefault("metadata", {})
        metadata.setdefault("creationTimestamp", stamp_of(START + self.clock.monotonic()))
        return super()._write(resource, stored, change)

    # What people do

    def gpu_node(self, name: str, **spec: Any) -> None:
        """Add a node with GPUs and no driver."""
        obj = node_object(name)
        self.machines[name] = machine = SimMachine(name, self.boot_looks)
        self.driven_by[name] = Machine()
        machine.agent = DriverAgent(machine, self.driven_by[name])
        obj["spec"] |= spec
        obj["status"]["nodeInfo"]["bootID"] = machine.boot
        self.put(NODES, obj)

    def policy(self, spec: Mapping[str, Any]) -> None:
        """Apply a ClusterPolicy."""
        self._custom(kinds.CLUSTER_POLICIES, POLICY, spec)

    def want(self, version: str, upgrade: Mapping[str, Any] | None = None, **driver: Any) -> None:
        """Apply a ClusterPolicy that asks for a driver."""
        more = {"upgradePolicy": dict(upgrade)} if upgrade is not None else {}
        spec = {"enabled": True, "repository": "example.org", "image": "driver", "version": version, **more, **driver}
        self.policy({"driver": spec})

    def nvidia_driver(self, name: str, version: str, **spec: Any) -> None:
        """Apply an NVIDIADriver."""
        whole = {"driverType": "gpu", "repository": "example.org", "image": "driver", "version": version, **spec}
        self._custom(kinds.NVIDIA_DRIVERS, name, whole)

    def _custom(self, resource: Resource, name: str, spec: Mapping[str, Any]) -> None:
        stored = self._objects.get((resource, "", name))
        known: Object = stored.shown() if stored is not None else {"metadata": {"name": name, "generation": 0}}
        if known.get("spec") == spec:
            return
        metadata = {**known["metadata"], "generation": known["metadata"]["generation"] + 1}
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        self.put(resource, {**head, **known, "metadata": metadata, "spec": json.loads(json.dumps(spec))})

    def label(self, node: str, **labels: str | None) -> None:
        """Set labels of a node; None takes one off."""
        self._meta(node, "labels", labels)

    def annotate(self, node: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of a node."""
        self._meta(node, "annotations", annotations)

    def _meta(self, node: str, part: str, values: Mapping[str, str | None]) -> None:
        known = self.object(NODES, node)
        merged = {**(known["metadata"].get(part) or {}), **values}
        told = {key: value for key, value in merged.items() if value is not None}
        self.put(NODES, {**known, "metadata": {**known["metadata"], part: told}})

    def cordon(self, name: str) -> None:
        """A person cordons a node."""
        known = self.object(NODES, name)
        self.put(NODES, {**known, "spec": {**known["spec"], "unschedulable": True}})

    def train(self, name: str, node: str, **fields: Any) -> Object:
        """A pod with a GPU."""
        spec = {"containers": [{"name": "c", "resources": _GPUS}], **fields.pop("spec", {})}
        return self.pod(name, node, spec=spec, **fields)

    # What is there

    def operations(self) -> list[Object]:
        """All NodeOperations, in the order of their making."""
        rows = [stored.shown() for (resource, _, _), stored in self._objects.items() if resource == NODE_OPERATIONS]
        return sorted(rows, key=lambda row: (row["metadata"]["creationTimestamp"], name_of(row)))

    def outcomes(self, node: str = "") -> list[tuple[str, str]]:
        """The release that each operation was to bring, and the reason of its state."""
        return [
            (row["spec"]["driver"]["version"], (row.get("status") or {}).get("reason", ""))
            for row in self.operations()
            if node in ("", row["spec"]["nodeName"])
        ]

    def state(self, node: str) -> str:
        """NVIDIA's label."""
        labels = self.object(NODES, node)["metadata"]["labels"]
        return str(labels.get(names.DRIVER_UPGRADE_STATE_LABEL, ""))

    def keys(self, resource: Resource) -> list[tuple[Resource, str, str]]:
        """The kind, namespace and name of all objects of a kind."""
        return [key for key in self._objects if key[0] == resource]

    def driver_sets(self) -> list[str]:
        """The DaemonSets of drivers."""
        return sorted(name_of(one) for one in self._daemon_sets() if _is_driver(one["spec"]["template"]))

    def loaded(self) -> dict[str, str]:
        """The driver of each machine."""
        return {name: machine.loaded for name, machine in self.driven_by.items()}

    def cordoned(self) -> list[str]:
        return [name for name in self.driven_by if self.unschedulable(name)]

    def said(self, name: str = POLICY, resource: Resource = kinds.CLUSTER_POLICIES) -> str:
        """The status of a custom resource, as text."""
        return json.dumps(self.object(resource, name).get("status") or {})

    def ready(self, name: str = POLICY, resource: Resource = kinds.CLUSTER_POLICIES) -> bool:
        status: Mapping[str, Any] = self.object(resource, name).get("status") or {}
        fresh = f'"observedGeneration": {self.object(resource, name)["metadata"]["generation"]}'
        return status.get("state") == "ready" and fresh in json.dumps(status)

    def driver_pod(self, node: str) -> Object:
        (pod,) = [one for one in self._of_drivers() if one["spec"].get("nodeName") == node]
        return pod

    def users_on(self, node: str) -> list[str]:
        """The pods that use the GPUs of a node."""
        return [
            pod["metadata"]["name"] for pod in self._pods_now()
            if pod["spec"].get("nodeName") == node and asks_for_gpus(pod)
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]  # fmt: skip

    def most_drivers(self) -> int:
        """The most driver pods that are on one node."""
        there = Counter(pod["spec"]["nodeName"] for pod in self._of_drivers() if pod["spec"].get("nodeName"))
        return max(there.values(), default=0)

    def _of_drivers(self) -> list[Object]:
        return [pod for pod in self._pods_now() if pod["metadata"]["namespace"] == NAMESPACE and _is_driver(pod)]

    # What the controllers, kubelets and agents do

    async def kubelets(self) -> None:
        await super().kubelets()
        self._collect_garbage()
        for daemon_set in self._daemon_sets():
            if "deletionTimestamp" not in daemon_set["metadata"]:
                self._serve(daemon_set)
        self._note_ended_drivers()
        self._bind()
        for pod in self._of_drivers():
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                self._run(pod, self.driven_by[pod["spec"]["nodeName"]])
        for daemon_set in self._daemon_sets():
            self._count_pods(daemon_set)
        for name, machine in self.driven_by.items():
            if (NODES, "", name) in self._objects:
                self._report(name, machine)

    def _daemon_sets(self) -> list[Object]:
        return [stored.shown() for (resource, _, _), stored in self._objects.items() if resource == DAEMON_SETS]

    def _collect_garbage(self) -> None:
        self._without_owners()
        there = {one["metadata"]["uid"]: one for one in self._daemon_sets()}
        for pod in self._pods_now():
            owner = _owner(pod)
            if owner.get("kind") != "DaemonSet" or pod["metadata"]["namespace"] != NAMESPACE:
                continue
            live = there.get(owner["uid"])
            if live is None:
                self._end(pod)
            elif "orphan" in live["metadata"].get("finalizers", ()):
                self.put(PODS, {**pod, "metadata": {**pod["metadata"], "ownerReferences": []}})
        for live in there.values():
            if "orphan" in live["metadata"].get("finalizers", ()):
                key = (DAEMON_SETS, NAMESPACE, name_of(live))
                self._drop(DAEMON_SETS, self._objects[key])

    def _without_owners(self) -> None:
        """DaemonSets go with the last of their owners."""
        kept = (kinds.CLUSTER_POLICIES, kinds.NVIDIA_DRIVERS)
        owners = {row.obj["metadata"]["uid"] for (resource, _, _), row in self._objects.items() if resource in kept}
        for live in self._daemon_sets():
            mine = [row["uid"] for row in live["metadata"].get("ownerReferences", ()) if row["kind"] in _POLICY_KINDS]
            if mine and owners.isdisjoint(mine):
                self._drop(DAEMON_SETS, self._objects[DAEMON_SETS, NAMESPACE, name_of(live)])

    def _note_ended_drivers(self) -> None:
        for pod in self._of_drivers():
            node, name = pod["spec"].get("nodeName"), name_of(pod)
            if node and "deletionTimestamp" in pod["metadata"] and _is_ready(pod) and name not in self._ended:
                self._ended.add(name)
                self.harm += [f"{node}: driver pod {name} was ended under {user}" for user in self.users_on(node)]

    def _end(self, pod: Object) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            metadata = {**pod["metadata"], "deletionTimestamp": stamp_of(START + self.clock.monotonic() + 30)}
            self.put(PODS, {**pod, "metadata": metadata})

    def _serve(self, daemon_set: Object) -> None:
        """Make the pods that a DaemonSet's controller would, and end those of nodes that it does not select."""
        template = daemon_set["spec"]["template"]["spec"]
        selector, terms = template.get("nodeSelector") or {}, _node_terms(template)
        self._adopt(daemon_set)
        mine = {_place(pod): pod for pod in self._pods_now() if _owner(pod).get("uid") == daemon_set["metadata"]["uid"]}
        for name in self.driven_by:
            labels = self.object(NODES, name)["metadata"]["labels"]
            fits = selector.items() <= labels.items() and (terms is None or any(t.matches(labels, name) for t in terms))
            if fits and name not in mine:
                self._make(daemon_set, name)
            elif not fits and name in mine:
                self._end(mine[name])

    def _adopt(self, daemon_set: Object) -> None:
        """Take over pods that no controller has and that the selector fits."""
        wanted = daemon_set["spec"].get("selector", {}).get("matchLabels") or {}
        for pod in self._pods_now():
            free = pod["metadata"]["namespace"] == NAMESPACE and not _owner(pod)
            if free and wanted and wanted.items() <= (pod["metadata"].get("labels") or {}).items():
                owners = [_controller(daemon_set)]
                self.put(PODS, {**pod, "metadata": {**pod["metadata"], "ownerReferences": owners}})

    def _make(self, daemon_set: Object, node: str) -> None:
        number, template = next(self.uids), daemon_set["spec"]["template"]
        owner = _controller(daemon_set)
        is_driver = _is_driver(template)
        kind = "driver" if is_driver else "operand"
        metadata = {
            **template["metadata"], "namespace": NAMESPACE, "name": f"{kind}-{number}", "uid": f"{kind}-{number}",
            "ownerReferences": [owner],
        }  # fmt: skip
        pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        term = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [pinned]}}
        spec = {**template["spec"], "affinity": {"nodeAffinity": term}}
        status = {"phase": "Pending"} if is_driver else _ready(template)
        self.put(
            PODS, {"metadata": metadata, "spec": spec if is_driver else {**spec, "nodeName": node}, "status": status}
        )

    def _bind(self) -> None:
        """Driver pods repel each other: one is placed where no other is."""
        taken = {pod["spec"]["nodeName"] for pod in self._of_drivers() if pod["spec"].get("nodeName")}
        for pod in self._of_drivers():
            if not pod["spec"].get("nodeName") and _place(pod) not in taken:
                taken.add(_place(pod))
                self.put(PODS, {**pod, "spec": {**pod["spec"], "nodeName": _place(pod)}})

    def _run(self, pod: Object, machine: Machine) -> None:
        if _is_ready(pod):
            return
        looks = machine.seen[pod["metadata"]["uid"]] = machine.seen.get(pod["metadata"]["uid"], 0) + 1
        release = release_of(pod["spec"]["containers"][0]["image"])
        self.put(PODS, {**pod, "status": self._at(pod, machine, release, looks)})

    def _at(self, pod: Object, machine: Machine, release: str, looks: int) -> Object:
        """The status of a driver's pod at a look of its kubelet: the manager unloads, the next container loads."""
        fails = machine.fails.get(release, machine.fails.get("", ""))
        if fails == names.DRIVER_MANAGER_CONTAINER:
            return _ends(fails, looks, "nvidia is in use by pid 77 (python3)", key="initContainerStatuses")
        self._unload(pod["spec"]["nodeName"], machine)
        if release in self.unpublished:
            said = f"Back-off pulling image example.org/driver:{release}: not found"
            return _waits(names.DRIVER_CONTAINER, "ImagePullBackOff" if looks % 2 else "ErrImagePull", said)
        if release in self.too_old:
            said = f"NVRM: this GPU is not supported by the {release} driver release; modprobe nvidia: No such device"
            return _ends(names.DRIVER_CONTAINER, looks, said)
        if fails:
            return _ends(fails, looks, "no headers of this kernel")
        if looks < machine.looks:
            return {"phase": "Pending", "initContainerStatuses": [_runs(names.DRIVER_MANAGER_CONTAINER)]}
        machine.loaded = release
        return _ready(pod)

    def _unload(self, node: str, machine: Machine) -> None:
        if machine.loaded:
            self.harm += [f"{node}: {machine.loaded} was unloaded under {name}" for name in self.users_on(node)]
            machine.loaded = ""

    def _count_pods(self, daemon_set: Object) -> None:
        mine = [pod for pod in self._pods_now() if _owner(pod).get("uid") == daemon_set["metadata"]["uid"]]
        ready, count = sum(map(_is_ready, mine)), len(mine)
        status = {
            "desiredNumberScheduled": count, "currentNumberScheduled": count, "updatedNumberScheduled": count,
            "numberAvailable": ready, "numberReady": ready, "observedGeneration": 1,
        }  # fmt: skip
        if daemon_set.get("status") != status:
            self.put(DAEMON_SETS, {**daemon_set, "status": status})

    def _report(self, name: str, machine: Machine) -> None:
        """What the node's agent says: its driver, and whether all that was checked with it passed."""
        known = self.object(NODES, name)
        well = bool(machine.loaded) and machine.passes and not self.machines[name].released
        if not any(_owner(pod).get("name") == names.AGENT_DAEMON_SET for pod in self._pods_now()):
            return
        stored = self._objects.get((kinds.CLUSTER_POLICIES, "", POLICY))
        generation = stored.obj["metadata"]["generation"] if stored is not None else 0
        said = msgspec.structs.replace(
            report(generation, gpus=8 if machine.loaded else 0), driver=machine.loaded,
            driver_source="container" if machine.loaded else "",
        )  # fmt: skip
        told = {
            names.ROLES_ANNOTATION: agent_report.encode(said),
            names.VALIDATION_ANNOTATION: validation_report.encode(
                validation_report.report((), self.machines[name].boot)
            ),
        }
        row = {"type": names.VALIDATED_CONDITION, "status": "True" if well else "Unknown", "reason": "Checked",
               "message": "8 GPUs have passed" if well else "no driver"}  # fmt: skip
        rest = [one for one in known["status"]["conditions"] if one["type"] != names.VALIDATED_CONDITION]
        metadata = {**known["metadata"], "annotations": {**(known["metadata"].get("annotations") or {}), **told}}
        new = {**known, "metadata": metadata, "status": {**known["status"], "conditions": [*rest, row]}}
        if new != known:
            self.put(NODES, new)


def _owner(pod: Object) -> Mapping[str, Any]:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((one for one in owners if one.get("controller")), {})


def _controller(daemon_set: Object) -> Object:
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": name_of(daemon_set), "controller": True,
        "uid": daemon_set["metadata"]["uid"],
    }  # fmt: skip


def _node_terms(spec: Object) -> tuple[NodeTerm, ...] | None:
    rule = (spec.get("affinity") or {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return read.node_terms(rule) if rule else None


def _place(pod: Object) -> str:
    """The node that a pod is on, or is for."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    return str(term["matchFields"][0]["values"][0])


def _is_driver(obj: Object) -> bool:
    return (obj["metadata"].get("labels") or {}).get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT


def _is_ready(pod: Object) -> bool:
    return any(row == {"type": "Ready", "status": "True"} for row in pod["status"].get("conditions") or ())


def _ready(pod: Object) -> Object:
    rows = [{**_runs(one["name"]), "ready": True} for one in pod["spec"]["containers"]]
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": rows}


def _runs(name: str) -> Object:
    return {
        "name": name,
        "ready": False,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2023-11-14T22:13:20Z"}},
    }


def _waits(name: str, reason: str, said: str) -> Object:
    state = {"waiting": {"reason": reason, "message": said}}
    return {"phase": "Pending", "containerStatuses": [{"name": name, "restartCount": 0, "state": state}]}


def _ends(name: str, looks: int, said: str, *, key: str = "containerStatuses") -> Object:
    last = {"terminated": {"exitCode": 1, "message": said}}
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    row = {"name": name, "restartCount": looks, "state": state, "lastState": last, "ready": False}
    return {"phase": "Pending", key: [row]}
