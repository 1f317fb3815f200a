"""Works out one operation's next step from its record, its node and the time. Pure.

The leader calls ``step`` again and again with the cluster as it is. It returns either a new status or a change of the
node, never both: what may happen is on record before it happens, so a process that ends at any moment leaves a record
from which the next one continues. Each phase in which the engine acts has a time limit and an outcome for when it is
exceeded; waiting for people or for a turn, and giving back, have none. A person's action wins: uncordoning the node
ends the operation.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of
from kgpu.formats.crd.nodeoperation import MAX_TEXT, NodeAct, NodeBefore, OperationPhase, OperationType, Result
from kgpu.operations import (
    completing,
    driver_upgrade,
    forcing,
    gpu_reset,
    gpus,
    maintenance,
    mig_change,
    reboot,
    replace,
)
from kgpu.operations.act import Act
from kgpu.operations.drain import drain_state
from kgpu.operations.emptying import empty, unread
from kgpu.operations.model import HoldNode, Operation, Step, TargetNode, moment_of
from kgpu.operations.records import (
    ADMITTED,
    CORDONED,
    deadline_of,
    end,
    give_back,
    hold,
    others_of,
    outcome_of,
    over,
    present,
    record,
    uncordoned,
    unheld,
)
from kgpu.operations.world import World

NODE_SECONDS: Final = 60.0
"""How long an operation waits for a node that does not exist."""
CORDON_SECONDS: Final = 60.0
_WITHOUT_NODE: Final = "WaitsForNode"


def step(operation: Operation, world: World) -> Step:
    """What to write for one operation now."""
    if operation.ended:
        return Step()
    if operation.status.phase_since is None:
        return record(operation, world, phase=OperationPhase.PENDING, **_first_sight(world))
    if operation.begun and _is_another(operation, world.node):
        return _ACTS[operation.type].gone(operation, world)
    return _STEPS[operation.phase](operation, world)


def _first_sight(world: World) -> dict[str, Any]:
    return {"reason": "Waiting", "message": "waits to be looked at", "node_uid": world.node.uid if world.node else ""}


def _is_another(operation: Operation, node: TargetNode | None) -> bool:
    """Whether the operation's node is gone: a name can be used again, a uid can't."""
    return node is None or node.uid != (operation.status.node_uid or node.uid)


def _pending(operation: Operation, world: World) -> Step:
    spec, node, now = operation.spec, world.node, world.now
    if spec.cancel or spec.resume:
        return end(operation, world, Result.CANCELLED, "Cancelled", "it was cancelled before it began")
    deadline = moment_of(spec.deadline)
    if deadline is not None and now >= deadline:
        return end(operation, world, Result.TRANSIENT_FAILURE, "DeadlinePassed", "it had not begun by its deadline")
    wanted = spec.node_uid or operation.status.node_uid
    if node is None or (wanted and node.uid != wanted):
        return _without_node(operation, world)
    if not operation.status.node_uid:
        return record(operation, world, node_uid=node.uid)
    if refusal := forcing.refusal(operation, world) or _refusal(operation, node):
        return end(operation, world, Result.PERMANENT_FAILURE, "Refused", refusal)
    if first := _ACTS[operation.type].settled(operation, world):
        return first
    if not world.admission.admitted:
        return _waits(operation, world)
    before = NodeBefore(
        unschedulable=node.unschedulable and not node.cordoned_by_us,
        boot_id=node.boot_id,
        gpus=dict(node.gpus),
        checked=bool(node.checked_boot),
    )
    return record(
        operation, world, (ADMITTED, "True", "Admitted", ""), phase=OperationPhase.CORDONING, limit=CORDON_SECONDS,
        started_at=stamp_of(now), before=before, **_beginning(operation, node),
    )  # fmt: skip


def _refusal(operation: Operation, node: TargetNode) -> str:
    """Why this can't be done to the node, "" if it can."""
    of_gpus = gpus.refusal(operation, node) if operation.spec.gpus else completing.refusal(operation)
    return _ACTS[operation.type].refusal(operation, node) or of_gpus


def _beginning(operation: Operation, node: TargetNode) -> dict[str, Any]:
    if not operation.spec.gpus:
        return {"reason": "Cordoning", "message": "the node is being cordoned"}
    act = NodeAct(id=f"{operation.uid}-1", boot_id=node.boot_id)
    what = "the node is being cordoned" if operation.cordons else "its GPUs are being withdrawn"
    return {"reason": "Withdrawing", "message": what, "act": act}


