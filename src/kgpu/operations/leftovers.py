"""What finished or deleted operations have left: held nodes, act pods and records. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kgpu.formats.crd.nodeoperation import OperationPhase, OperationType, Result
from kgpu.operations.model import ActPod, EndAct, Forget, HoldNode, Operation, TargetNode, moment_of

KEPT: Final = 10
"""How many finished operations of a node are kept."""
KEPT_SECONDS: Final = 30 * 86400.0


def leftovers(nodes: Collection[TargetNode], live: frozenset[str]) -> tuple[HoldNode, ...]:
    """The nodes that are held for operations that are finished or deleted: each is given back.

    ``live`` are the uids of all operations that may hold a node, including those that can't be read.
    """
    rows = []
    for node in nodes:
        owners = tuple(uid for uid in node.owners if uid in live)
        if node.held and (owners != node.owners or not owners):
            cordon, order = node.cordoned_by_us and bool(owners), node.order if owners else None
            mark = node.marked and bool(owners)
            rows.append(HoldNode(node=node, owners=owners, cordon=cordon, order=order, mark=mark))
    return tuple(rows)


def ended_acts(acts: Collection[ActPod], operations: Collection[Operation]) -> tuple[EndAct, ...]:
    """The act pods that no operation waits for any more."""
    wanted = {
        operation.status.act.id
        for operation in operations
        if operation.phase is OperationPhase.ACTING and operation.status.act is not None
    }
    return tuple(EndAct(pod=pod) for pod in acts if pod.act not in wanted)


def outdated(operations: Collection[Operation], now: float, nodes: Mapping[str, TargetNode]) -> tuple[Forget, ...]:
    """The finished operations to delete: all but the last ``KEPT`` of each node, and those older than
    ``KEPT_SECONDS``.

    The last driver upgrade of a node that is there stays if it did not succeed: it keeps the driver that failed from
    being tried again. So does the change of MIG slices that a node still asks for, which is made once.
    """
    by_node: dict[str, list[tuple[float, Operation]]] = {}
    for operation in operations:
        if operation.ended:
            ended = moment_of(operation.status.completed_at) or operation.created
            by_node.setdefault(operation.node, []).append((ended, operation))
    rows = []
    for ends in by_node.values():
        ends.sort(key=lambda row: (row[0], row[1].name), reverse=True)
        newest_first = [operation for _, operation in ends]
        stays = (_last_unsuccessful_upgrade(newest_first, nodes), _asked_for(newest_first, nodes))
        rows += [
            operation
            for place, (ended, operation) in enumerate(ends)
            if (place >= KEPT or now - ended > KEPT_SECONDS) and operation not in stays
        ]
    return tuple(Forget(operation=operation) for operation in rows)


def _last_unsuccessful_upgrade(
    newest_first: Collection[Operation], nodes: Mapping[str, TargetNode]
) -> Operation | None:
    """The last driver upgrade of a node that is there, None if it succeeded."""
    last = next((one for one in newest_first if one.type is OperationType.DRIVER_UPGRADE), None)
    if last is None or last.status.result == Result.SUCCEEDED.value:
        return None
    node = nodes.get(last.node)
    return last if node is not None and node.uid == last.status.node_uid else None


def _asked_for(newest_first: Collection[Operation], nodes: Mapping[str, TargetNode]) -> Operation | None:
    """The last change of MIG slices for the request that its node has now, None without one."""
    for one in newest_first:
        node = nodes.get(one.node)
        asked = node.mig_request if node is not None else None
        if one.spec.mig is not None and asked is not None and one.spec.mig.request == asked.id:
            return one
    return None
