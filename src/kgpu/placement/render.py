"""The answer as text for people, and as data. Data has every pod; text the first of each kind, and how many more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import groupby
from typing import Any, Final

from kgpu.base.printable import counted, one_line
from kgpu.formats.usage import MILLION
from kgpu.placement.model import DefragPlan, GangOutcome, PodOutcome, ResourceRoom, WhatIfAnswer

VERSION: Final = 1
_PREEMPTION: Final = " no new claims to deallocate, preemption: "
"""Where the scheduler's message goes on with what preemption came to, which data has."""
MOST_LINES: Final = 20
"""Pods that text shows of those that land, and of those that don't."""
MOST_IN_THE_WAY: Final = 8
"""Pods of a node that text shows where no moves make room there."""


def as_text(found: WhatIfAnswer) -> str:
    """For a terminal."""
    parts = (_changes(found), _pods(found), _gangs(found), _rooms(found), _stranded(found), _defrag(found.defrag),
             _prices(found), _notes(found))  # fmt: skip
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))


def _changes(found: WhatIfAnswer) -> Iterator[str]:
    if found.changes:
        yield "What if: " + "; ".join(one_line(words) for words in found.changes)
    else:
        yield "As it is"
    yield from (f"✘ the API server would refuse the pods: {one_line(words)}" for words in found.refusals)


def _pods(found: WhatIfAnswer) -> Iterator[str]:
    if not found.outcomes:
        yield "No pod needs a node."
        return
    landed = [outcome for outcome in found.outcomes if outcome.node]
    yield f"{len(landed)} of {len(found.outcomes)} pods that need a node get one" + (":" if landed else "")
    yield from _shown(landed, lambda one: _landing(one, found))
    missing = found.without_node
    if missing:
        yield f"{len(missing)} without a node:"
        yield from _shown(missing, _missing)


def _shown(outcomes: Iterable[PodOutcome], line: Any) -> Iterator[str]:
    rows = list(outcomes)
    yield from (f"  {line(row)}" for row in rows[:MOST_LINES])
    if len(rows) > MOST_LINES:
        yield f"  and {len(rows) - MOST_LINES} more (-o json has all)"


def _landing(one: PodOutcome, found: WhatIfAnswer) -> str:
    origin = f"{one.origin}, from {one.came_from}" if one.came_from else str(one.origin)
    put_out = f"; puts out {', '.join(one.preempts)}" if one.preempts else ""
    words = found.quality.get(str(one.pod), "")
    return one_line(f"{one.pod} -> {one.node} ({origin}{put_out})" + (f": {words}" if words else ""))


def _missing(one: PodOutcome) -> str:
    why = f"room on {one.room}, but not for its whole gang" if one.room else one.message.partition(_PREEMPTION)[0]
    return one_line(f"{one.pod} ({one.origin}): {why}")


def _gangs(found: WhatIfAnswer) -> Iterator[str]:
    for gang in found.gangs:
        yield one_line(_gang(gang))
        if gang.makes_room:
            yield one_line(f"  this would help: {'; or '.join(gang.makes_room)}")


def _gang(gang: GangOutcome) -> str:
    quality = "; ".join(gang.quality)
    if gang.fits_whole:
        return f"The gang {gang.name} starts: {quality}" if gang.scheduled else f"{gang.name} fits whole: {quality}"
    part = f"{gang.room_for} of {gang.pods} pods"
    if not gang.scheduled:
        waits = (
            f"; these hold it and wait for the rest, as each is placed by itself: {quality}" if gang.room_for else ""
        )
        return f"{gang.name} does not fit whole: {part} get a node{waits}; {gang.blocked_by}"
    if gang.starts:
        return f"The gang {gang.name} starts with {part}, of {gang.least} that it needs: {quality}; {gang.blocked_by}"
    have = f", {gang.running} of {gang.least} run already" if gang.running else ""
    return f"The gang {gang.name} does not start: {gang.blocked_by}{have}"


def _rooms(found: WhatIfAnswer) -> Iterator[str]:
    before = {room.resource: room for room in found.before}
    for room in found.after:
        was = before.get(room.resource)
        yield f"{room.resource:<32} before   after"
        for name, value in _figures(room):
            old = dict(_figures(was)).get(name, "-") if was is not None else "-"
            yield f"  {name:<30} {old:>6}  {value:>6}"


def _figures(room: ResourceRoom) -> Iterator[tuple[str, str]]:
    yield "all", str(room.total)
    yield "free", str(room.free)
    yield "largest free on one node", str(room.largest)
    for size, count in room.fits.items():
        yield f"pods of {size} with room", f"{count}"
        if size > 1:
            yield f"free, of no use to pods of {size}", f"{float(room.fragmentation[size]):.0%}"
    yield "free, of no use to usual pods", f"{float(room.stranded):.1f}"


def _stranded(found: WhatIfAnswer) -> Iterator[str]:
    for one in found.stranded:
        holders = ", ".join(one.holders)
        yield one_line(
            f"{one.free} {one.resource} on node {one.node} are of no use, as it is full of {one.full_of}; most of it "
            f"is held by {holders}"
        )


