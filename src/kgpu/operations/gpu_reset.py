"""GpuReset: GPUs that no pod holds are reset while the others go on working. Pure.

A reset needs GPUs that no program has open, so the agent closes the driver's library first and opens it again for the
reading by which the reset is judged. The act's pod resets once per ID and says what came of it by its exit code. If
nobody knows (the pod was killed, its result is lost), the reading decides: a reset is never repeated under its ID.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats.crd.nodeoperation import NodeAct, OperationPhase, Result
from kgpu.formats.node_order import OrderStep
from kgpu.operations import gpus
from kgpu.operations.act import Act
from kgpu.operations.drain import DrainState, progress
from kgpu.operations.model import HANGS, UNKNOWN, ActPod, Operation, StartAct, Step, TargetNode
from kgpu.operations.records import (
    ACT_DONE,
    DRAINED,
    VERIFIED,
    Condition,
    deadline_of,
    give_back,
    over,
    present,
    record,
    tell,
    unheld,
)
from kgpu.operations.world import World

RESET_SECONDS: Final = 600.0
"""How long release and reset may take: less than the agent stays without the driver (15 minutes)."""
VERIFY_SECONDS: Final = 300.0


def refusal(operation: Operation, node: TargetNode) -> str:
    """Why the GPUs can't be reset, "" if they can."""
    return "" if operation.spec.gpus else f"it names no GPUs of {node.name}"


def emptied(operation: Operation, world: World, state: DrainState) -> Step:
    """The GPUs are empty: let the agent close the driver's library."""
    return record(
        operation, world, (DRAINED, "True", "Drained", ""), phase=OperationPhase.ACTING,
        limit=min(RESET_SECONDS, operation.act_seconds),
        drain=progress(state, operation.status.drain), reason="Resetting",
        message="no pod holds its GPUs; the node's agent lets go of the driver",
    )  # fmt: skip


def acting(operation: Operation, world: World) -> Step:
    """Start the act's pod once the agent has let go, and go by its exit code."""
    if first := gpus.rebooted(operation, world):
        return first
    pod = world.act
    if pod is not None and pod.ended:
        return _ended(operation, world, pod)
    if over(operation, world):
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "ResetTimeout", _too_late(operation, pod))
    if pod is not None:
        why = f": {pod.why}" if pod.why else ""
        return unheld(operation, world) or tell(operation, world, f"the GPUs are reset by the pod {pod.name}{why}")
    return _ask(operation, world)


def _ask(operation: Operation, world: World) -> Step:
    if operation.spec.cancel:
        return give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before its GPUs were reset")
    if first := unheld(operation, world):
        return first
    if (waits := gpus.unanswered(operation, world, OrderStep.RELEASE, "ResetTimeout")) is not None:
        return waits
    if not world.acts_known:
        return Step(again_at=deadline_of(operation))
    act = operation.status.act or NodeAct()
    start = StartAct(operation=operation, act=act, node=present(world))
    return Step(writes=(start,), again_at=deadline_of(operation))


def _ended(operation: Operation, world: World, pod: ActPod) -> Step:
    if pod.refused:
        return give_back(operation, world, Result.PERMANENT_FAILURE, "ResetRefused", pod.why)
    if pod.exit_code == HANGS:
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "ResetHangs", f"{pod.why}; reboot the node")
    if pod.exit_code not in {0, UNKNOWN, None}:
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "ResetFailed", pod.why)
    lost: Condition = (ACT_DONE, "Unknown", "ResultLost", pod.why)
    done: Condition = (ACT_DONE, "True", "Reset", "") if pod.exit_code == 0 else lost
    return record(
        operation, world, done, phase=OperationPhase.VERIFYING, limit=VERIFY_SECONDS, reason="Verifying",
        message="the GPUs were reset; the node's agent reads them anew",
    )  # fmt: skip


def _too_late(operation: Operation, pod: ActPod | None) -> str:
    seconds = min(RESET_SECONDS, operation.act_seconds)
    why = f"; its pod {pod.name}: {pod.why}" if pod is not None and pod.why else ""
    return f"the GPUs were not reset within {seconds:.0f} s{why}"


def verifying(operation: Operation, world: World) -> Step:
    """Wait for a reading from after the reset in which every GPU is well."""
    if operation.spec.cancel:
        return give_back(
            operation, world, Result.CANCELLED, "Cancelled", "it was ended before its GPUs were found well"
        )
    if first := gpus.rebooted(operation, world) or unheld(operation, world):
        return first
    if (waits := gpus.unanswered(operation, world, OrderStep.RESUME, "ResetDidNotHelp")) is not None:
        return waits
    problem = gpus.problem_of(operation, world)
    if not problem:
        return give_back(
            operation, world, Result.SUCCEEDED, "Reset", "the GPUs are reset and well", (VERIFIED, "True", "Well", "")
        )
    if over(operation, world):
        why = f"the GPUs are not well {VERIFY_SECONDS:.0f} s after the reset: {problem}; reboot the node"
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "ResetDidNotHelp", why)
    return tell(operation, world, f"the GPUs were reset; {problem}")


ACT: Final = Act(refusal=refusal, emptied=emptied, acting=acting, verifying=verifying)
