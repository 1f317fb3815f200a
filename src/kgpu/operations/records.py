"""How steps write the record, and the questions that all steps ask about an operation and its node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from kgpu.base.printable import one_line
from kgpu.formats.crd.nodeoperation import MAX_TEXT, NodeBefore, NodeOperationStatus, OperationPhase, Result
from kgpu.formats.crd.status import StatusCondition
from kgpu.operations.model import HoldNode, Operation, Record, Step, TargetNode, moment_of, stamp_of
from kgpu.operations.world import World

RESTORE_SECONDS: Final = 120.0

ADMITTED: Final = "Admitted"
CORDONED: Final = "Cordoned"
DRAINED: Final = "Drained"
ACT_DONE: Final = "ActDone"
VERIFIED: Final = "Verified"
RESTORED: Final = "Restored"
COMPLETE: Final = "Complete"

Condition: TypeAlias = tuple[str, str, str, str]
"""Type, status, reason and message."""

_FAILURES: Final = frozenset({Result.TRANSIENT_FAILURE, Result.PERMANENT_FAILURE})
_WORDS: Final[Mapping[str, Literal["True", "False"]]] = {"True": "True", "False": "False"}


def present(world: World) -> TargetNode:
    """The node of an operation that has begun; ``step`` has made sure that it exists."""
    if world.node is None:
        raise ValueError(world)
    return world.node


def others_of(operation: Operation, world: World) -> tuple[str, ...]:
    """The uids of other operations that hold the node; finished ones no longer count."""
    return tuple(uid for uid in present(world).owners if uid in world.live and uid != operation.uid)


def hold(operation: Operation, world: World) -> HoldNode:
    """Add this operation to the node's owners, and cordon it unless it was cordoned before."""
    before = operation.status.before or NodeBefore()
    owners = (*others_of(operation, world), operation.uid)
    return HoldNode(node=present(world), owners=owners, cordon=not before.unschedulable)


def deadline_of(operation: Operation) -> float | None:
    """When the phase must be over, None if it has no limit."""
    return moment_of(operation.status.phase_deadline)


def over(operation: Operation, world: World) -> bool:
    """Whether the phase has taken longer than it may."""
    deadline = deadline_of(operation)
    return deadline is not None and world.now >= deadline


def unheld(operation: Operation, world: World) -> Step | None:
    """The step to take if the node is not held as it should be, None if it is. A person's uncordon ends
    the operation.
    """
    node = present(world)
    if not node.unschedulable:
        return uncordoned(operation, world)
    if operation.uid not in node.owners:
        return Step(writes=(hold(operation, world),), again_at=deadline_of(operation))
    return None


def uncordoned(operation: Operation, world: World) -> Step:
    """End the operation because somebody has uncordoned the node."""
    return give_back(
        operation, world, Result.CANCELLED, "Uncordoned", "somebody has uncordoned the node, which ends it"
    )


def over_or(operation: Operation, world: World, otherwise: Step, why: str) -> Step:
    """Give up a drain that has taken too long; until then, ``otherwise``."""
    if not over(operation, world):
        return otherwise
    return give_back(operation, world, Result.TRANSIENT_FAILURE, "DrainTimeout", why)


def give_back(
    operation: Operation, world: World, result: Result, reason: str, why: str, *conditions: Condition, **fields: Any
) -> Step:
    """Put the result on record and begin to give the node back."""
    fields |= {"result": str(result), "reason": reason, "message": why}
    return record(operation, world, *conditions, phase=OperationPhase.RESTORING, limit=RESTORE_SECONDS, **fields)


def end(operation: Operation, world: World, result: Result, reason: str, why: str) -> Step:
    """Finish the operation."""
    gone = result is Result.SUPERSEDED
    conditions = [(RESTORED, "True", "Restored", "")] if operation.begun and not gone else []
    conditions.append((COMPLETE, "True" if result is Result.SUCCEEDED else "False", reason, why))
    phase = OperationPhase.FAILED if result in _FAILURES else OperationPhase.COMPLETE
    return record(
        operation, world, *conditions, phase=phase, result=str(result), reason=reason, message=why,
        completed_at=stamp_of(world.now),
    )  # fmt: skip


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
        type=kind, status=_WORDS[word], reason=reason, message=one_line(message, MAX_TEXT),
        last_transition_time=stamp_of(now),
    )  # fmt: skip
    others = tuple(known for known in status.conditions if known.type != kind)
    return msgspec.structs.replace(status, conditions=(*others, row))
