"""Decides which operations the health of GPUs calls for. Pure.

What counts is the current verdict of a node's agent in the node's current boot: no events, nothing from an earlier
boot, and nothing from a node that does not answer. GPUs that need no more than a reset are reset together, once per
boot; if the act fails or the verdict returns, the node reboots. A verdict leads to one reboot per boot. If it returns
after the reboot it leads to another one, as often as the policy allows in a day; after that the machine has to be
replaced, for which a person has to act (``ladder``). A node that waits for that no longer counts as calling. Many nodes
at once, or acts that fail on one node after the other, suggest that the verdicts are wrong or share another cause: the
breaker opens, and a person closes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import NodeOperationSpec, OperationType
from kgpu.formats.gpu_report import ReportedGpu
from kgpu.formats.xid.action import Action
from kgpu.operations.config import RemediationPolicy, Strongest
from kgpu.operations.ladder import ALLOWED, FAILURES, end_of, name_of, reboots, rung
from kgpu.operations.model import Operation, TargetNode, moment_of

SETTLE: Final = 600.0
"""Seconds after an operation in which a node's verdicts are ignored: its readings have to be renewed first."""
KEPT: Final = 300.0
"""Seconds for which an operation that has not begun outlives its verdict: one that flaps is suggested once."""
BREAKER_WINDOW: Final = 600.0
BREAKER_NODES: Final = 3
BREAKER_SHARE: Final = 0.2
"""At least ``BREAKER_NODES`` nodes, and more than this share of those with GPUs, open the breaker."""
FAILED_ACTS: Final = 3
FAILED_WINDOW: Final = 3600.0
"""So many acts in a row that fail on different nodes within this time open the breaker, too."""
_REPAIRS: Final = frozenset({Action.RESET_GPU, Action.REBOOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedOperation:
    """An operation to create. Its name is derived from the boot, so creating it twice yields one."""

    name: str
    spec: NodeOperationSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationPlan:
    """What to create, approve and withdraw: ``withdraw`` are operations that have not begun and that nothing calls for
    any more. ``breaker`` is why remediation stops until a person acts, "" while the breaker is closed; ``calling`` are
    the nodes that opened it.
    """

    create: tuple[WantedOperation, ...] = ()
    approve: tuple[Operation, ...] = ()
    withdraw: tuple[Operation, ...] = ()
    breaker: str = ""
    calling: tuple[str, ...] = ()
    given_up: Mapping[str, str] = field(default_factory=dict)
    """Nodes that still call for a repair, and why nothing more is done about them in this boot or on this day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationMemory:
    """What the engine has seen before: ``closed_at`` is when a person has closed the breaker, ``seen`` are the nodes
    that this person knew of and that have called since, and ``well_since`` says since when the GPUs of a node have been
    healthy, as far as that has been followed.
    """

    closed_at: float = 0.0
    seen: Collection[str] = ()
    well_since: Mapping[str, float] = field(default_factory=dict)

    def well_for(self, node: str, now: float) -> float:
        """For how many seconds a node's GPUs have been healthy."""
        return now - self.well_since.get(node, now)


NOTHING_SEEN: Final = RemediationMemory()


def remediate(
    nodes: Mapping[str, TargetNode], operations: Sequence[Operation], policy: RemediationPolicy, now: float,
    memory: RemediationMemory = NOTHING_SEEN,
) -> RemediationPlan:  # fmt: skip
    """What the verdicts of the nodes, by name, call for now, given that the breaker is closed. Failures from before a
    person has closed it, and nodes that were known then, no longer open it.
    """
    ours = [operation for operation in operations if operation.automatic]
    by_node: dict[str, list[Operation]] = {}
    for operation in operations:
        by_node.setdefault(operation.node, []).append(operation)
    with_gpus = [node for node in nodes.values() if node.has_gpus]
    due = {
        node.name: _wanted(node, gpus, by_node.get(node.name, ()), policy, now)
        for node in with_gpus
        if (gpus := calls_for_repair(node))
    }
    withdraw = tuple(
        operation
        for operation in ours
        if _is_moot(operation, nodes.get(operation.node), due.get(operation.node), memory.well_for(operation.node, now))
    )
    if policy.strongest is Strongest.OFF:
        unbegun = tuple(operation for operation in ours if not operation.begun and not operation.ended)
        return RemediationPlan(withdraw=unbegun)
    waiting_for_machines = {operation.node for operation in operations if operation.waits_for_machine}
    if breaker := _breaker(due.keys() - waiting_for_machines, ours, len(with_gpus), now, memory):
        return RemediationPlan(breaker=breaker[0], calling=breaker[1], withdraw=withdraw)
    made = {operation.name: operation for operation in operations}
    left = {name: [row for row in rows if row not in withdraw] for name, rows in by_node.items()}
    waiting = (operation for operation in ours if operation.node in due and not operation.ended)
    return RemediationPlan(
        withdraw=withdraw,
        create=tuple(
            wanted
            for name, wanted in due.items()
            if wanted.name not in made and _is_due(left.get(name, ()), wanted, policy, now)
        ),
        given_up=_all_given_up(due, made, left, policy, now),
        # They were created as suggestions; the policy now allows them without a person.
        approve=tuple(
            operation
            for operation in waiting
            if _allows(policy, operation.type)
            and not operation.spec.approved
            and not operation.begun
            and operation not in withdraw
        ),
    )


def _allows(policy: RemediationPolicy, kind: OperationType) -> bool:
    return kind in ALLOWED.get(policy.strongest, frozenset())


def calls_for_repair(node: TargetNode) -> tuple[ReportedGpu, ...]:
    """The GPUs that need a reset, or their node to reboot; empty if that is not certain or not wanted."""
    report = node.report
    if not (node.ready and node.boot_id) or report is None or report.unreadable:
        return ()
    if report.boot != node.boot_id or _is_left_alone(node.labels):
        return ()
    return tuple(gpu for gpu in report.gpus if not gpu.works and not gpu.muted and gpu.action in _REPAIRS)


def _is_left_alone(labels: Mapping[str, str]) -> bool:
    return labels.get(names.REMEDIATION_LABEL) == "disabled" or names.TAINT_CONTROL_PLANE in labels


def _is_moot(operation: Operation, node: TargetNode | None, wanted: WantedOperation | None, well_for: float) -> bool:
    """Whether an operation that has not begun must not begin any more: another node has its name, the node's boot has
    ended, its GPUs have been healthy for a while, a person has taken it over or muted the GPUs, or another operation
    takes its place.
    """
    if operation.begun or operation.ended or node is None:
        return False  # an operation without its node ends by itself
    if node.uid != operation.spec.node_uid:
        return True
    if _is_left_alone(node.labels) or (wanted is not None and wanted.name != operation.name):
        return True
    is_well = (node.gpus_healthy and well_for >= KEPT) or _calls_for_something_else(node)
    return node.ready and (operation.name != _name_in_this_boot(operation, node) or is_well)


def _calls_for_something_else(node: TargetNode) -> bool:
    """Whether the agent says of this boot that GPUs are unhealthy, and that no repair is called for: they are muted, or
    a person has to look.
    """
    report = node.report
    is_known = report is not None and not report.unreadable and report.boot == node.boot_id
    return is_known and not calls_for_repair(node)


def _name_in_this_boot(operation: Operation, node: TargetNode) -> str:
    """The name that this operation would have if it were for the node's current boot."""
    return name_of(operation.type, node, operation.spec.gpus)


def _is_due(operations: Iterable[Operation], wanted: WantedOperation, policy: RemediationPolicy, now: float) -> bool:
    """Whether no operation is under way or just over, and today's reboots are not used up."""
    operations = tuple(operations)
    if any(_has_to_be_waited_for(operation, now) for operation in operations):
        return False
    return not _used_up(wanted, operations, policy, now)


def _has_to_be_waited_for(operation: Operation, now: float) -> bool:
    """Whether an operation is under way, about to begin, or just over. What a person wants to do later, or nobody has
    approved, is none: it may never begin, and the node is ill now. Nor are new MIG slices, which come after repairs.
    """
    if operation.ended:
        return now - end_of(operation) < SETTLE
    is_for_later = (moment_of(operation.spec.not_before) or 0.0) > now or operation.type is OperationType.MIG_CHANGE
    return operation.begun or operation.automatic or (operation.spec.approved and not is_for_later)


def _used_up(
    wanted: WantedOperation, operations: Iterable[Operation], policy: RemediationPolicy, now: float
) -> bool:  # fmt: skip
    """Whether the day's reboots of the node are used up, and another one is wanted."""
    is_reboot = OperationType(wanted.spec.type) is OperationType.REBOOT
    return is_reboot and reboots(wanted.spec.node_uid or "", operations, now) >= policy.attempts


def _all_given_up(
    due: Mapping[str, WantedOperation], made: Mapping[str, Operation], operations: Mapping[str, Sequence[Operation]],
    policy: RemediationPolicy, now: float,
) -> dict[str, str]:  # fmt: skip
    """The nodes about which nothing more is done, with the reason."""
    rows = ((name, _given_up(wanted, made, operations.get(name, ()), policy, now)) for name, wanted in due.items())
    return {name: why for name, why in rows if why}


def _given_up(
    wanted: WantedOperation, made: Mapping[str, Operation], operations: Iterable[Operation], policy: RemediationPolicy,
    now: float,
) -> str:  # fmt: skip
    """Why nothing more is done about a node whose verdict still calls for it, "" if something is."""
    operations = tuple(operations)
    if any(_has_to_be_waited_for(operation, now) for operation in operations):
        return ""
    tried = made.get(wanted.name)
    if tried is not None and tried.status.result in FAILURES:
        return f"{tried.name} has failed: {tried.status.message}"
    if _used_up(wanted, operations, policy, now):
        return f"it was rebooted {policy.attempts} times within a day (operations.remediation.attempts)"
    return ""


def _wanted(
    node: TargetNode, gpus: Sequence[ReportedGpu], operations: Iterable[Operation], policy: RemediationPolicy,
    now: float,
) -> WantedOperation:  # fmt: skip
    """The operation that the verdicts call for: the mildest that has not failed."""
    kind = rung(node, gpus, operations, policy.attempts, now)
    uuids = tuple(sorted(gpu.uuid for gpu in gpus)) if kind is OperationType.GPU_RESET else ()
    return WantedOperation(name=name_of(kind, node, uuids), spec=_spec(kind, node, gpus, policy, uuids))


def _spec(
    kind: OperationType, node: TargetNode, gpus: Sequence[ReportedGpu], policy: RemediationPolicy,
    uuids: tuple[str, ...],
) -> NodeOperationSpec:  # fmt: skip
    """The spec of a repair; ``uuids`` are the GPUs that are reset."""
    shown = "; ".join(f"{gpu.name}: {gpu.what}" for gpu in gpus[:3])
    more = f" and {len(gpus) - 3} more" if len(gpus) > 3 else ""
    return NodeOperationSpec(
        node_name=node.name,
        node_uid=node.uid,
        type=str(kind),  # type: ignore[arg-type]
        gpus=uuids,
        requested_by=names.REMEDIATION_REQUESTER,
        reason=f"{shown}{more}"[:1000],
        drain=policy.drain,
        approved=_allows(policy, kind),
    )


def _breaker(
    calling: Collection[str], ours: Sequence[Operation], total: int, now: float, memory: RemediationMemory
) -> tuple[str, tuple[str, ...]] | None:
    """Why remediation has to stop, and the nodes that it is about; None while it may go on."""
    lately = {operation.node for operation in ours if now - _made_at(operation) < BREAKER_WINDOW}
    together = tuple(sorted(lately.union(calling).difference(memory.seen)))
    after = "nothing more is done about verdicts until a person has looked"
    if len(together) >= max(BREAKER_NODES, int(BREAKER_SHARE * total) + 1):
        minutes = int(BREAKER_WINDOW / 60)
        what = f"{len(together)} of {total} nodes with GPUs call for a repair within {minutes} minutes"
        return f"{what} ({_named(together)}): {after}", together
    failed = _failed_in_a_row(ours, max(memory.closed_at, now - FAILED_WINDOW))
    if len(failed) >= FAILED_ACTS:
        return f"the last {len(failed)} repairs have failed, on {_named(failed)}: {after}", failed
    return None


def _made_at(operation: Operation) -> float:
    """About when an operation was made, by the engine's clock as ``now`` is: the API server's may be another."""
    status = operation.status
    noticed = status.started_at or (None if operation.ended else status.phase_since)
    return moment_of(noticed) or operation.created


def _failed_in_a_row(ours: Sequence[Operation], since: float) -> tuple[str, ...]:
    """The nodes of the last repairs that ended after ``since``, if all of these have failed."""
    ends = []
    for operation in ours:
        ended = moment_of(operation.status.completed_at)
        if operation.ended and operation.status.started_at and ended is not None and ended > since:
            ends.append((ended, operation.node, operation.status.result in FAILURES))
    ends.sort(reverse=True)
    last = ends[:FAILED_ACTS]
    return tuple(sorted({node for _, node, _ in last})) if all(failed for *_, failed in last) else ()


def _named(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")
