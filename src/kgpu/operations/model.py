"""The data of node operations: records, the parts of nodes and pods that matter, and what is to be written.

All times are seconds since 1970 by the API server's clock, as the leader knows it.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from kgpu.base.plain import items, mapping, strings, text
from kgpu.base.printable import one_line
from kgpu.base.typed import convert
from kgpu.formats import gpu_report, mig_request, names, node_order, validation_report
from kgpu.formats.crd.nodeoperation import (
    ACT_SECONDS,
    ENDED_BY_PEOPLE,
    UPGRADE_SECONDS,
    MigDrain,
    NodeAct,
    NodeOperationSpec,
    NodeOperationStatus,
    OperationEvidence,
    OperationPhase,
    OperationType,
)
from kgpu.formats.gpu_report import GpuReport
from kgpu.formats.mig_request import MigProgress, MigRequest
from kgpu.formats.node_order import NodeOrder, OrderAnswer
from kgpu.formats.pod_origin import controller_reference
from kgpu.operations.driver_pods import DriverPod

Object: TypeAlias = dict[str, Any]

ENDED: Final = frozenset({OperationPhase.COMPLETE, OperationPhase.FAILED})
"""The operation is finished."""
BEGUN: Final = frozenset(OperationPhase) - ENDED - {OperationPhase.PENDING}
"""The operation holds its node and counts against the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A NodeOperation. ``version`` is its resourceVersion, ``created`` its creation time."""

    name: str
    uid: str
    version: str
    created: float
    spec: NodeOperationSpec
    status: NodeOperationStatus

    @property
    def node(self) -> str:
        """The node's name."""
        return self.spec.node_name

    @property
    def type(self) -> OperationType:
        """What is done to the node."""
        return OperationType(self.spec.type)

    @property
    def phase(self) -> OperationPhase:
        """How far the operation is."""
        return OperationPhase(self.status.phase)

    @property
    def act_id(self) -> str:
        """The ID under which the node is asked, "" before it is known."""
        return self.status.act.id if self.status.act is not None else ""

    @property
    def act_seconds(self) -> float:
        """How long the act may take."""
        usual = UPGRADE_SECONDS if self.type is OperationType.DRIVER_UPGRADE else ACT_SECONDS
        return float(self.spec.act_timeout_seconds or usual)

    @property
    def automatic(self) -> bool:
        """Whether a verdict called for it, and no person."""
        return self.spec.requested_by == names.REMEDIATION_REQUESTER

    @property
    def mig_drain(self) -> MigDrain:
        """Who goes before its GPUs are cut anew; those that hold them for all other types."""
        return MigDrain(self.spec.mig.drain) if self.spec.mig is not None else MigDrain.GPU

    @property
    def cordons(self) -> bool:
        """Whether no new pod may come to the node."""
        return not self.spec.gpus or self.mig_drain is MigDrain.NODE

    @property
    def begun(self) -> bool:
        """True while the operation holds its node."""
        return self.phase in BEGUN

    @property
    def ends_by_person(self) -> bool:
        """Whether a person can resume it."""
        return self.type in ENDED_BY_PEOPLE

    @property
    def takes_slot(self) -> bool:
        """Whether it counts as one of those that are worked on at a time. A Replace does not while it waits for a
        machine, nor while it gives its node back, which nothing delays.
        """
        waits = self.type is OperationType.REPLACE and self.phase in {OperationPhase.ACTING, OperationPhase.RESTORING}
        return self.begun and not waits

    @property
    def waits_for_machine(self) -> bool:
        """Whether it holds an empty node until its machine is replaced, which may take days."""
        return self.type is OperationType.REPLACE and self.phase is OperationPhase.ACTING

    @property
    def ended(self) -> bool:
        """True once the operation is finished."""
        return self.phase in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableOperation:
    """A NodeOperation that is invalid or from a later version: neither it nor its node is touched."""

    name: str
    uid: str
    node: str
    problem: str


