"""What people ask of the engine: to create, approve, cancel or resume an operation, and to preview one.

It runs in clients of the API server, with the rights of the person who runs them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.plain import mapping, number, strings, text
from kgpu.fit.model import BudgetView
from kgpu.fit.read import label_selector
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import (
    ROLLOUT_STOPPED,
    MigDrain,
    NodeOperationSpec,
    OnTimeout,
    OperationDrain,
    OperationDriver,
    OperationType,
)
from kgpu.formats.xid.action import Action
from kgpu.kube.kinds import DAEMON_SETS, DISRUPTION_BUDGETS, NODE_OPERATIONS
from kgpu.kube.port import LEASES, NODES, PODS, KubeApi, KubeRefusedError, Object, Resource, Selector
from kgpu.operations.drain import Evicted, Fate, PodFate, fate
from kgpu.operations.driver_pods import DriverPod, driver_on, read_driver_pod
from kgpu.operations.foresight import PlannedStep, UpgradeScene, upgrade_steps
from kgpu.operations.model import (
    NodePod,
    Operation,
    TargetNode,
    UnreadableOperation,
    asks_for_gpus,
    read_node,
    read_operation,
    read_pod,
)

SELF_REVIEWS: Final = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
_MAX_PREFIX: Final = 200
_APPROVE: Final = "the right to approve: the verb approve on nodeoperations.kgpu.dev"
_ROLE: Final = "the ClusterRole kgpu-node-operations has that right: ask who has it, or your admin for it"


class Word(enum.StrEnum):
    """What a person can tell an operation, as the field of its spec."""

    APPROVE = "approved"
    CANCEL = "cancel"
    RESUME = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What emptying a node would do now. ``blocked`` maps pods that have to go to the reason why a disruption budget
    refuses them now. ``spec`` is the operation's; ``steps`` are those of an upgrade of a driver, and ``operation`` the
    one that exists already.
    """

    node: TargetNode
    pods: tuple[PodFate, ...]
    blocked: Mapping[str, str]
    of_gpus: bool = False
    """The pods are those with GPUs; only the ones that hold the GPUs that are meant would go."""
    forced_after: int | None = None
    """Seconds after which pods are deleted past disruption budgets, None for never."""
    spec: NodeOperationSpec | None = None
    steps: tuple[PlannedStep, ...] = ()
    operation: Operation | None = None

    @property
    def refused(self) -> tuple[PodFate, ...]:
        """The pods that may not go: with any of these, the operation fails before the first eviction."""
        return tuple(row for row in self.pods if row.fate is Fate.REFUSE)

    def forces(self, pod: NodePod) -> bool:
        """Whether a pod would be deleted if its disruption budgets go on to refuse it."""
        return self.forced_after is not None and pod.where in self.blocked

    def why_held(self, pod: NodePod) -> str:
        """Why a pod that has to go can't be evicted now, and what follows; "" if it can."""
        why = self.blocked.get(pod.where, "")
        return f"{why}; after {self.forced_after} s it would be deleted" if self.forces(pod) else why


async def known_operations(api: KubeApi) -> tuple[Operation | UnreadableOperation, ...]:
    """All operations, the oldest first. Raises KubeError, which says so if the cluster lacks the kind."""
    try:
        listing = await api.list(NODE_OPERATIONS)
    except KubeRefusedError as refused:
        if refused.code == 404:
            raise _no_kind() from refused
        raise
    rows = [read_operation(obj) for obj in listing.items]
    return tuple(sorted(rows, key=lambda row: (getattr(row, "created", 0.0), row.name)))


async def known_operation(api: KubeApi, name: str) -> Operation | UnreadableOperation:
    """One operation by name. Raises KubeError, and ConfigError if it does not exist."""
    obj = await api.get(NODE_OPERATIONS, name)
    if obj is None:
        await known_operations(api)
        raise ConfigError(
            f"there is no operation {name:.100}", "the name of a NodeOperation", "see `kgpu operations list`"
        )
    return read_operation(obj)


