"""What differs between the types of operations: what is done to an empty node. One row per type. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kgpu.operations.drain import DrainState
from kgpu.operations.model import Operation, Step, TargetNode
from kgpu.operations.records import superseded
from kgpu.operations.world import World

_Steps = Callable[[Operation, World], Step]


def nothing_first(operation: Operation, world: World) -> Step | None:
    """For acts before which nothing has to be done."""
    del operation, world
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """``refusal`` returns why this can't be done to a node, "" if it can; ``emptied`` is the step once its pods have
    gone; ``acting`` and ``verifying`` are the steps of these phases. ``prepared`` is the step to take on the cordoned
    node before it is emptied, None once there is none; ``gone`` is the step once the Node does not exist any more.
    ``settled`` is the step that ends or delays one that has not begun, None if it may be admitted. ``recalled`` is the
    step that ends one that has begun and has not acted, None if it is still wanted.
    """

    refusal: Callable[[Operation, TargetNode], str]
    emptied: Callable[[Operation, World, DrainState], Step]
    acting: _Steps
    verifying: _Steps
    prepared: Callable[[Operation, World], Step | None] = nothing_first
    gone: _Steps = superseded
    settled: Callable[[Operation, World], Step | None] = nothing_first
    recalled: Callable[[Operation, World], Step | None] = nothing_first