def read_operation(obj: Mapping[str, Any]) -> Operation | UnreadableOperation:
    """Read a NodeOperation from the API server. A status that can't be read is never taken for an empty one."""
    metadata = mapping(obj.get("metadata"))
    name, uid = text(metadata.get("name")), text(metadata.get("uid"))
    try:
        spec = convert(obj.get("spec"), NodeOperationSpec)
        status = convert(obj.get("status") or {}, NodeOperationStatus)
        _check(spec, status)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        node = text(mapping(obj.get("spec")).get("nodeName"))
        return UnreadableOperation(name=name, uid=uid, node=node, problem=str(error))
    return Operation(
        name=name, uid=uid, version=text(metadata.get("resourceVersion")),
        created=moment_of(text(metadata.get("creationTimestamp"))) or 0.0, spec=spec, status=status,
    )  # fmt: skip


def _check(spec: NodeOperationSpec, status: NodeOperationStatus) -> None:
    """Raises ValueError or OverflowError for an invalid time or a status that this engine would not write."""
    times = (status.phase_since, status.phase_deadline, status.started_at, status.completed_at)
    for moment in (spec.not_before, spec.deadline, *times):
        moment_of(moment)
    phase = OperationPhase(status.phase)
    if phase in {OperationPhase.RESTORING, *ENDED} and not status.result:
        raise ValueError(f"it is {phase} without a result")
    if phase in BEGUN and not (status.node_uid and status.phase_since):
        raise ValueError(f"it is {phase}, and which node is meant, or since when, is not on record")


def moment_of(stamp: str | None) -> float | None:
    """The seconds since 1970 of an RFC 3339 time, None for an empty one. Raises ValueError, OverflowError."""
    if not stamp:
        return None
    moment = dt.datetime.fromisoformat(stamp)
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNode:
    """A Node. ``owners`` are the uids of the operations that hold it, from kgpu's annotation. The next four come from
    ``managedFields``: ``held``, whether the engine has set anything; ``cordoned_by_us``, whether that includes
    ``unschedulable``; ``held_at``, when it was set. ``marked`` is whether it includes the label that the machine needs
    to be replaced.
    """

    name: str
    uid: str
    unschedulable: bool = False
    owners: tuple[str, ...] = ()
    held: bool = False
    cordoned_by_us: bool = False
    held_at: float | None = None
    marked: bool = False
    ready: bool = True
    boot_id: str = ""
    has_gpus: bool = False
    gpus: Mapping[str, int] = field(default_factory=dict)
    """The allocatable GPUs by resource."""
    checked_boot: str = ""
    """The boot ID in the validator's report, "" without a report or a boot ID in it."""
    validated: bool = False
    """Whether every check in that boot has passed."""
    report: GpuReport | None = None
    """The agent's GPU report, if its condition says that some GPUs are unhealthy; otherwise None."""
    gpus_healthy: bool = False
    """Whether the agent's condition says that all GPUs are healthy."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels that decisions are made from."""
    order: NodeOrder | None = None
    """What the agent is ordered to do for an operation on its GPUs."""
    answer: OrderAnswer | None = None
    """The agent's answer."""
    mig_request: MigRequest | None = None
    """How the node's MIG manager asks for its GPUs to be cut."""
    mig_progress: MigProgress | None = None
    """What the operator has told it of that."""
    mig_told: bool = False
    """Whether the operator's word is there, even one that can't be read."""
    next_driver: str = ""
    """The DaemonSet of drivers that the operator gives the node to, "" once it has."""