async def may_begin(api: KubeApi, node: str) -> str:
    """Return the node's uid if it has no unfinished operation; one that was merely suggested gives way.

    Raises KubeError, and ConfigError if it has one.
    """
    known = await api.get(NODES, node)
    if known is None:
        raise ConfigError(f"the cluster has no node {node:.100}", "the name of a node", "see `kubectl get nodes`")
    for other in await known_operations(api):
        if isinstance(other, Operation) and other.node == node and other.spec.approved and not other.ended:
            raise ConfigError(
                f"{node} has an operation already: {other.spec.type} {other.name}, {other.status.phase}",
                "one at a time",
                f"see `kgpu operations show {other.name}`; end it with `kgpu operations cancel {other.name}`",
            )
    return text(mapping(known.get("metadata")).get("uid"))


async def make_operation(api: KubeApi, node: str, spec: NodeOperationSpec) -> Operation:
    """Create an operation on a node. Raises KubeError, also where the user may not let it begin, and ConfigError for a
    missing node or one that has an operation.
    """
    if spec.duration_seconds is not None and OperationType(spec.type) is not OperationType.MAINTENANCE:
        raise ConfigError(
            f"a {spec.type} is to last {spec.duration_seconds} s", "durationSeconds only with a Maintenance",
            "leave it out: others end by themselves",
        )  # fmt: skip
    if OperationType(spec.type) is OperationType.MIG_CHANGE:
        raise ConfigError(
            f"a MigChange of {node:.100} can't be made by hand: how its GPUs have to be cut, only the node knows",
            f"the node's label {names.MIG_CONFIG_LABEL} or {names.AMD_PROFILE_LABEL}, from which kgpu makes it",
            f"kubectl label node {node:.100} {names.MIG_CONFIG_LABEL}=CONFIG --overwrite; what it does: kgpu mig plan",
        )
    spec = msgspec.structs.replace(spec, node_uid=await may_begin(api, node))
    body: Object = {
        "metadata": {"generateName": f"{spec.type.lower()}-{node[:_MAX_PREFIX]}-"},
        "spec": msgspec.to_builtins(spec),
    }
    try:
        answer = await api.create(NODE_OPERATIONS, body)
    except KubeRefusedError as refused:
        if not _is_for_approval(refused):
            raise
        raise KubeError(
            f"you may not let a {spec.type} begin", _APPROVE,
            f"ask for it: the same command with --ask makes one that waits for approval; {_ROLE}",
        ) from refused  # fmt: skip
    made = read_operation(answer)
    if lost := _lost(body["spec"], mapping(answer.get("spec"))):
        await _withdraw(api, made, lost)
    if isinstance(made, UnreadableOperation):
        raise KubeError(
            f"the operation {made.name} can't be read back: {made.problem}",
            "a definition of NodeOperation of this version",
            "bring the cluster's up to date: kgpu crds apply",
        )
    return made


def _lost(sent: Mapping[str, Any], stored: Mapping[str, Any], where: str = "spec") -> list[str]:
    """The fields that an API server has dropped because its definition of the kind does not know them."""
    lost: list[str] = []
    for key, value in sent.items():
        if key not in stored:
            lost += [f"{where}.{key}"] if value is not None else []
        elif isinstance(value, Mapping):
            lost += _lost(value, mapping(stored[key]), f"{where}.{key}")
    return lost


async def _withdraw(api: KubeApi, made: Operation | UnreadableOperation, lost: Sequence[str]) -> None:
    """Cancel an operation that would not be what was asked for. Raises KubeError."""
    try:
        await api.patch(NODE_OPERATIONS, made.name, {"spec": {str(Word.CANCEL): True}})
        come = "it is cancelled"
    except KubeRefusedError:
        come = f"it goes on without; to cancel it: kgpu operations cancel {made.name}"
    raise KubeError(
        f"the cluster's definition of NodeOperation is older than this kgpu: {made.name} has lost {', '.join(lost)}; "
        f"{come}",
        "a definition of this version",
        "bring the cluster's up to date, and its operator: kgpu crds apply, and an upgrade of the chart",
    )


async def say(api: KubeApi, name: str, word: Word) -> Operation | UnreadableOperation:
    """Approve, cancel or resume an operation. Raises KubeError, and ConfigError if it is missing or finished."""
    known = await known_operation(api, name)
    if word is Word.RESUME and isinstance(known, Operation) and not known.ends_by_person:
        raise ConfigError(
            f"{name} is a {known.spec.type}, which ends by itself",
            "a Maintenance or a Replace",
            f"to end it early: kgpu operations cancel {name}",
        )
    if isinstance(known, Operation) and known.ended:
        raise ConfigError(
            f"{name} is over: {known.status.phase}, {known.status.result}",
            "an operation that is not over",
            "make a new one: kgpu node --help",
        )
    try:
        return read_operation(await api.patch(NODE_OPERATIONS, name, {"spec": _told(known, word)}))
    except KubeRefusedError as refused:
        if not _is_for_approval(refused):
            raise
        raise KubeError(f"you may not approve {name}", _APPROVE, _ROLE) from refused


