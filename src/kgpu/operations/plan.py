"""One operation's next step: a record, a node and the time in, what is to be written out. Pure.

``step`` is called again and again, by whoever leads, with the cluster as it is then. It returns either a new status or
what is to be done about the node, never both: what may happen is on record before it does, and a process that ends at
any moment leaves a record from which the next one goes on. What the engine does has a limit, and a stated outcome once
that is over; what waits for people or for its turn, and giving back, has none. A person's act wins: one who uncordons
the node ends the operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from kgpu.base.printable import one_line
from kgpu.formats.crd.nodeoperation import MAX_TEXT, NodeBefore, NodeOperationStatus, OperationPhase, Result
from kgpu.formats.crd.status import StatusCondition
from kgpu.operations.drain import DrainState, Evicted, drain_state, named, progress
from kgpu.operations.model import (
    Evict,
    Forget,
    HoldNode,
    NodePod,
    Operation,
    Record,
    Step,
    TargetNode,
    moment_of,
    stamp_of,
)

NODE_SECONDS: Final = 60.0
"""How long an operation waits for a node that is not there."""
CORDON_SECONDS: Final = 60.0
RESTORE_SECONDS: Final = 120.0
KEPT: Final = 10
"""Operations of a node that are kept once they are over."""
KEPT_SECONDS: Final = 30 * 86400.0
PODS_SECONDS: Final = 1.0
"""How often pods that have to go are looked at again."""

ADMITTED: Final = "Admitted"
CORDONED: Final = "Cordoned"
DRAINED: Final = "Drained"
RESTORED: Final = "Restored"
COMPLETE: Final = "Complete"

_FAILURES: Final = frozenset({Result.TRANSIENT_FAILURE, Result.PERMANENT_FAILURE})
_WITHOUT_NODE: Final = "WaitsForNode"
_WORDS: Final[Mapping[str, Literal["True", "False"]]] = {"True": "True", "False": "False"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionVerdict:
    """Whether an operation that waits may begin; ``reason`` and ``why`` where it may not. ``exact``: also another
    ``why`` for the same reason is worth telling.
    """

    admitted: bool = False
    reason: str = ""
    why: str = ""
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What one operation sees. ``node`` is None where there is none of its name; ``pods`` are those on it, None while
    they have not been read. ``live`` are the uids of the operations that hold nodes. ``monotonic`` is the time by the
    clock of ``Answer``. ``tell_progress``: the record of the drain may be written again already.
    """

    now: float
    node: TargetNode | None
    admission: AdmissionVerdict = field(default_factory=AdmissionVerdict)
    pods: tuple[NodePod, ...] | None = None
    evicted: Evicted = field(default_factory=Evicted)
    live: frozenset[str] = frozenset()
    monotonic: float = 0.0
    tell_progress: bool = True


def step(operation: Operation, world: World) -> Step:
    """What is to be written for one operation now."""
    if operation.ended:
        return Step()
    if operation.status.phase_since is None:
        return _record(operation, world, phase=OperationPhase.PENDING, **_first_sight(world))
    if operation.begun and _is_another(operation, world.node):
        return _end(
            operation,
            world,
            Result.SUPERSEDED,
            "NodeGone",
            "the node is gone, or another one has its name now",
        )
    return _STEPS[operation.phase](operation, world)


def _first_sight(world: World) -> dict[str, Any]:
    return {"reason": "Waiting", "message": "waits to be looked at", "node_uid": world.node.uid if world.node else ""}


def _is_another(operation: Operation, node: TargetNode | None) -> bool:
    """Whether the node of the operation is gone: names come again, uids do not."""
    return node is None or node.uid != (operation.status.node_uid or node.uid)


