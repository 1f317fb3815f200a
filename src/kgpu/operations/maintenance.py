"""Maintenance: a person works on the empty node until they resume it or its time is over. Pure."""

from __future__ import annotations

from typing import Final

from kgpu.formats.crd.nodeoperation import OperationPhase, Result
from kgpu.operations.act import Act
from kgpu.operations.drain import DrainState, named, progress
from kgpu.operations.model import Operation, Step, TargetNode
from kgpu.operations.records import DRAINED, deadline_of, give_back, over, record, unheld
from kgpu.operations.world import World


def refusal(operation: Operation, node: TargetNode) -> str:
    """None: every node can be held."""
    del operation, node
    return ""


def emptied(operation: Operation, world: World, state: DrainState) -> Step:
    """Hold the empty node for maintenance."""
    duration = operation.spec.duration_seconds
    resume = f"`kgpu operations resume {operation.name}` gives it back"
    what = "the node is" if not operation.spec.gpus else "its GPUs are"
    empty = f"empty, but for {named(state.stranded)}; it is" if state.stranded else "empty and"
    return record(
        operation, world, (DRAINED, "True", "Drained", ""), phase=OperationPhase.ACTING,
        limit=None if duration is None else float(duration), drain=progress(state, operation.status.drain),
        reason="InMaintenance", message=f"{what} {empty} held for maintenance; {resume}",
    )  # fmt: skip


def acting(operation: Operation, world: World) -> Step:
    """Give the node back once the person resumes or cancels, or the duration is over; until then keep it held."""
    spec = operation.spec
    if spec.resume or spec.cancel:
        return give_back(operation, world, Result.SUCCEEDED, "Resumed", "the maintenance is over")
    if over(operation, world):
        return give_back(operation, world, Result.SUCCEEDED, "DurationOver", "the maintenance's time is over")
    return unheld(operation, world) or Step(again_at=deadline_of(operation))


ACT: Final = Act(refusal=refusal, emptied=emptied, acting=acting, verifying=acting)
"""There is nothing to verify: the person who worked on the node vouches for it."""