def read_node(obj: Mapping[str, Any], groups: Collection[str] = ()) -> TargetNode:
    """Read a Node from the API server, with the labels in ``groups``, by which the budget groups nodes. The other
    labels of a thousand nodes would be most of what is kept, and each change of one would be news.
    """
    metadata, status = mapping(obj.get("metadata")), mapping(obj.get("status"))
    labels = strings(metadata.get("labels"))
    kept = {key: sys.intern(labels[key]) for key in (*_LABELS, *groups) if key in labels}
    annotations = strings(metadata.get("annotations"))
    owners = annotations.get(names.CORDON_ANNOTATION, "")
    ours, conditions = _own_entry(metadata), _conditions(status)
    return TargetNode(
        name=text(metadata.get("name")), uid=text(metadata.get("uid")),
        unschedulable=mapping(obj.get("spec")).get("unschedulable") is True,
        owners=tuple(uid for uid in owners.split(",") if uid)[:MAX_OWNERS],
        held=bool(ours), cordoned_by_us="f:unschedulable" in mapping(mapping(ours.get("fieldsV1")).get("f:spec")),
        held_at=_moment(ours.get("time")), marked=_is_marked(ours),
        ready=conditions.get("Ready") == "True",
        boot_id=text(mapping(status.get("nodeInfo")).get("bootID")),
        has_gpus=labels.get(names.LABEL_GPU_PRESENT) == "true" or names.AGENT_NODE_LABEL in labels,
        gpus=_gpus(mapping(status.get("allocatable"))), labels=kept,
        checked_boot=_checked_boot(annotations),
        validated=conditions.get(names.VALIDATED_CONDITION) == "True", report=_report(annotations, conditions),
        gpus_healthy=conditions.get(names.GPUS_HEALTHY_CONDITION) == "True",
        order=node_order.read_order(annotations), answer=node_order.read_answer(annotations),
        mig_request=_request(annotations), mig_progress=mig_request.read_progress(annotations),
        mig_told=names.MIG_OPERATION_ANNOTATION in annotations,
        next_driver=one_line(annotations.get(names.NEXT_DRIVER, ""), MAX_WHY),
    )  # fmt: skip


def _request(annotations: Mapping[str, str]) -> MigRequest | None:
    """What the node asks for by its label of MIG, or by AMD's of partition profiles."""
    keys = (names.MIG_REQUEST_ANNOTATION, names.PARTITION_REQUEST_ANNOTATION)
    return next((asked for key in keys if (asked := mig_request.read_request(annotations, key)) is not None), None)


MAX_OWNERS: Final = 16
_LABELS: Final = (names.REMEDIATION_LABEL, names.TAINT_CONTROL_PLANE)
_GPUS: Final = (names.GPU_RESOURCE, names.MIG_RESOURCE_PREFIX, names.AMD_GPU_RESOURCE, names.GAUDI_RESOURCE)
_MAX_RESOURCES: Final = 64


def _gpus(allocatable: Mapping[str, Any]) -> dict[str, int]:
    rows = sorted((name, text(count)) for name, count in allocatable.items() if name.startswith(_GPUS))
    counts = {name: int(count) for name, count in rows if count.isascii() and count.isdecimal() and len(count) < 10}
    return dict(list(filter(lambda row: row[1], counts.items()))[:_MAX_RESOURCES])


def _conditions(status: Mapping[str, Any]) -> dict[str, str]:
    """The status of each condition by its type; the first one counts."""
    rows = map(mapping, items(status.get("conditions")))
    return {text(row.get("type")): text(row.get("status")) for row in reversed(list(rows))}


def _report(annotations: Mapping[str, str], conditions: Mapping[str, str]) -> GpuReport | None:
    ill = conditions.get(names.GPUS_HEALTHY_CONDITION) == "False"
    return gpu_report.of_node(annotations) if ill else None


def _checked_boot(annotations: Mapping[str, str]) -> str:
    report = validation_report.of_node(annotations)
    return report.boot if report is not None else ""


