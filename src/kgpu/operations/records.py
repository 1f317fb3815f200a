"""How steps write the record, and the questions that all steps ask about an operation and its node. Pure."""

from __future__ import annotations

import math
from typing import Any, Final, Literal, TypeAlias

import msgspec

from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of
from kgpu.formats.crd.nodeoperation import (
    DRIVER_RELEASED,
    MAX_TEXT,
    NodeBefore,
    NodeOperationStatus,
    OperationMig,
    OperationPhase,
    OperationType,
    Result,
)
from kgpu.formats.crd.status import StatusCondition
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.node_order import NodeOrder, OrderStep, change_order, exchange_order, order
from kgpu.operations.model import HoldNode, Operation, Record, Step, TargetNode, moment_of
from kgpu.operations.world import World

RESTORE_SECONDS: Final = 120.0
TELL_SECONDS: Final = 1.0
"""How soon to look again at progress that may not be written yet."""

ADMITTED: Final = "Admitted"
CORDONED: Final = "Cordoned"
EVIDENCE: Final = "EvidenceCollected"
COMPLETED: Final = "PodsCompleted"
FORCED: Final = "Forced"
DRAINED: Final = "Drained"
RELEASED: Final = DRIVER_RELEASED
ACT_DONE: Final = "ActDone"
VERIFIED: Final = "Verified"
RESTORED: Final = "Restored"
COMPLETE: Final = "Complete"

Condition: TypeAlias = tuple[str, Literal["True", "False", "Unknown"], str, str]
"""Type, status, reason and message."""

_FAILURES: Final = frozenset({Result.TRANSIENT_FAILURE, Result.PERMANENT_FAILURE})


def present(world: World) -> TargetNode:
    """The node of an operation that has begun; ``step`` has made sure that it exists."""
    if world.node is None:
        raise ValueError(world)
    return world.node


def others_of(operation: Operation, world: World) -> tuple[str, ...]:
    """The uids of other operations that hold the node; finished ones no longer count."""
    return tuple(uid for uid in present(world).owners if uid in world.live and uid != operation.uid)


def hold(operation: Operation, world: World) -> HoldNode:
    """Add this operation to the node's owners, and cordon it unless it was cordoned before, or it is on some GPUs
    alone; give its agent the order of this phase.
    """
    before = operation.status.before or NodeBefore()
    owners = (*others_of(operation, world), operation.uid)
    wanted = order_of(operation, present(world))
    cordon = operation.cordons and not before.unschedulable
    return HoldNode(
        node=present(world), owners=owners, cordon=cordon, order=wanted, mark=operation.waits_for_machine
    )  # fmt: skip


def order_of(operation: Operation, node: TargetNode) -> NodeOrder | None:
    """What the node's agent has to do in this phase, None for nothing."""
    if operation.type is OperationType.DRIVER_UPGRADE:
        return _exchange(operation, node)
    if not operation.spec.gpus:
        return None
    if operation.spec.mig is not None:
        return _change(operation, operation.spec.mig, node)
    resets = operation.type is OperationType.GPU_RESET
    step = _ORDERS.get(operation.phase, OrderStep.WITHDRAW) if resets else OrderStep.WITHDRAW
    is_reset = step is OrderStep.RESUME and is_true(operation, ACT_DONE)
    return order(act=operation.act_id, boot=node.boot_id, step=step, gpus=operation.spec.gpus, reset=is_reset)


def _change(operation: Operation, mig: OperationMig, node: TargetNode) -> NodeOrder:
    """While it acts, the agent is to let go of the driver first if a GPU has to be reset, and then to cut the GPUs."""
    step = _ORDERS.get(operation.phase, OrderStep.WITHDRAW)
    if operation.phase is OperationPhase.ACTING and (is_true(operation, RELEASED) or not mig.release):
        step = OrderStep.CHANGE
    is_reset = step is OrderStep.RESUME and mig.release and is_true(operation, ACT_DONE)
    layouts = tuple(MigLayout(gpu=row.gpu, enabled=row.enabled, devices=row.devices) for row in mig.layouts)
    return change_order(
        act=operation.act_id, boot=node.boot_id, step=step, layouts=layouts, released=mig.release, reset=is_reset
    )


def _exchange(operation: Operation, node: TargetNode) -> NodeOrder | None:
    """A Node without a boot ID gets no order: its agent could not tell an old one from a new one."""
    step = _ORDERS.get(operation.phase)
    if step is None or not (node.boot_id and operation.act_id):
        return None
    return exchange_order(act=operation.act_id, boot=node.boot_id, step=step)


_ORDERS: Final = {OperationPhase.ACTING: OrderStep.RELEASE, OperationPhase.VERIFYING: OrderStep.RESUME}


def deadline_of(operation: Operation) -> float | None:
    """When the phase must be over, None if it has no limit."""
    return moment_of(operation.status.phase_deadline)


