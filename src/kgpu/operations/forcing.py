"""What becomes of pods that disruption budgets still hold when the drain's time is over: ``drain.onTimeout``. Pure.

With Force they are deleted in place of evicted, each with its grace period. That budgets no longer hold is on record
before the first deletion, with a new limit for the drain. Only a budget is overridden: a pod that ``kubectl drain`` or
the API server refuses for another reason stays, and one that is ending already is waited for and never removed without
its kubelet's word.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats.crd.nodeoperation import DrainProgress, OnTimeout, OperationPhase
from kgpu.operations.drain import AT_ONCE, NAMED, DrainState
from kgpu.operations.model import Delete, Evict, NodePod, Operation, Step
from kgpu.operations.records import FORCED, over, record
from kgpu.operations.world import World

FORCED_SECONDS: Final = 60.0
"""How long pods may take to go beyond their grace period."""
LONGEST_GRACE: Final = 86_400
"""The longest grace period that the drain waits for; pods may set any."""
UNREAD_SECONDS: Final = 60.0
"""How long a new leader may take to read pods at the end of the drain, before it gives up."""
FORCING: Final = "Forcing"


def refusal(operation: Operation, world: World) -> str:
    """Why the operation may not force, "" if it may or does not want to."""
    if not _wanted(operation) or world.allow_force:
        return ""
    return (
        "spec.drain.onTimeout is Force, which this cluster does not allow; expected: operations.allowForce=true in the "
        "chart's values, or onTimeout Fail; to do: make a new operation with Fail, or ask the admin"
    )


def begun(operation: Operation) -> bool:
    """Whether it is on record that disruption budgets no longer hold."""
    return any(row.type == FORCED and row.status == "True" for row in operation.status.conditions)


def can_help(operation: Operation, world: World, state: DrainState) -> bool:
    """Whether some pod would go that could not be evicted."""
    return _wanted(operation) and world.allow_force and bool(state.forcible)


def begin(operation: Operation, world: World, state: DrainState, told: DrainProgress) -> Step | None:
    """Put on record that budgets no longer hold, and give the drain a new limit; None if that is not wanted, not
    allowed, of no help, or on record already.
    """
    if begun(operation) or not can_help(operation, world, state):
        return None
    pods, more = state.forcible[:NAMED], len(state.forcible) - NAMED
    names = ", ".join(pod.where for pod in pods) + (f" and {more} more" if more > 0 else "")
    why = (
        f"the drain's {operation.spec.drain.timeout_seconds} s are over: what disruption budgets hold is deleted now, "
        f"with its grace period: {names}"
    )
    return record(
        operation, world, (FORCED, "True", FORCING, why), phase=OperationPhase.DRAINING,
        limit=_limit(operation, state.forcible), reason=FORCING, message=why, drain=told,
    )  # fmt: skip


def writes(operation: Operation, world: World, state: DrainState) -> tuple[Evict | Delete, ...]:
    """How pods are asked to go: what a budget holds is deleted once that is on record, everything else is evicted."""
    grace = operation.spec.drain.grace_period_seconds
    held = state.held if begun(operation) and world.allow_force else ()
    asked: list[Evict | Delete] = [Delete(pod=pod, grace=_grace(operation, pod)) for pod in held]
    asked += [Evict(pod=pod, grace=grace) for pod in state.evict if pod not in held]
    return tuple(asked[:AT_ONCE])


def too_late(operation: Operation, world: World) -> str:
    """What the message of a drain that has taken too long says about Force, "" if nothing."""
    if begun(operation):
        return ", also after disruption budgets no longer held"
    if _wanted(operation) and not world.allow_force:
        return ", and were not deleted, as operations.allowForce is off now"
    return ""


def may_still_read(operation: Operation, world: World) -> bool:
    """Whether to wait for the pods though the drain's time is over: what is forced is decided by looking at them."""
    if begun(operation) or not _wanted(operation) or not over(operation, world):
        return False
    return not over(operation, world, after=UNREAD_SECONDS)


def _wanted(operation: Operation) -> bool:
    return OnTimeout(operation.spec.drain.on_timeout) is OnTimeout.FORCE


def _grace(operation: Operation, pod: NodePod) -> int | None:
    """The grace period to ask for. With 0 the API server would forget a pod whose containers may still run."""
    wanted = operation.spec.drain.grace_period_seconds
    if wanted is not None:
        return max(1, wanted)
    return None if pod.grace else 1


def _limit(operation: Operation, pods: tuple[NodePod, ...]) -> float:
    """Seconds for the longest grace period, and some more."""
    graces = (min(LONGEST_GRACE, _grace(operation, pod) or pod.grace) for pod in pods)
    return max(graces, default=0) + FORCED_SECONDS
