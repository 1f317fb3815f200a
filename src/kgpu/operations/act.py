"""What differs between the types of operations: what is done to an empty node. One row per type. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kgpu.operations.drain import DrainState
from kgpu.operations.model import Operation, Step, TargetNode
from kgpu.operations.world import World

_Steps = Callable[[Operation, World], Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """``refusal`` returns why this can't be done to a node, "" if it can; ``emptied`` is the step once its pods have
    gone; ``acting`` and ``verifying`` are the steps of these phases.
    """

    refusal: Callable[[Operation, TargetNode], str]
    emptied: Callable[[Operation, World, DrainState], Step]
    acting: _Steps
    verifying: _Steps