def _defrag(plan: DefragPlan | None) -> Iterator[str]:
    if plan is None:
        return
    wanted = f"{plan.wanted} {plan.resource} on one node"
    if not plan.node:
        yield f"No plan for {wanted}: {plan.why}"
        for why, count in sorted(plan.fixed.items()):
            yield f"  {counted(count, 'pod')}: {'each ' if count > 1 else ''}{why}"
        yield from _in_the_way(plan)
    elif not plan.moves:
        yield f"Room for {wanted} is there already: node {plan.node}"
    else:
        yield f"{counted(len(plan.moves), 'move')} for {wanted}, node {plan.node}:"
        yield from (f"  {at}. {one_line(f'{move.pod}: {move.source} -> {move.target}')}"
                    for at, move in enumerate(plan.moves, start=1))  # fmt: skip
        yield "  Nothing of it was done. A pod moves when it is evicted and its controller makes it again: cordon the"
        yield "  other nodes meanwhile, or give it an affinity, as the scheduler chooses by itself."


def _in_the_way(plan: DefragPlan) -> Iterator[str]:
    for name, group in groupby(plan.in_the_way, key=lambda one: one.node):
        rows = list(group)
        yield "  " + one_line(f"in the way on node {name}:")
        for one in rows[:MOST_IN_THE_WAY]:
            yield "    " + one_line(f"{one.pod} ({one.devices}): {one.why}")
        if len(rows) > MOST_IN_THE_WAY:
            yield f"    and {len(rows) - MOST_IN_THE_WAY} more (-o json has all)"


def _prices(found: WhatIfAnswer) -> Iterator[str]:
    if not found.prices:
        return
    total = sum(row.per_hour for row in found.prices)
    yield f"Cost: {_money(total)} {found.currency} an hour"
    for row in found.prices[:MOST_LINES]:
        assumed = f"; assumed: {row.assumed}" if row.assumed else ""
        yield "  " + one_line(f"{row.node}: {_money(row.per_hour)} ({row.source}{assumed})")
    if len(found.prices) > MOST_LINES:
        yield f"  and {len(found.prices) - MOST_LINES} more"


def _money(millionths: int) -> str:
    return f"{millionths / MILLION:+.2f}"


def _notes(found: WhatIfAnswer) -> Iterator[str]:
    yield from (f"note: {one_line(note)}" for note in found.notes)


def as_data(found: WhatIfAnswer) -> dict[str, Any]:
    """For programs: everything, amounts as numbers, an hour's cost in the currency."""
    return {
        "version": VERSION,
        "holds": found.holds,
        "changes": list(found.changes),
        "pods": [_pod_data(one, found) for one in found.outcomes],
        "gangs": [
            {
                "name": gang.name, "starts": gang.starts, "fitsWhole": gang.fits_whole, "pods": gang.pods,
                "roomFor": gang.room_for, "running": gang.running, "least": gang.least or None,
                "scheduledAsOne": gang.scheduled, "makesRoom": list(gang.makes_room),
                "blockedBy": gang.blocked_by or None, "quality": list(gang.quality),
            }
            for gang in found.gangs
        ],
        "resources": {
            "before": [_room_data(room) for room in found.before], "after": [_room_data(room) for room in found.after],
        },
        "stranded": [
            {
                "node": one.node, "resource": one.resource, "free": one.free, "fullOf": one.full_of,
                "holders": list(one.holders),
            }
            for one in found.stranded
        ],
        "defrag": _plan_data(found.defrag),
        "cost": {
            "currency": found.currency,
            "perHour": sum(row.per_hour for row in found.prices) / MILLION,
            "nodes": [
                {"node": row.node, "perHour": row.per_hour / MILLION, "source": row.source,
                 "assumed": row.assumed or None}
                for row in found.prices
            ],
        } if found.currency else None,
        "refusals": list(found.refusals),
        "notes": list(found.notes),
    }  # fmt: skip


def _pod_data(one: PodOutcome, found: WhatIfAnswer) -> dict[str, Any]:
    return {
        "namespace": one.pod.namespace, "name": one.pod.name, "owner": one.pod.owner or None, "origin": str(one.origin),
        "from": one.came_from or None, "node": one.node or None, "preempts": list(one.preempts),
        "gang": one.gang or None, "roomOn": one.room or None, "message": one.message or None,
        "nodesByReason": dict(one.counts), "reasons": list(one.reasons), "quality": found.quality.get(str(one.pod)),
    }  # fmt: skip


def _room_data(room: ResourceRoom) -> dict[str, Any]:
    return {
        "resource": room.resource, "all": room.total, "free": room.free, "largestFree": room.largest,
        "fits": {str(size): count for size, count in room.fits.items()},
        "fragmentation": {str(size): _rounded(part) for size, part in room.fragmentation.items()},
        "uselessToUsualPods": _rounded(room.stranded),
    }  # fmt: skip


def _rounded(value: Fraction) -> float:
    return round(float(value), 4)


def _plan_data(plan: DefragPlan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        "resource": plan.resource, "wanted": plan.wanted, "found": bool(plan.node), "node": plan.node or None,
        "why": plan.why or None, "fixed": dict(plan.fixed),
        "inTheWay": [
            {"node": one.node, "pod": str(one.pod), "devices": one.devices, "why": one.why} for one in plan.in_the_way
        ],
        "moves": [{"pod": str(move.pod), "from": move.source, "to": move.target} for move in plan.moves],
    }  # fmt: skip
