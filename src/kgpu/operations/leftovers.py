"""What operations that are over, or gone, have left: held nodes, act pods, records. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kgpu.formats.crd.nodeoperation import OperationPhase
from kgpu.operations.model import ActPod, EndAct, Forget, HoldNode, Operation, TargetNode, moment_of

KEPT: Final = 10
"""Operations of a node that are kept once they are over."""
KEPT_SECONDS: Final = 30 * 86400.0


def leftovers(nodes: Collection[TargetNode], live: frozenset[str]) -> tuple[HoldNode, ...]:
    """Nodes that are held for operations that are over, or are there no more: each is given back.

    ``live`` are the uids of all operations that may hold a node, also of those that can't be read.
    """
    rows = []
    for node in nodes:
        owners = tuple(uid for uid in node.owners if uid in live)
        if node.held and (owners != node.owners or not owners):
            rows.append(HoldNode(node=node, owners=owners, cordon=node.cordoned_by_us and bool(owners)))
    return tuple(rows)


def ended_acts(acts: Collection[ActPod], operations: Collection[Operation]) -> tuple[EndAct, ...]:
    """Pods of acts that nobody waits for any more."""
    wanted = {
        operation.status.act.id
        for operation in operations
        if operation.phase is OperationPhase.ACTING and operation.status.act is not None
    }
    return tuple(EndAct(pod=pod) for pod in acts if pod.act not in wanted)


def outdated(operations: Collection[Operation], now: float) -> tuple[Forget, ...]:
    """Operations that are over and not worth keeping: the last ``KEPT`` of each node are, for ``KEPT_SECONDS``."""
    by_node: dict[str, list[tuple[float, Operation]]] = {}
    for operation in operations:
        if operation.ended:
            ended = moment_of(operation.status.completed_at) or operation.created
            by_node.setdefault(operation.node, []).append((ended, operation))
    rows = []
    for ends in by_node.values():
        ends.sort(key=lambda row: (row[0], row[1].name), reverse=True)
        rows += [
            operation for place, (ended, operation) in enumerate(ends) if place >= KEPT or now - ended > KEPT_SECONDS
        ]
    return tuple(Forget(operation=operation) for operation in rows)
