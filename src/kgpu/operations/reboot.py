"""Reboot: the empty node reboots, and is given back once it is healthy. Pure.

Only the node's boot ID shows that it has rebooted: the act's pod dies with the machine, so its end says nothing unless
it refused explicitly. An act has the ID that is on record, and the machine obeys each ID once.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import NodeAct, NodeBefore, OperationPhase, Result
from kgpu.operations.act import Act
from kgpu.operations.drain import DrainState, progress
from kgpu.operations.model import ActPod, Operation, StartAct, Step, TargetNode
from kgpu.operations.records import (
    ACT_DONE,
    DRAINED,
    VERIFIED,
    Condition,
    deadline_of,
    give_back,
    hold,
    over,
    present,
    record,
    tell,
    uncordoned,
    unheld,
)
from kgpu.operations.world import World

VERIFY_SECONDS: Final = 900.0
"""How long a node may take to be healthy after its boot: drivers have to load and GPUs to be validated."""


def refusal(operation: Operation, node: TargetNode) -> str:
    """Why the node can't be rebooted: without a boot ID nobody could tell whether it has."""
    del operation
    return "" if node.boot_id else f"the Node {node.name} has no boot ID, so a reboot could not be detected"


def emptied(operation: Operation, world: World, state: DrainState) -> Step:
    """Put on record which boot is to end, and the ID of the act."""
    act = NodeAct(id=f"{operation.uid}-1", boot_id=present(world).boot_id)
    return record(
        operation, world, (DRAINED, "True", "Drained", ""), phase=OperationPhase.ACTING,
        limit=operation.act_seconds, drain=progress(state, operation.status.drain), act=act,
        reason="Rebooting", message="the node is empty and is asked to reboot",
    )  # fmt: skip


def acting(operation: Operation, world: World) -> Step:
    """Ask for the reboot, and wait until the node has another boot ID."""
    node, act = present(world), operation.status.act or NodeAct()
    if node.boot_id and node.boot_id != act.boot_id:
        return record(
            operation, world, (ACT_DONE, "True", "Rebooted", ""), phase=OperationPhase.VERIFYING, limit=VERIFY_SECONDS,
            reason="Verifying", message="the node has rebooted; it is given back once it is healthy",
        )  # fmt: skip
    if not node.unschedulable:
        return uncordoned(operation, world)
    if world.act is None:  # no act pod is known yet
        return _ask(operation, world, node, act)
    if world.act.refused:
        return give_back(operation, world, Result.PERMANENT_FAILURE, "RebootRefused", world.act.why)
    if over(operation, world):
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "RebootTimeout", _too_late(operation, world.act))
    return tell(operation, world, _told(world.act))


def _ask(operation: Operation, world: World, node: TargetNode, act: NodeAct) -> Step:
    if operation.spec.cancel:
        return give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before the node was asked")
    if over(operation, world):
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "RebootTimeout", _too_late(operation, None))
    if operation.uid not in node.owners:
        return Step(writes=(hold(operation, world),), again_at=deadline_of(operation))
    if not world.acts_known:
        return Step(again_at=deadline_of(operation))
    return Step(writes=(StartAct(operation=operation, act=act, node=node),), again_at=deadline_of(operation))


def _told(pod: ActPod) -> str:
    why = f": {pod.why}" if pod.why else ""
    return f"the node is asked to reboot by the pod {pod.name}{why}"


def _too_late(operation: Operation, pod: ActPod | None) -> str:
    why = f"; its pod {pod.name}: {pod.why}" if pod is not None and pod.why else ""
    return f"the node has not rebooted within {operation.act_seconds:.0f} s{why}"


def verifying(operation: Operation, world: World) -> Step:
    """Wait until the node is Ready, validated, and offers the GPUs that it had."""
    if operation.spec.cancel:
        return give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before the node was found well")
    if first := unheld(operation, world):
        return first
    problem = problem_of(present(world), operation.status.before or NodeBefore())
    if not problem:
        well: Condition = (VERIFIED, "True", "Well", "")
        return give_back(
            operation, world, Result.SUCCEEDED, "Rebooted", "the node has rebooted and is healthy", well
        )  # fmt: skip
    if over(operation, world):
        why = f"the node has rebooted and is not healthy after {VERIFY_SECONDS:.0f} s: {problem}"
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "NotWell", why)
    return tell(operation, world, f"the node has rebooted; {problem}")


def problem_of(node: TargetNode, before: NodeBefore) -> str:
    if not node.ready:
        return "it is not Ready"
    if before.checked and node.checked_boot != node.boot_id:
        return "its GPUs have not been validated since"
    if before.checked and not node.validated:
        return f"it has not passed every check: see its condition {names.VALIDATED_CONDITION}"
    for resource, count in sorted(before.gpus.items()):
        if node.gpus.get(resource, 0) < count:
            return f"it offers {node.gpus.get(resource, 0)} {resource}, and had {count}"
    return ""


ACT: Final = Act(refusal=refusal, emptied=emptied, acting=acting, verifying=verifying)
