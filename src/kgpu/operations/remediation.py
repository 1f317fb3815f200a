"""Decides which operations the health of GPUs calls for. Pure.

What counts is the current verdict of a node's agent in the node's current boot: no events, nothing from an earlier
boot, and nothing from a node that does not answer. A verdict leads to one operation per boot. If it returns after the
reboot it leads to another one, as often as the policy allows in a day; after that a person has to act. Many nodes at
once suggest that the verdicts are wrong or share another cause: the breaker opens, and a person closes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import NodeOperationSpec, OperationType
from kgpu.formats.gpu_report import ReportedGpu
from kgpu.formats.xid.action import Action
from kgpu.operations.config import RemediationPolicy, Strongest
from kgpu.operations.model import Operation, TargetNode, moment_of

DAY: Final = 86400.0
SETTLE: Final = 600.0
"""Seconds after an operation in which a node's verdicts are ignored: its readings have to be renewed first."""
BREAKER_WINDOW: Final = 600.0
BREAKER_NODES: Final = 3
BREAKER_SHARE: Final = 0.2
"""At least ``BREAKER_NODES`` nodes, and more than this share of those with GPUs, open the breaker."""
_REBOOTS: Final = frozenset({Action.RESET_GPU, Action.REBOOT})
_MAX_NODE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedOperation:
    """An operation to create. Its name is derived from the boot, so creating it twice yields one."""

    name: str
    spec: NodeOperationSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationPlan:
    """What to create and approve. ``breaker`` is why remediation stops until a person acts, "" while the breaker is
    closed; ``calling`` are the nodes that opened it.
    """

    create: tuple[WantedOperation, ...] = ()
    approve: tuple[Operation, ...] = ()
    withdraw: tuple[Operation, ...] = ()
    """Operations that have not begun and that nothing calls for any more."""
    breaker: str = ""
    calling: tuple[str, ...] = ()


def remediate(
    nodes: Collection[TargetNode], operations: Sequence[Operation], policy: RemediationPolicy, now: float
) -> RemediationPlan:
    """What the nodes' verdicts call for now, given that the breaker has been closed so far."""
    ours = [operation for operation in operations if _is_ours(operation)]
    known = {node.name: node for node in nodes}
    withdraw = tuple(operation for operation in ours if _is_moot(operation, known.get(operation.node)))
    if policy.strongest is Strongest.OFF:
        return RemediationPlan(withdraw=withdraw)
    operations = [operation for operation in operations if operation not in withdraw]
    nodes = [node for node in nodes if node.has_gpus]
    by_node: dict[str, list[Operation]] = {}
    for operation in operations:
        by_node.setdefault(operation.node, []).append(operation)
    calling = {node.name: gpus for node in nodes if (gpus := calls_for_reboot(node))}
    lately = {operation.node for operation in ours if now - operation.created < BREAKER_WINDOW}
    if len(calling.keys() | lately) >= max(BREAKER_NODES, int(BREAKER_SHARE * len(nodes)) + 1):
        together = tuple(sorted(calling.keys() | lately))
        return RemediationPlan(breaker=_breaker(together, len(nodes)), calling=together, withdraw=withdraw)
    due = (
        _wanted(node, calling[node.name], policy)
        for node in nodes
        if node.name in calling and _is_due(by_node.get(node.name, ()), policy, now)
    )
    made = {operation.name for operation in operations}
    waiting = (operation for operation in ours if operation.node in calling and not operation.ended)
    return RemediationPlan(
        withdraw=withdraw,
        create=tuple(operation for operation in due if operation.name not in made),
        # They were created as suggestions; the policy now allows them without a person.
        approve=tuple(
            operation
            for operation in waiting
            if policy.strongest is Strongest.REBOOT and not operation.spec.approved and not operation.begun
        ),
    )


def calls_for_reboot(node: TargetNode) -> tuple[ReportedGpu, ...]:
    """The GPUs for which a node has to reboot; empty if that is not certain or not wanted."""
    report = node.report
    if not (node.ready and node.boot_id) or report is None or report.unreadable:
        return ()
    if report.boot != node.boot_id or _is_left_alone(node.labels):
        return ()
    return tuple(gpu for gpu in report.gpus if not gpu.works and not gpu.muted and gpu.action in _REBOOTS)


def _is_left_alone(labels: Mapping[str, str]) -> bool:
    return labels.get(names.REMEDIATION_LABEL) == "disabled" or names.TAINT_CONTROL_PLANE in labels


def _is_ours(operation: Operation) -> bool:
    return operation.spec.requested_by == names.REMEDIATION_REQUESTER


def _is_moot(operation: Operation, node: TargetNode | None) -> bool:
    """Whether an operation that has not begun must not begin any more: its node is gone, its boot has ended, or its
    GPUs are healthy again.
    """
    if operation.begun or operation.ended or node is None:
        return False  # an operation without its node ends by itself
    if node.uid != operation.spec.node_uid:
        return True
    return node.ready and (operation.name != name_of_reboot(node) or node.gpus_healthy)


def _is_due(operations: Iterable[Operation], policy: RemediationPolicy, now: float) -> bool:
    """Whether no operation is under way or just over, and today's attempts are not used up."""
    attempts = 0
    for operation in operations:
        if not operation.ended:
            return False
        ended = moment_of(operation.status.completed_at) or operation.created
        if now - ended < SETTLE:
            return False
        attempts += operation.type is OperationType.REBOOT and _is_ours(operation) and now - ended < DAY
    return attempts < policy.attempts


def _wanted(node: TargetNode, gpus: Sequence[ReportedGpu], policy: RemediationPolicy) -> WantedOperation:
    shown = "; ".join(f"{gpu.name}: {gpu.what}" for gpu in gpus[:3])
    more = f" and {len(gpus) - 3} more" if len(gpus) > 3 else ""
    spec = NodeOperationSpec(
        node_name=node.name,
        node_uid=node.uid,
        type="Reboot",
        requested_by=names.REMEDIATION_REQUESTER,
        reason=f"{shown}{more}"[:1000],
        drain=policy.drain,
        approved=policy.strongest is Strongest.REBOOT,
    )
    return WantedOperation(name=name_of_reboot(node), spec=spec)


def name_of_reboot(node: TargetNode) -> str:
    """The name of a node's operation, after the boot that is to end: it is created once, even if a person ends it."""
    key = hashlib.sha256(f"{node.uid}/{node.boot_id}".encode()).hexdigest()[:10]
    return f"reboot-{node.name[:_MAX_NODE]}-{key}"


def _breaker(nodes: Sequence[str], total: int) -> str:
    shown = ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")
    minutes = int(BREAKER_WINDOW / 60)
    return (
        f"{len(nodes)} of {total} nodes with GPUs call for a reboot within {minutes} minutes ({shown}): nothing more "
        "is done about verdicts until a person has looked"
    )