def _pending(operation: Operation, world: World) -> Step:
    spec, node, now = operation.spec, world.node, world.now
    if spec.cancel or spec.resume:
        return _end(operation, world, Result.CANCELLED, "Cancelled", "it was cancelled before it began")
    deadline = moment_of(spec.deadline)
    if deadline is not None and now >= deadline:
        return _end(operation, world, Result.TRANSIENT_FAILURE, "DeadlinePassed", "it had not begun by its deadline")
    wanted = spec.node_uid or operation.status.node_uid
    if node is None or (wanted and node.uid != wanted):
        return _without_node(operation, world)
    if not operation.status.node_uid:
        return _record(operation, world, node_uid=node.uid)
    if not world.admission.admitted:
        return _waits(operation, world)
    before = NodeBefore(unschedulable=node.unschedulable and not node.cordoned_by_us, boot_id=node.boot_id)
    return _record(
        operation, world, (ADMITTED, "True", "Admitted", ""), phase=OperationPhase.CORDONING, limit=CORDON_SECONDS,
        started_at=stamp_of(now), before=before, reason="Cordoning", message="the node is being cordoned",
    )  # fmt: skip


def _without_node(operation: Operation, world: World) -> Step:
    """A node that is not there may be about to come, or to come back."""
    if operation.status.reason != _WITHOUT_NODE:
        why = f"it waits {NODE_SECONDS:.0f} s for its node, which is not there"
        return _record(operation, world, phase=OperationPhase.PENDING, reason=_WITHOUT_NODE, message=why)
    until = (moment_of(operation.status.phase_since) or 0.0) + NODE_SECONDS
    if world.now < until:
        return Step(again_at=until)
    if world.node is not None:
        why = "another node has this name now; make a new operation if that one is meant"
    else:
        why = f"there is no node {operation.node}; `kubectl get nodes` names them"
    return _end(operation, world, Result.PERMANENT_FAILURE, "NoSuchNode", why)


def _waits(operation: Operation, world: World) -> Step:
    """Tell why it does not begin, once: what changes all the time is not written for a thousand that wait."""
    times = (moment_of(operation.spec.not_before), moment_of(operation.spec.deadline))
    again_at = min((moment for moment in times if moment is not None and moment > world.now), default=None)
    known = (operation.status.reason, operation.status.message)
    if operation.status.reason == world.admission.reason and (
        not world.admission.exact or known[1] == one_line(world.admission.why, MAX_TEXT)
    ):
        return Step(again_at=again_at)
    return _record(operation, world, reason=world.admission.reason, message=world.admission.why)


def _cordoning(operation: Operation, world: World) -> Step:
    node = _present(world)
    if operation.spec.cancel or operation.spec.resume:
        return _give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before the node was empty")
    if operation.uid in node.owners and not node.unschedulable:
        return _uncordoned(operation, world)
    if operation.uid in node.owners:
        return _record(
            operation, world, (CORDONED, "True", "Cordoned", ""), phase=OperationPhase.DRAINING,
            limit=float(operation.spec.drain.timeout_seconds), reason="Draining", message="the node is being emptied",
        )  # fmt: skip
    if _over(operation, world):
        return _give_back(
            operation, world, Result.TRANSIENT_FAILURE, "NotCordoned",
            f"the node could not be cordoned within {CORDON_SECONDS:.0f} s; see the operator's log",
        )  # fmt: skip
    return Step(writes=(_hold(operation, world),), again_at=_deadline(operation))


def _draining(operation: Operation, world: World) -> Step:
    node, spec, status = _present(world), operation.spec, operation.status
    if spec.cancel or spec.resume:
        return _give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before the node was empty")
    if not node.unschedulable:
        return _uncordoned(operation, world)
    if operation.uid not in node.owners:
        return Step(writes=(_hold(operation, world),), again_at=_deadline(operation))
    if world.pods is None:
        return _over_or(operation, world, Step(again_at=_deadline(operation)), "its pods could not be read")
    state = drain_state(
        world.pods, spec.drain, world.evicted, node_ready=node.ready, now=world.now, monotonic=world.monotonic
    )
    if status.drain is None and state.unsure:
        return _over_or(operation, world, Step(again_at=world.now + PODS_SECONDS), "its pods' DaemonSets can't be read")
    if status.drain is None:
        return _first_look(operation, world, state)
    if state.done:
        return _emptied(operation, world, state)
    if state.hopeless:
        return _give_back(
            operation,
            world,
            Result.PERMANENT_FAILURE,
            "EvictionRefused",
            state.hopeless,
            drain=progress(state, status.drain),
        )
    told = progress(state, status.drain)
    if _over(operation, world):
        why = f"the node was not empty after {spec.drain.timeout_seconds} s: {named((*state.refused, *state.waiting))}"
        return _give_back(operation, world, Result.TRANSIENT_FAILURE, "DrainTimeout", why, drain=told)
    if world.tell_progress and told != status.drain:
        return _record(operation, world, drain=told, message=_going(told.total - told.gone))
    again = min(_deadline(operation) or math.inf, world.now + PODS_SECONDS)
    return Step(
        writes=tuple(Evict(pod=pod, grace=spec.drain.grace_period_seconds) for pod in state.evict), again_at=again
    )


