"""MigChange: GPUs that no pod holds get other MIG slices, or partition modes, while the others go on working. Pure.

The node's MIG manager has said which GPUs get which layout; it alone cuts them, on the order's step ``change``, and
says what came of it. Where a GPU has to be reset for that, every program lets go of the driver first. One that has not
acted ends when the node asks for something else, or for nothing. Once the change is ordered it can't be called back:
the manager brings each GPU to the wanted layout or gives it the former one.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationMig, OperationPhase, Result
from kgpu.formats.node_order import ChangeResult, OrderStep
from kgpu.formats.partition_mode import label_of
from kgpu.operations import gpus
from kgpu.operations.act import Act
from kgpu.operations.drain import DrainState, progress
from kgpu.operations.model import Operation, Step, TargetNode, moment_of
from kgpu.operations.records import (
    ACT_DONE,
    DRAINED,
    RELEASED,
    VERIFIED,
    Condition,
    condition_of,
    end,
    give_back,
    is_true,
    over,
    present,
    record,
    tell,
    unheld,
)
from kgpu.operations.world import World

CHANGE_SECONDS: Final = 600.0
"""How long letting go of the driver and cutting may take: less than the agent stays without the driver (15 minutes)."""
VERIFY_SECONDS: Final = 300.0
CUTTING: Final = "its GPUs are being cut"
LATE: Final = "ChangeTimeout"


def refusal(operation: Operation, node: TargetNode) -> str:
    """Why the GPUs can't be cut so, "" if they can."""
    mig, wanted = operation.spec.mig, set(operation.spec.gpus)
    if mig is None or not wanted:
        return (
            f"it does not say how which GPUs of {node.name} are to be cut, which only the node knows; set the Node's "
            f"label {names.MIG_CONFIG_LABEL} or {names.AMD_PROFILE_LABEL} instead, and kgpu makes the operation"
        )
    if len(mig.layouts) != len(wanted) or {row.gpu for row in mig.layouts} != wanted:
        return "its layouts are not about the GPUs that it names; set the Node's label instead, and kgpu makes one"
    return ""


def settled(operation: Operation, world: World) -> Step | None:
    """End one that has not begun and that the node does not ask for any more."""
    why = _unasked(operation, world)
    return end(operation, world, Result.SUPERSEDED, "RequestChanged", why) if why else None


def recalled(operation: Operation, world: World) -> Step | None:
    """The same for one whose GPUs are being emptied."""
    why = _unasked(operation, world)
    return give_back(operation, world, Result.SUPERSEDED, "RequestChanged", why) if why else None


def _unasked(operation: Operation, world: World) -> str:
    """What the node asks for in its place, "" while it asks for this."""
    asked = present(world).mig_request
    if asked is not None and asked.id == _mig(operation).request:
        return ""
    now = "something else" if asked is not None else "nothing"
    return f"its node asks for {now} now, by its label {label_of(_mig(operation).layouts)}"


def emptied(operation: Operation, world: World, state: DrainState) -> Step:
    """The GPUs are empty: let them be cut, or first the driver be released."""
    doing = "the node's agent lets go of the driver" if _mig(operation).release else CUTTING
    return record(
        operation, world, (DRAINED, "True", "Drained", ""), phase=OperationPhase.ACTING,
        limit=min(CHANGE_SECONDS, operation.act_seconds),
        drain=progress(state, operation.status.drain), reason="Changing",
        message=f"no pod holds its GPUs; {doing}",
    )  # fmt: skip


def acting(operation: Operation, world: World) -> Step:
    """Have the driver released if a GPU has to be reset, then the GPUs cut, and go by what the agent says of it."""
    if first := gpus.rebooted(operation, world):
        return first
    if _mig(operation).release and not is_true(operation, RELEASED):
        return _releasing(operation, world)
    if first := unheld(operation, world):
        return first
    since = condition_of(operation, RELEASED)
    after = moment_of(since.last_transition_time) if since is not None else None
    if (waits := gpus.unanswered(operation, world, OrderStep.CHANGE, LATE, since=after)) is not None:
        return waits
    answer = gpus.answer_of(operation, world)
    if answer is not None and answer.result is not None:
        return _ended(operation, world, answer.result)
    if over(operation, world):
        return give_back(operation, world, Result.TRANSIENT_FAILURE, LATE, _too_late(operation))
    return tell(operation, world, CUTTING)


def _releasing(operation: Operation, world: World) -> Step:
    if operation.spec.cancel:
        return give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before its GPUs were cut")
    if first := unheld(operation, world):
        return first
    if (waits := gpus.unanswered(operation, world, OrderStep.RELEASE, LATE)) is not None:
        return waits
    return record(operation, world, (RELEASED, "True", "Released", ""), message=CUTTING)


def _ended(operation: Operation, world: World, result: ChangeResult) -> Step:
    if result.done:
        return record(
            operation, world, (ACT_DONE, "True", "Changed", ""), phase=OperationPhase.VERIFYING, limit=VERIFY_SECONDS,
            reason="Verifying", message="the GPUs were cut; the node's agent reads them anew",
        )  # fmt: skip
    why = result.text or "the node's MIG manager does not say why"
    if result.lost:
        lost: Condition = (ACT_DONE, "False", "LayoutLost", why)
        told = f"the GPUs have neither the wanted layout nor the former one: {why}"
        return give_back(operation, world, Result.PERMANENT_FAILURE, "LayoutLost", told, lost)
    failed: Condition = (ACT_DONE, "False", "ChangeFailed", why)
    told = f"the GPUs have their former layout: {why}"
    return give_back(operation, world, Result.TRANSIENT_FAILURE, "ChangeFailed", told, failed)


def _too_late(operation: Operation) -> str:
    seconds = min(CHANGE_SECONDS, operation.act_seconds)
    return f"the GPUs were not cut within {seconds:.0f} s; see the log of the node's MIG manager"


def verifying(operation: Operation, world: World) -> Step:
    """Wait for a reading from after the change in which every GPU is well."""
    if operation.spec.cancel:
        why = "it was ended before its GPUs were found well; they are cut as wanted"
        return give_back(operation, world, Result.CANCELLED, "Cancelled", why)
    if first := gpus.rebooted(operation, world) or unheld(operation, world):
        return first
    if (waits := gpus.unanswered(operation, world, OrderStep.RESUME, "NotWell")) is not None:
        return waits
    problem = gpus.problem_of(operation, world)
    if not problem:
        why = f"the GPUs are cut as {_mig(operation).config} asks, and well"
        return give_back(operation, world, Result.SUCCEEDED, "MigChanged", why, (VERIFIED, "True", "Well", ""))
    if over(operation, world):
        why = f"the GPUs were cut, and are not well after {VERIFY_SECONDS:.0f} s: {problem}"
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "NotWell", why)
    return tell(operation, world, f"the GPUs were cut; {problem}")


def _mig(operation: Operation) -> OperationMig:
    if operation.spec.mig is None:
        raise ValueError(operation.name)
    return operation.spec.mig


ACT: Final = Act(
    refusal=refusal, emptied=emptied, acting=acting, verifying=verifying, settled=settled, recalled=recalled
)