def _own_entry(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ``managedFields`` entry of what the engine has applied to a Node; {} without one."""
    for entry in map(mapping, items(metadata.get("managedFields"))):
        if entry.get("manager") == names.OPERATIONS_FIELD_MANAGER and entry.get("operation") == "Apply":
            return entry
    return {}


def _is_marked(ours: Mapping[str, Any]) -> bool:
    fields = mapping(mapping(ours.get("fieldsV1")).get("f:metadata"))
    return f"f:{names.NEEDS_REPLACEMENT_LABEL}" in mapping(fields.get("f:labels"))


GRACE_SECONDS: Final = 30
"""The grace period of a pod that sets none, from Kubernetes' API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePod:
    """A pod on a node that is being emptied. ``owner`` is its controller as (kind, name), ("", "") without one;
    ``deleted_at`` is when its grace period ends, None while nobody has deleted or evicted it.
    """

    namespace: str
    name: str
    uid: str
    node: str = ""
    owner: tuple[str, str] = ("", "")
    phase: str = "Running"
    mirror: bool = False
    empty_dirs: bool = False
    deleted_at: float | None = None
    finalizers: tuple[str, ...] = ()
    tolerates_cordon: bool = False
    created: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    grace: int = GRACE_SECONDS
    """Seconds that its containers get to end, from its spec."""
    uses_gpus: bool = False
    """Whether it asks for GPUs, or has resource claims."""
    has_devices: bool = False
    """Whether a container that stays asks a device plugin for accelerators."""

    @property
    def ended(self) -> bool:
        """True for a pod that has run to its end."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def where(self) -> str:
        """The pod as namespace/name, for people."""
        return f"{self.namespace}/{self.name}"


def read_pod(obj: Mapping[str, Any]) -> NodePod:
    """Read a Pod from the API server."""
    metadata, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
    owner = controller_reference(obj)
    return NodePod(
        namespace=text(metadata.get("namespace")), name=text(metadata.get("name")), uid=text(metadata.get("uid")),
        node=text(spec.get("nodeName")), owner=(text(owner.get("kind")), text(owner.get("name"))),
        phase=text(mapping(obj.get("status")).get("phase")),
        mirror=names.MIRROR_ANNOTATION in strings(metadata.get("annotations")),
        empty_dirs=any("emptyDir" in mapping(volume) for volume in items(spec.get("volumes"))),
        deleted_at=_deleted_at(metadata),
        finalizers=tuple(map(str, items(metadata.get("finalizers")))),
        tolerates_cordon=any(_tolerates_cordon(mapping(row)) for row in items(spec.get("tolerations"))),
        created=_moment(metadata.get("creationTimestamp")), labels=strings(metadata.get("labels")),
        grace=_grace(spec), uses_gpus=asks_for_gpus(obj), has_devices=_has_devices(spec),
    )  # fmt: skip


def _grace(spec: Mapping[str, Any]) -> int:
    seconds = spec.get("terminationGracePeriodSeconds")
    return max(0, seconds) if type(seconds) is int else GRACE_SECONDS


def asks_for_gpus(obj: Mapping[str, Any]) -> bool:
    """Whether a container of a Pod asks for accelerators, or the Pod has resource claims."""
    spec = mapping(obj.get("spec"))
    containers = map(mapping, (*items(spec.get("containers")), *items(spec.get("initContainers"))))
    return bool(items(spec.get("resourceClaims"))) or any(_is_of_gpus(resource) for resource, _ in _limits(containers))


def _limits(containers: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Each resource that containers ask for, and how much of it."""
    for container in containers:
        for resource, quantity in mapping(mapping(container.get("resources")).get("limits")).items():
            yield str(resource), str(quantity)


def _has_devices(spec: Mapping[str, Any]) -> bool:
    """Whether the kubelet names the pod as one that has accelerators: of init containers it only names sidecars."""
    sidecars = [row for row in map(mapping, items(spec.get("initContainers"))) if row.get("restartPolicy") == "Always"]
    containers = (*map(mapping, items(spec.get("containers"))), *sidecars)
    own = f"{names.NVIDIA_DOMAIN}/"
    return any(
        (resource.startswith(own) or _is_of_gpus(resource)) and quantity != "0"
        for resource, quantity in _limits(containers)
    )


def _is_of_gpus(resource: str) -> bool:
    """Whether it counts accelerators. AMD's partitions are ``amd.com/<compute>_<memory>``, such as cpx_nps4."""
    return resource.startswith(_GPUS) or (resource.startswith(names.AMD_RESOURCE_PREFIX) and "_nps" in resource)


def _moment(stamp: Any) -> float | None:
    """Read a time from outside; None if it is invalid."""
    try:
        return moment_of(text(stamp))
    except (ValueError, OverflowError):
        return None


def _deleted_at(metadata: Mapping[str, Any]) -> float | None:
    """The deletionTimestamp, which is when the grace period ends."""
    try:
        return moment_of(text(metadata.get("deletionTimestamp")))
    except (ValueError, OverflowError):
        return 0.0


def _tolerates_cordon(row: Mapping[str, Any]) -> bool:
    key, effect = text(row.get("key")), text(row.get("effect"))
    if effect not in {"", "NoSchedule"} or key not in {"", names.TAINT_UNSCHEDULABLE}:
        return False
    return row.get("operator") == "Exists" or (key != "" and text(row.get("value")) == "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The API server's answer to the last eviction of a pod, or to its deletion. ``again_at`` is the earliest time to
    try again; ``by_budget`` says that PodDisruptionBudgets refuse the eviction.
    """

    why: str
    again_at: float
    fatal: bool = False
    times: int = 1
    by_budget: bool = False


REFUSED: Final = 13
"""Exit code of an act that refuses: neither a signal nor the machine's end produces it."""
UNKNOWN: Final = 14
"""Exit code of an act that was begun before under its ID, with a result that is not known."""
HANGS: Final = 15
"""Exit code of an act whose program did not come back from the driver."""
MAX_WHY: Final = 300
"""The most characters of a reason that quotes a pod or the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActPod:
    """A pod that acts on its node. ``act`` is the act's ID; ``why`` is what it waits for or what it said; ``ended`` is
    True once it has ended, with ``exit_code``, None if that is not known.
    """

    name: str
    uid: str
    act: str
    why: str = ""
    ended: bool = False
    exit_code: int | None = None

    @property
    def refused(self) -> bool:
        """True if it refused to act, so that nothing has happened."""
        return self.exit_code == REFUSED


def read_act_pod(obj: Mapping[str, Any]) -> ActPod:
    """Read an act's Pod from the API server."""
    metadata, status = mapping(obj.get("metadata")), mapping(obj.get("status"))
    container = next(iter(map(mapping, items(status.get("containerStatuses")))), {})
    state = mapping(container.get("state"))
    ended, waiting = mapping(state.get("terminated")), mapping(state.get("waiting"))
    said = text(ended.get("message")) or text(waiting.get("message")) or text(waiting.get("reason"))
    if not state:
        said = "its node's kubelet has not started it yet"
    return ActPod(
        name=text(metadata.get("name")), uid=text(metadata.get("uid")),
        act=strings(metadata.get("labels")).get(names.ACT_LABEL, ""), why=one_line(said, MAX_WHY),
        ended=bool(ended) or text(status.get("phase")) in {"Succeeded", "Failed"},
        exit_code=ended["exitCode"] if type(ended.get("exitCode")) is int else None,
    )  # fmt: skip


# What is to be written


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Write the status of an operation, on the version that was read."""

    operation: Operation
    status: NodeOperationStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldNode:
    """Let these operations hold the Node: their uids are written on it. Without owners, the engine's fields are
    removed.

    ``cordon`` makes it unschedulable; it is False for a node that was unschedulable before, and for an operation on
    GPUs alone. ``order`` is what the node's agent has to do for that one. ``mark`` labels the Node as one whose machine
    needs to be replaced.
    """

    node: TargetNode
    owners: tuple[str, ...]
    cordon: bool
    order: NodeOrder | None = None
    mark: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Evict a pod; disruption budgets may refuse it. ``grace`` is in seconds, None for the pod's own grace period."""

    pod: NodePod
    grace: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete a pod, whatever disruption budgets say. ``grace`` is in seconds and never 0, None for the pod's own grace
    period.
    """

    pod: NodePod
    grace: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteDriverPod:
    """Delete the pod of a node's driver, so that its DaemonSet makes one of the template that it has now."""

    pod: DriverPod


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAct:
    """Create the pod that acts on its node, once per act ID."""

    operation: Operation
    act: NodeAct
    node: TargetNode


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAct:
    """Delete the pod of a finished act."""

    pod: ActPod


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Delete an operation that finished long ago."""

    operation: Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectEvidence:
    """Begin to collect what is known of the operation's node; nothing waits for it."""

    operation: Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvidence:
    """What came of collecting: where it is kept, or ``problem``, why there is none. Neither while it is going on."""

    kept: OperationEvidence | None = None
    problem: str = ""


Write: TypeAlias = Record | HoldNode | Evict | Delete | DeleteDriverPod | StartAct | EndAct | Forget | CollectEvidence
"""A Record comes first: what may happen next is on record before it happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to write now, and when to look again if nothing changes (None: only changes matter)."""

    writes: tuple[Write, ...] = ()
    again_at: float | None = None