def _first_look(operation: Operation, world: World, state: DrainState) -> Step:
    """Before the first pod is asked: one that may not go stops it all, as nobody has lost anything yet."""
    if state.refused:
        why = f"pods on the node may not go: {named(state.refused)}"
        return _give_back(operation, world, Result.PERMANENT_FAILURE, "DrainRefused", why, drain=progress(state, None))
    return _record(operation, world, drain=progress(state, None), message=_going(len(state.waiting)))


def _going(count: int) -> str:
    return f"the node is being emptied: {count} pod{'' if count == 1 else 's'} still to go"


def _emptied(operation: Operation, world: World, state: DrainState) -> Step:
    duration = operation.spec.duration_seconds
    resume = f"`kgpu operations resume {operation.name}` gives it back"
    empty = f"empty, but for {named(state.stranded)}; it is" if state.stranded else "empty and"
    return _record(
        operation, world, (DRAINED, "True", "Drained", ""), phase=OperationPhase.ACTING,
        limit=None if duration is None else float(duration), drain=progress(state, operation.status.drain),
        reason="InMaintenance", message=f"the node is {empty} held for maintenance; {resume}",
    )  # fmt: skip


def _acting(operation: Operation, world: World) -> Step:
    """Maintenance: a person works on the node."""
    node, spec = _present(world), operation.spec
    if spec.resume or spec.cancel:
        return _give_back(operation, world, Result.SUCCEEDED, "Resumed", "the maintenance is over")
    if _over(operation, world):
        return _give_back(operation, world, Result.SUCCEEDED, "DurationOver", "the maintenance's time is over")
    if not node.unschedulable:
        return _uncordoned(operation, world)
    if operation.uid not in node.owners:
        return Step(writes=(_hold(operation, world),), again_at=_deadline(operation))
    return Step(again_at=_deadline(operation))


def _uncordoned(operation: Operation, world: World) -> Step:
    return _give_back(
        operation, world, Result.CANCELLED, "Uncordoned", "somebody has uncordoned the node, which ends it"
    )


def _restoring(operation: Operation, world: World) -> Step:
    node = _present(world)
    others = _others(operation, world)
    if node.held and (operation.uid in node.owners or not others):
        again_at = None if _over(operation, world) else _deadline(operation)
        if _over(operation, world) and operation.status.reason != "NotRestored":
            why = "the node could not be given back yet, and it is tried on; see the operator's log"
            return _record(operation, world, reason="NotRestored", message=why)
        return Step(writes=(HoldNode(node=node, owners=others, cordon=bool(others)),), again_at=again_at)
    status = operation.status
    return _end(operation, world, Result(status.result), status.reason, status.message)


_STEPS: Final[Mapping[OperationPhase, Callable[[Operation, World], Step]]] = {
    OperationPhase.PENDING: _pending,
    OperationPhase.CORDONING: _cordoning,
    OperationPhase.DRAINING: _draining,
    OperationPhase.ACTING: _acting,
    OperationPhase.RESTORING: _restoring,
}


def _present(world: World) -> TargetNode:
    """The node of an operation that has begun, which ``step`` has looked for."""
    if world.node is None:
        raise ValueError(world)
    return world.node