def _told(known: Operation | UnreadableOperation, word: Word) -> Object:
    """The fields of a person's word. To approve one whose rollout has stopped lets it begin all the same."""
    stopped = isinstance(known, Operation) and known.status.reason == ROLLOUT_STOPPED
    return {str(word): True, **({"evenIfStopped": True} if word is Word.APPROVE and stopped else {})}


def _is_for_approval(refused: KubeRefusedError) -> bool:
    """Whether the chart's admission policy wants the right to approve."""
    return refused.code in (403, 422) and f"'{names.APPROVAL_POLICY}'" in refused.message


async def who_am_i(api: KubeApi) -> str:
    """The user's name according to the API server, "" if it does not say."""
    try:
        answer = await api.create(SELF_REVIEWS, {"metadata": {}})
    except KubeRefusedError:
        return ""
    return text(mapping(mapping(answer.get("status")).get("userInfo")).get("username"))


async def need_reset(api: KubeApi, name: str) -> tuple[str, ...]:
    """The UUIDs of a node's GPUs that need a reset now by the report of its agent; one that goes on working waits until
    it is idle. Raises KubeError, and ConfigError if the node does not exist or no GPU needs one.
    """
    node = await api.get(NODES, name)
    if node is None:
        raise ConfigError(f"the cluster has no node {name:.100}", "the name of a node", "see `kubectl get nodes`")
    report = read_node(node).report
    gpus = report.gpus if report is not None else ()
    needy = (gpu for gpu in gpus if gpu.action is Action.RESET_GPU and not gpu.works and not gpu.muted)
    uuids = tuple(gpu.uuid for gpu in needy if gpu.uuid)
    if not uuids:
        raise ConfigError(
            f"no GPU of {name:.100} needs a reset now, by the report of its agent", "a verdict that calls for one",
            "name the GPU: --gpu UUID",
        )  # fmt: skip
    return uuids


async def preview_of(
    api: KubeApi, name: str, spec: NodeOperationSpec, operation: Operation | None = None
) -> Preview:  # fmt: skip
    """What an operation would do to a node now; ``operation`` is the one that exists already. Raises as ``preview``."""
    of_gpus = bool(spec.gpus) and (spec.mig is None or spec.mig.drain != MigDrain.NODE.value)
    seen = await preview(api, name, spec.drain, of_gpus=of_gpus, driver=spec.driver)
    steps: tuple[PlannedStep, ...] = ()
    if spec.driver is not None:
        listing = await api.list(PODS, selector=Selector(fields=(("spec.nodeName", name),)))
        exchanged = _driver_pod(listing.items, name, spec.driver)
        scene = UpgradeScene(
            node=seen.node, pods=[read_pod(obj) for obj in listing.items],
            driver_pod=f"{exchanged.namespace}/{exchanged.name}" if exchanged is not None else "",
            operation=operation, others=[row for row in await known_operations(api) if isinstance(row, Operation)],
        )  # fmt: skip
        steps = upgrade_steps(spec, scene)
    return dataclasses.replace(seen, spec=spec, steps=steps, operation=operation)


async def preview(
    api: KubeApi, name: str, drain: OperationDrain, *, of_gpus: bool = False, driver: OperationDriver | None = None
) -> Preview:
    """What emptying a node would do now; with ``of_gpus``, which pods may hold some of its GPUs: which ones do is known
    to its agent alone. ``driver`` is the one that is exchanged then. Raises KubeError, and ConfigError if the node does
    not exist.
    """
    node = await api.get(NODES, name)
    if node is None:
        raise ConfigError(f"the cluster has no node {name:.100}", "the name of a node", "see `kubectl get nodes`")
    listing = await api.list(PODS, selector=Selector(fields=(("spec.nodeName", name),)))
    only = of_gpus or drain.only_gpu_pods
    pods = [read_pod(obj) for obj in listing.items if not only or asks_for_gpus(obj)]
    exchanged = _driver_pod(listing.items, name, driver)
    known = Evicted(
        daemon_sets=await _daemon_sets(api, pods), own_pod=await _leader(api, pods),
        exchanges_driver=driver is not None, driver_pod=exchanged.uid if exchanged is not None else "",
    )  # fmt: skip
    fates = tuple(fate(pod, drain, known) for pod in sorted(pods, key=lambda pod: pod.where))
    going = [row.pod for row in fates if row.fate is Fate.EVICT]
    forced_after = drain.timeout_seconds if OnTimeout(drain.on_timeout) is OnTimeout.FORCE else None
    return Preview(
        node=read_node(node), pods=fates, blocked=await _blocked(api, going), of_gpus=of_gpus, forced_after=forced_after
    )  # fmt: skip


