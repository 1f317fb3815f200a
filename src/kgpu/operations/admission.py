"""Which operations may begin: one budget for all kinds. Pure.

A node that nobody can use is unavailable, whoever cordoned it and for whatever reason, so one budget covers people's
cordons, this engine's and failures. Work on a node that is already down counts against ``maxParallel`` but not against
``maxUnavailable``. A node that waits for another machine needs nobody's work: it counts against ``maxUnavailable``
alone. The budget never stops an operation that has begun, and never delays giving a node back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.times import stamp_of
from kgpu.formats.crd.nodeoperation import OperationType
from kgpu.operations.config import GroupCap, OperationBudget
from kgpu.operations.model import Operation, TargetNode, moment_of
from kgpu.operations.rollouts import Rollouts
from kgpu.operations.windows import opens_at
from kgpu.operations.world import UNAPPROVED, AdmissionVerdict

_BUDGET: Final = "WaitsForBudget"
_HOUR: Final = 3600.0


@dataclass(slots=True, kw_only=True)
class _Room:
    """What is left of the budget during one round of admission."""

    budget: OperationBudget
    nodes: Mapping[str, TargetNode]
    slots: int
    limit: int
    room: int
    held: dict[str, str]
    """Nodes that operations hold, with the operation's name. Never more than ``limit``, even if some were down before.
    """
    down: set[str]
    opens_at: float
    """When remediation may begin the next one."""
    left_this_hour: float
    rollouts: Rollouts
    groups: Counter[tuple[str, str]] = field(default_factory=Counter)


def admit(
    operations: Sequence[Operation], nodes: Mapping[str, TargetNode], budget: OperationBudget, now: float,
    unreadable: Mapping[str, str] | None = None,
) -> dict[str, AdmissionVerdict]:  # fmt: skip
    """For each operation that waits, by uid, whether it may begin now. They are judged in order of rank and age.

    ``unreadable`` maps nodes to operations that can't be read: they may be at work there.
    """
    waiting = [operation for operation in operations if not operation.begun and not operation.ended]
    if not waiting:
        return {}
    room = _room(operations, nodes, budget, now, unreadable or {})
    verdicts: dict[str, AdmissionVerdict] = {}
    for operation in sorted(waiting, key=_rank):
        verdict = _refused(operation, room, now, unreadable or {}) or AdmissionVerdict(admitted=True)
        if verdict.admitted:
            _take(operation.node, operation.name, room)
            room.rollouts.take(operation)
        verdicts[operation.uid] = verdict
    return verdicts


def _rank(operation: Operation) -> tuple[int, float, str]:
    """What people ask for comes before what verdicts call for, that before rollouts, as no work is lost yet, and new
    MIG slices come last.
    """
    kind = 1 if operation.automatic else 2 if operation.spec.rollout is not None else 0
    kind = 3 if operation.type is OperationType.MIG_CHANGE else kind
    return kind, operation.created, operation.name


def _room(
    operations: Sequence[Operation], nodes: Mapping[str, TargetNode], budget: OperationBudget, now: float,
    unreadable: Mapping[str, str],
) -> _Room:  # fmt: skip
    begun = {operation.node: operation.name for operation in operations if operation.begun} | dict(unreadable)
    counted = {name for name, node in nodes.items() if node.has_gpus} | (begun.keys() & nodes.keys())
    down = {name for name in counted if is_down(nodes[name]) or name in begun}
    limit = budget.max_unavailable.of(max(1, len(counted)))
    at_work = sum(1 for operation in operations if operation.takes_slot)
    room = _Room(
        budget=budget, nodes=nodes, slots=budget.max_parallel - at_work - len(unreadable), limit=limit,
        room=limit - len(down), held=begun, down=down, opens_at=opens_at(budget.windows, now),
        left_this_hour=_left_this_hour(operations, budget, now), rollouts=Rollouts(operations, len(counted)),
    )  # fmt: skip
    for name in down:
        room.groups.update(_groups(name, room))
    return room


def _left_this_hour(operations: Sequence[Operation], budget: OperationBudget, now: float) -> float:
    """How many may still begin within this hour."""
    if budget.max_per_hour is None:
        return math.inf
    starts = (moment_of(operation.status.started_at) for operation in operations)
    return budget.max_per_hour - sum(1 for start in starts if start is not None and start > now - _HOUR)


def is_down(node: TargetNode) -> bool:
    """Whether no pod can be placed on the node."""
    return node.unschedulable or not node.ready


def _groups(name: str, room: _Room) -> list[tuple[str, str]]:
    """The groups of a node, as label and value."""
    node = room.nodes.get(name)
    labels = node.labels if node is not None else {}
    return list({(group.label, labels[group.label]): None for group in room.budget.groups if group.label in labels})


def _take(name: str, by: str, room: _Room) -> None:
    room.held[name] = by
    room.slots -= 1
    room.left_this_hour -= 1
    if name not in room.down:
        room.room -= 1
        room.down.add(name)
        room.groups.update(_groups(name, room))


def _refused(operation: Operation, room: _Room, now: float, unreadable: Mapping[str, str]) -> AdmissionVerdict | None:
    """Why an operation may not begin, None if it may."""
    spec, name = operation.spec, operation.node
    not_before = moment_of(spec.not_before)
    if not spec.approved:
        return _no(UNAPPROVED, f"it waits for approval: kgpu operations approve {operation.name}")
    if not_before is not None and now < not_before:
        return _no("WaitsForItsTime", f"it may begin at {spec.not_before}")
    if operation.automatic and now < room.opens_at:
        when = f"at {stamp_of(room.opens_at)}" if room.opens_at < math.inf else "not within the next days"
        why = f"it waits for a window in operations.windows; the next one opens {when}"
        return _no("WaitsForWindow", why, exact=True)
    if operation.automatic and name in room.nodes and room.nodes[name].gpus_healthy:
        return _no("WaitsForVerdict", "its node's GPUs are healthy now: it begins only if they call for it again")
    if not _is_there(operation, room.nodes):
        return _no("WaitsForNode", "its node is not there")
    if name in unreadable:
        why = f"it waits for {unreadable[name]}, which this version of kgpu can't read"
        return _no("NodeBlocked", why, exact=True)
    if name in room.held:
        return _no("NodeBusy", f"it waits for {room.held[name]}, which is at work on the same node", exact=True)
    down = room.down | ({name} if is_down(room.nodes[name]) else set())
    if (held_back := room.rollouts.refused(operation, down)) is not None:
        return held_back
    if room.budget.max_parallel == 0:
        return _no("Paused", "operations are paused: maxParallel is 0")
    if room.slots <= 0:
        return _no(_BUDGET, _waits(room))
    if room.left_this_hour <= 0:
        return _no("WaitsForRate", f"it waits: {room.budget.max_per_hour} operations an hour may begin (maxPerHour)")
    return _without_room(name, room)


def _is_there(operation: Operation, nodes: Mapping[str, TargetNode]) -> bool:
    """Whether its node exists: one that waits for it must not keep a slot from others."""
    node, wanted = nodes.get(operation.node), operation.spec.node_uid or operation.status.node_uid
    return node is not None and wanted in {"", node.uid}


def _without_room(name: str, room: _Room) -> AdmissionVerdict | None:
    limit = room.budget.max_unavailable
    already_down = name in room.down or (name in room.nodes and is_down(room.nodes[name]))
    if len(room.held) >= room.limit or (room.room <= 0 and not already_down):
        return (
            _no("Paused", f"operations are paused: maxUnavailable is {limit}")
            if limit.is_zero
            else _no(_BUDGET, _waits(room))
        )
    for label, value in () if already_down else _groups(name, room):
        cap = _cap(room.budget.groups, label)
        if room.groups[label, value] >= cap:
            return _no(_BUDGET, _waits(room, f"; at most {cap} with {label}={value} may be down"))
    return None


def _cap(groups: Sequence[GroupCap], label: str) -> int:
    return min(group.max_unavailable for group in groups if group.label == label)


def _waits(room: _Room, more: str = "") -> str:
    """One text for everything that the budget delays: which limit applies changes with every operation that ends."""
    budget = room.budget
    return (
        f"it waits for others to end, or for nodes to be up again: maxParallel is {budget.max_parallel}, "
        f"maxUnavailable {budget.max_unavailable}{more}"
    )


def _no(reason: str, why: str, *, exact: bool = False) -> AdmissionVerdict:
    return AdmissionVerdict(reason=reason, why=why, exact=exact)
