"""The drain of a node, or of some of its GPUs, as steps: the check before the first eviction, evictions, and how it
ends. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kgpu.base.printable import counted
from kgpu.formats.crd.nodeoperation import Result
from kgpu.operations import forcing
from kgpu.operations.drain import DrainState, named, progress
from kgpu.operations.model import Operation, Step
from kgpu.operations.records import deadline_of, give_back, over, over_or, record
from kgpu.operations.world import World

PODS_SECONDS = 1.0
"""How often the pods that have to go are looked at again."""


def what_is_emptied(operation: Operation) -> str:
    """For messages."""
    return "its GPUs" if operation.spec.gpus else "the node"


def empty(operation: Operation, world: World, state: DrainState, emptied: Callable[[DrainState], Step]) -> Step:
    """The next step of a drain; ``emptied`` returns the one after it."""
    status = operation.status
    if status.drain is None and state.unsure:
        return over_or(operation, world, Step(again_at=world.now + PODS_SECONDS), "its pods' DaemonSets can't be read")
    if status.drain is None:
        return _first_look(operation, world, state)
    if state.done:
        return emptied(state)
    told = progress(state, status.drain)
    if state.hopeless and not forcing.can_help(operation, world, state):
        return give_back(
            operation, world, Result.PERMANENT_FAILURE, "EvictionRefused", state.hopeless, drain=told
        )  # fmt: skip
    if over(operation, world):
        return forcing.begin(operation, world, state, told) or _too_late(operation, world, state)
    if world.tell_progress and told != status.drain:
        return record(operation, world, drain=told, message=_going(operation, told.total - told.gone))
    again = min(deadline_of(operation) or math.inf, world.now + PODS_SECONDS)
    return Step(writes=forcing.writes(operation, world, state), again_at=again)


def unread(operation: Operation, world: World) -> Step:
    """The step while the pods have not been read."""
    if forcing.may_still_read(operation, world):
        return Step(again_at=world.now + PODS_SECONDS)
    return over_or(operation, world, Step(again_at=deadline_of(operation)), "its pods could not be read")


def _too_late(operation: Operation, world: World, state: DrainState) -> Step:
    left = f"pods were left on {what_is_emptied(operation)} after {operation.spec.drain.timeout_seconds} s"
    why = f"{left}{forcing.too_late(operation, world)}: {named((*state.refused, *state.waiting))}"
    told = progress(state, operation.status.drain)
    return give_back(operation, world, Result.TRANSIENT_FAILURE, "DrainTimeout", why, drain=told)


def _first_look(operation: Operation, world: World, state: DrainState) -> Step:
    """The check before the first eviction: one pod that may not go stops the drain while nothing is lost yet."""
    if state.refused:
        why = f"pods on {what_is_emptied(operation)} may not go: {named(state.refused)}"
        return give_back(operation, world, Result.PERMANENT_FAILURE, "DrainRefused", why, drain=progress(state, None))
    return record(operation, world, drain=progress(state, None), message=_going(operation, len(state.waiting)))


def _going(operation: Operation, count: int) -> str:
    what = "its GPUs are" if operation.spec.gpus else "the node is"
    return f"{what} being emptied: {counted(count, 'pod')} still to go"