def _driver_pod(pods: Iterable[Object], node: str, driver: OperationDriver | None) -> DriverPod | None:
    """The pod that an upgrade exchanges, None if there is none, or it goes already."""
    if driver is None:
        return None
    label = (names.COMPONENT_LABEL, names.DRIVER_COMPONENT)
    metadata = ((obj, mapping(obj.get("metadata"))) for obj in pods)
    of_drivers = (
        read_driver_pod(obj)
        for obj, meta in metadata
        if meta.get("namespace") == driver.namespace and label in strings(meta.get("labels")).items()
    )
    pod = driver_on(of_drivers, node, driver.daemon_set)
    return pod if pod is not None and not pod.ending else None


async def _leader(api: KubeApi, pods: Sequence[NodePod]) -> tuple[str, str]:
    """The pod of the leading operator, from its Lease; ("", "") if it is none of these, or the Lease can't be read."""
    try:
        leases = await api.list(LEASES, selector=Selector(fields=(("metadata.name", names.OPERATOR_LEASE),)))
    except KubeRefusedError:
        return "", ""
    for lease in leases.items:
        namespace = text(mapping(lease.get("metadata")).get("namespace"))
        leader = text(mapping(lease.get("spec")).get("holderIdentity")).rpartition("_")[0]
        if any((pod.namespace, pod.name) == (namespace, leader) for pod in pods):
            return namespace, leader
    return "", ""


async def _daemon_sets(api: KubeApi, pods: Sequence[NodePod]) -> dict[tuple[str, str], bool]:
    """Whether each DaemonSet that pods name exists; one that this user may not read counts as existing."""
    there = {}
    for namespace, name in sorted({(pod.namespace, pod.owner[1]) for pod in pods if pod.owner[0] == "DaemonSet"}):
        try:
            known: Any = await api.get(DAEMON_SETS, name, namespace=namespace)
        except KubeRefusedError:
            known = True
        there[namespace, name] = known is not None
    return there


async def _blocked(api: KubeApi, pods: Sequence[NodePod]) -> dict[str, str]:
    """Why disruption budgets would refuse pods now, by namespace/name; empty if this user may not read budgets."""
    try:
        listing = await api.list(DISRUPTION_BUDGETS)
    except KubeRefusedError:
        return {}
    budgets = [_budget(obj) for obj in listing.items]
    blocked = {}
    for pod in pods:
        own = [view for view in budgets if view.namespace == pod.namespace and view.selector.matches(pod.labels)]
        why = "" if pod.ended else _refusal(own)
        if why:
            blocked[pod.where] = why
    return blocked


def _budget(obj: Object) -> BudgetView:
    """A PodDisruptionBudget as the eviction API sees it: an empty selector selects every pod of the namespace."""
    metadata, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
    return BudgetView(
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        selector=label_selector(spec.get("selector")),
        allowed=number(mapping(obj.get("status")).get("disruptionsAllowed")),
    )


def _refusal(budgets: Sequence[BudgetView]) -> str:
    if len(budgets) > 1:
        names = ", ".join(view.name for view in budgets)
        return f"several PodDisruptionBudgets select it, so it can't be evicted: {names}"
    if budgets and budgets[0].allowed <= 0:
        return f"its PodDisruptionBudget {budgets[0].name} allows no disruption now"
    return ""


def _no_kind() -> KubeError:
    return KubeError(
        "the cluster has no kind NodeOperation",
        "kgpu's operator, and the definitions of its version",
        "install or upgrade kgpu's chart; after an upgrade without operator.upgradeCRD: kgpu crds apply",
    )