def _others(operation: Operation, world: World) -> tuple[str, ...]:
    """Other operations that hold the node; names of some that are over count no more."""
    return tuple(uid for uid in _present(world).owners if uid in world.live and uid != operation.uid)


def _hold(operation: Operation, world: World) -> HoldNode:
    before = operation.status.before or NodeBefore()
    owners = (*_others(operation, world), operation.uid)
    return HoldNode(node=_present(world), owners=owners, cordon=not before.unschedulable)


def _deadline(operation: Operation) -> float | None:
    return moment_of(operation.status.phase_deadline)


def _over(operation: Operation, world: World) -> bool:
    """Whether the phase has taken longer than it may."""
    deadline = _deadline(operation)
    return deadline is not None and world.now >= deadline


def _over_or(operation: Operation, world: World, otherwise: Step, why: str) -> Step:
    if not _over(operation, world):
        return otherwise
    return _give_back(operation, world, Result.TRANSIENT_FAILURE, "DrainTimeout", why)


def _give_back(operation: Operation, world: World, result: Result, reason: str, why: str, **fields: Any) -> Step:
    """Put on record what came of it, and let the node go."""
    fields |= {"result": str(result), "reason": reason, "message": why}
    return _record(operation, world, phase=OperationPhase.RESTORING, limit=RESTORE_SECONDS, **fields)


def _end(operation: Operation, world: World, result: Result, reason: str, why: str) -> Step:
    """The end: nothing is done any more."""
    gone = result is Result.SUPERSEDED
    conditions = [(RESTORED, "True", "Restored", "")] if operation.begun and not gone else []
    conditions.append((COMPLETE, "True" if result is Result.SUCCEEDED else "False", reason, why))
    phase = OperationPhase.FAILED if result in _FAILURES else OperationPhase.COMPLETE
    return _record(
        operation, world, *conditions, phase=phase, result=str(result), reason=reason, message=why,
        completed_at=stamp_of(world.now),
    )  # fmt: skip


def _record(
    operation: Operation, world: World, *conditions: tuple[str, str, str, str], phase: OperationPhase | None = None,
    limit: float | None = None, **fields: Any,
) -> Step:  # fmt: skip
    """A new status. With a phase, that begins now and may take ``limit`` seconds; conditions are type, status, reason
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


def _with_condition(
    status: NodeOperationStatus, condition: tuple[str, str, str, str], now: float
) -> NodeOperationStatus:
    kind, word, reason, message = condition
    row = StatusCondition(
        type=kind, status=_WORDS[word], reason=reason, message=one_line(message, MAX_TEXT),
        last_transition_time=stamp_of(now),
    )  # fmt: skip
    others = tuple(known for known in status.conditions if known.type != kind)
    return msgspec.structs.replace(status, conditions=(*others, row))


def leftovers(nodes: Collection[TargetNode], live: frozenset[str]) -> tuple[HoldNode, ...]:
    """Nodes that are held for operations that are over, or are there no more: each is given back.

    ``live`` are the uids of all operations that may hold a node, also of those that can't be read.
    """
    rows = []
    for node in nodes:
        owners = tuple(uid for uid in node.owners if uid in live)
        if node.held and (owners != node.owners or not owners):
            rows.append(HoldNode(node=node, owners=owners, cordon=node.cordoned_by_us and bool(owners)))
    return tuple(rows)


def outdated(operations: Collection[Operation], now: float) -> tuple[Forget, ...]:
    """Operations that are over and not worth keeping: the last ``KEPT`` of each node are, for ``KEPT_SECONDS``."""
    by_node: dict[str, list[tuple[float, Operation]]] = {}
    for operation in operations:
        if operation.ended:
            ended = moment_of(operation.status.completed_at) or operation.created
            by_node.setdefault(operation.node, []).append((ended, operation))
    rows = []
    for ends in by_node.values():
        ends.sort(key=lambda row: (row[0], row[1].name), reverse=True)
        rows += [
            operation for place, (ended, operation) in enumerate(ends) if place >= KEPT or now - ended > KEPT_SECONDS
        ]
    return tuple(Forget(operation=operation) for operation in rows)