def over(operation: Operation, world: World, *, after: float = 0.0) -> bool:
    """Whether the phase has taken longer than it may, and ``after`` seconds more."""
    deadline = deadline_of(operation)
    return deadline is not None and world.now >= deadline + after


def unheld(operation: Operation, world: World) -> Step | None:
    """The step to take if the node is not held as it should be, None if it is. A person's uncordon ends
    the operation.
    """
    node = present(world)
    if operation.cordons and not node.unschedulable:
        return uncordoned(operation, world)
    as_wanted = node.order == order_of(operation, node) and node.marked == operation.waits_for_machine
    if operation.uid not in node.owners or not as_wanted:
        return Step(writes=(hold(operation, world),), again_at=deadline_of(operation))
    return None


def uncordoned(operation: Operation, world: World) -> Step:
    """End the operation because a person has uncordoned the node."""
    return give_back(
        operation, world, Result.CANCELLED, "Uncordoned", "a person has uncordoned the node, which ends it"
    )


def over_or(operation: Operation, world: World, otherwise: Step, why: str) -> Step:
    """Give up a drain that has taken too long; until then, ``otherwise``."""
    if not over(operation, world):
        return otherwise
    return give_back(operation, world, Result.TRANSIENT_FAILURE, "DrainTimeout", why)


def tell(operation: Operation, world: World, message: str) -> Step:
    """Put on record what the operation waits for, as often as ``tell_progress`` allows."""
    deadline = deadline_of(operation)
    if one_line(message, MAX_TEXT) == operation.status.message:
        return Step(again_at=deadline)
    if not world.tell_progress:
        return Step(again_at=min(deadline or math.inf, world.now + TELL_SECONDS))
    return record(operation, world, message=message)


def give_back(
    operation: Operation, world: World, result: Result, reason: str, why: str, *conditions: Condition, **fields: Any
) -> Step:
    """Put the result on record and begin to give the node back. The condition Complete keeps the outcome meanwhile:
    reason and message may tell of the giving back.
    """
    fields |= {"result": str(result), "reason": reason, "message": why}
    conditions = (*conditions, (COMPLETE, "False", reason, why))
    return record(operation, world, *conditions, phase=OperationPhase.RESTORING, limit=RESTORE_SECONDS, **fields)


def outcome_of(operation: Operation) -> tuple[str, str]:
    """Reason and message of what came of an operation that gives its node back."""
    status = operation.status
    kept = next((row for row in status.conditions if row.type == COMPLETE), None)
    return (kept.reason, kept.message) if kept is not None else (status.reason, status.message)


def end(operation: Operation, world: World, result: Result, reason: str, why: str) -> Step:
    """Finish the operation."""
    gone = world.node is None or (operation.begun and world.node.uid != operation.status.node_uid)
    conditions: list[Condition] = [(RESTORED, "True", "Restored", "")] if operation.begun and not gone else []
    conditions.append((COMPLETE, "True" if result is Result.SUCCEEDED else "False", reason, why))
    phase = OperationPhase.FAILED if result in _FAILURES else OperationPhase.COMPLETE
    return record(
        operation, world, *conditions, phase=phase, result=str(result), reason=reason, message=why,
        completed_at=stamp_of(world.now),
    )  # fmt: skip


def condition_of(operation: Operation, kind: str) -> StatusCondition | None:
    """The condition of that type on record, None without one."""
    return next((row for row in operation.status.conditions if row.type == kind), None)


def is_true(operation: Operation, kind: str) -> bool:
    """Whether the condition of that type is on record as True."""
    known = condition_of(operation, kind)
    return known is not None and known.status == "True"


def superseded(operation: Operation, world: World) -> Step:
    """Finish the operation, as its node is gone: a name can be used again, a uid can't."""
    return end(operation, world, Result.SUPERSEDED, "NodeGone", "the node is gone, or another one has its name now")


def record(
    operation: Operation, world: World, *conditions: Condition, phase: OperationPhase | None = None,
    limit: float | None = None, **fields: Any,
) -> Step:  # fmt: skip
    """Write a new status. A ``phase`` begins now and may take ``limit`` seconds; conditions are type, status, reason
    and message.
    """
    now = world.now
    if phase is not None:
        fields["phase"] = str(phase)
        fields["phase_since"] = stamp_of(now)
        fields["phase_deadline"] = None if limit is None else stamp_of(now + limit)
    if "message" in fields:
        fields["message"] = one_line(fields["message"], MAX_TEXT)
    status = msgspec.structs.replace(operation.status, **fields)
    for condition in conditions:
        status = _with_condition(status, condition, now)
    return Step(writes=(Record(operation=operation, status=status),))


def _with_condition(status: NodeOperationStatus, condition: Condition, now: float) -> NodeOperationStatus:
    kind, word, reason, message = condition
    row = StatusCondition(
        type=kind, status=word, reason=reason, message=one_line(message, MAX_TEXT),
        last_transition_time=stamp_of(now),
    )  # fmt: skip
    others = tuple(known for known in status.conditions if known.type != kind)
    return msgspec.structs.replace(status, conditions=(*others, row))