def _without_node(operation: Operation, world: World) -> Step:
    """Wait for ``NODE_SECONDS``, as the node may be about to appear, then fail."""
    if operation.status.reason != _WITHOUT_NODE:
        why = f"it waits {NODE_SECONDS:.0f} s for its node, which is not there"
        return record(operation, world, phase=OperationPhase.PENDING, reason=_WITHOUT_NODE, message=why)
    until = (moment_of(operation.status.phase_since) or 0.0) + NODE_SECONDS
    if world.now < until:
        return Step(again_at=until)
    if world.node is not None:
        why = "another node has this name now; make a new operation if that one is meant"
    else:
        why = f"there is no node {operation.node}; `kubectl get nodes` names them"
    return end(operation, world, Result.PERMANENT_FAILURE, "NoSuchNode", why)


def _waits(operation: Operation, world: World) -> Step:
    """Record once why it does not begin: a reason that keeps changing must not cost writes for a
    thousand waiting ones.
    """
    times = (moment_of(operation.spec.not_before), moment_of(operation.spec.deadline))
    again_at = min((moment for moment in times if moment is not None and moment > world.now), default=None)
    known = (operation.status.reason, operation.status.message)
    if operation.status.reason == world.admission.reason and (
        not world.admission.exact or known[1] == one_line(world.admission.why, MAX_TEXT)
    ):
        return Step(again_at=again_at)
    return record(operation, world, reason=world.admission.reason, message=world.admission.why)


def _cordoning(operation: Operation, world: World) -> Step:
    if first := _ACTS[operation.type].recalled(operation, world):
        return first
    if not operation.cordons:
        return gpus.withdrawing(operation, world)
    node = present(world)
    if operation.spec.cancel or operation.spec.resume:
        return give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before the node was empty")
    if operation.uid in node.owners and not node.unschedulable:
        return uncordoned(operation, world)
    if operation.uid in node.owners:
        if first := _ACTS[operation.type].prepared(operation, world):
            return first
        return record(
            operation, world, (CORDONED, "True", "Cordoned", ""), **completing.draining(operation, waits=True)
        )
    if over(operation, world):
        return give_back(
            operation, world, Result.TRANSIENT_FAILURE, "NotCordoned",
            f"the node could not be cordoned within {CORDON_SECONDS:.0f} s; see the operator's log",
        )  # fmt: skip
    return Step(writes=(hold(operation, world),), again_at=deadline_of(operation))


def _draining(operation: Operation, world: World) -> Step:
    node, spec = present(world), operation.spec
    emptied = functools.partial(_ACTS[operation.type].emptied, operation, world)
    if first := _ACTS[operation.type].recalled(operation, world):
        return first
    if not operation.cordons:
        return gpus.draining(operation, world, emptied)
    if spec.cancel or spec.resume:
        return give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before the node was empty")
    if first := unheld(operation, world):
        return first
    if world.pods is None:
        return unread(operation, world)
    if first := completing.awaited(operation, world, world.pods):
        return first
    known = dataclasses.replace(
        world.evicted, exchanges_driver=operation.type is OperationType.DRIVER_UPGRADE,
        driver_pod=world.driver.uid if world.driver is not None else "",
    )  # fmt: skip
    state = drain_state(world.pods, spec.drain, known, node_ready=node.ready, now=world.now, monotonic=world.monotonic)
    if spec.gpus:  # whoever stays on the node may not hold one of these
        return empty(operation, world, state, lambda _: gpus.draining(operation, world, emptied))
    return empty(operation, world, state, emptied)


def _restoring(operation: Operation, world: World) -> Step:
    node = present(world)
    others = others_of(operation, world)
    if node.held and (operation.uid in node.owners or not others):
        again_at = None if over(operation, world) else deadline_of(operation)
        if over(operation, world) and operation.status.reason != "NotRestored":
            why = "the node could not be given back yet; kgpu keeps trying; see the operator's log"
            return record(operation, world, reason="NotRestored", message=why)
        return Step(writes=(HoldNode(node=node, owners=others, cordon=bool(others)),), again_at=again_at)
    return end(operation, world, Result(operation.status.result), *outcome_of(operation))


_ACTS: Final[Mapping[OperationType, Act]] = {
    OperationType.MAINTENANCE: maintenance.ACT,
    OperationType.REBOOT: reboot.ACT,
    OperationType.GPU_RESET: gpu_reset.ACT,
    OperationType.REPLACE: replace.ACT,
    OperationType.DRIVER_UPGRADE: driver_upgrade.ACT,
    OperationType.MIG_CHANGE: mig_change.ACT,
}
_STEPS: Final[Mapping[OperationPhase, Callable[[Operation, World], Step]]] = {
    OperationPhase.PENDING: _pending,
    OperationPhase.CORDONING: _cordoning,
    OperationPhase.DRAINING: _draining,
    OperationPhase.ACTING: lambda operation, world: _ACTS[operation.type].acting(operation, world),
    OperationPhase.VERIFYING: lambda operation, world: _ACTS[operation.type].verifying(operation, world),
    OperationPhase.RESTORING: _restoring,
}
