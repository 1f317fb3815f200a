"""Which writes turn the slices that the API server has into the wanted ones. Pure.

A consumer takes a pool's slices of the highest generation, and these only once there are as many as each of them says.
So a change of several slices gets a new generation, under which all of them are written: nobody ever sees half of it. A
change of one slice among several is atomic by itself and keeps the generation, as Kubernetes' own helper does; the only
slice of a pool gets a new one, which costs nothing. What a killed process has left half written is finished under its
generation, as long as it is what is wanted now. What is equal is not touched; slices of other nodes and drivers are
not even looked at.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgpu.base.quantity import Quantity, QuantityError
from kgpu.dra.api import bare
from kgpu.kube.port import Object, name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWrites:
    """The writes, in the order in which they are to be done: ``updates``, ``creates``, then ``deletes``."""

    updates: tuple[Object, ...] = ()
    creates: tuple[Object, ...] = ()
    deletes: tuple[Object, ...] = ()

    @property
    def count(self) -> int:
        """How many writes there are."""
        return len(self.updates) + len(self.creates) + len(self.deletes)


def plan(wanted: Sequence[Object], observed: Iterable[Object], *, driver: str, node: str) -> PoolWrites:
    """The writes that make ``observed`` into ``wanted``, which are one pool's slices; their generation is set here."""
    own = {name_of(one): one for one in observed if is_own(one, driver, node)}
    names = {name_of(one) for one in wanted}
    stale = tuple(one for name, one in sorted(own.items()) if name not in names)
    if not wanted:
        return PoolWrites(deletes=stale)
    pool = wanted[0]["spec"]["pool"]["name"]
    highest = max((_generation(one) for one in own.values() if _pool(one) == pool), default=0)
    changed = [one for one in wanted if not _is_there(one, own.get(name_of(one)), highest)]
    if not changed:
        return PoolWrites(deletes=stale)
    generation, written = highest, changed
    if not (_is_one_of_many(wanted, changed, own, highest) or _is_half_written(wanted, own, highest)):
        generation, written = highest + 1, list(wanted)
    ready = [_ready(one, own.get(name_of(one)), generation) for one in written]
    return PoolWrites(
        updates=tuple(one for one in ready if name_of(one) in own),
        creates=tuple(one for one in ready if name_of(one) not in own),
        deletes=stale,
    )


def is_own(one: Object, driver: str, node: str) -> bool:
    """Whether it is a slice of this driver on this node."""
    spec = one.get("spec") or {}
    return bool(spec.get("driver") == driver and spec.get("nodeName") == node)


def dropped(sent: Object, answer: Object) -> frozenset[str]:
    """Which fields of ``taints`` and ``counters`` the API server has dropped from a slice that was written."""
    there = _fields(answer)
    return frozenset(name for name in _fields(sent) if name not in there)


def _fields(one: Object) -> frozenset[str]:
    bodies = [bare(device) for device in one["spec"].get("devices") or ()]
    has = {
        "taints": any(body.get("taints") for body in bodies),
        "counters": bool(one["spec"].get("sharedCounters")) or any(body.get("consumesCounters") for body in bodies),
    }
    return frozenset(name for name, found in has.items() if found)


def _is_there(wanted: Object, found: Object | None, generation: int) -> bool:
    return found is not None and _generation(found) == generation and same_content(wanted, found)


def _is_one_of_many(
    wanted: Sequence[Object], changed: Sequence[Object], own: Mapping[str, Object], generation: int
) -> bool:
    """Whether one update alone makes the whole pool right."""
    found = own.get(name_of(changed[0]))
    if len(changed) > 1 or len(wanted) == 1 or found is None or _generation(found) != generation:
        return False
    return bool(found["spec"]["pool"]["resourceSliceCount"] == len(wanted))


def _is_half_written(wanted: Sequence[Object], own: Mapping[str, Object], generation: int) -> bool:
    """Whether what is there of the generation is as wanted, so that only the rest has to be written."""
    there = [one for one in wanted if _generation(own.get(name_of(one)) or {}) == generation]
    return bool(there) and all(_is_there(one, own.get(name_of(one)), generation) for one in there)


def same_content(wanted: Object, found: Object) -> bool:
    """Whether a slice says what is wanted, apart from its generation, and from what the API server or others add."""
    owners = {owner.get("uid") for owner in found["metadata"].get("ownerReferences") or ()}
    owned = all(owner["uid"] in owners for owner in wanted["metadata"].get("ownerReferences") or ())
    return owned and bool(_comparable(wanted) == _comparable(found))


def _comparable(one: Object) -> Any:
    spec = one["spec"]
    pool = spec["pool"]
    sets = [(each["name"], _amounts(each.get("counters"))) for each in spec.get("sharedCounters") or ()]
    devices = [(device["name"], *_said_of(bare(device))) for device in spec.get("devices") or ()]
    return (spec["driver"], spec.get("nodeName"), pool["name"], pool["resourceSliceCount"], sets, devices)


def _said_of(body: Object) -> Any:
    consumed = [(one["counterSet"], _amounts(one.get("counters"))) for one in body.get("consumesCounters") or ()]
    taints = [_taint(one) for one in body.get("taints") or ()]
    return (body.get("attributes") or {}, _amounts(body.get("capacity")), consumed, taints)


def _amounts(amounts: Object | None) -> Mapping[str, Any]:
    """Amounts as numbers, so that it does not matter how they are spelt."""
    return {name: _amount(one.get("value")) for name, one in (amounts or {}).items()}


def _amount(value: Any) -> Any:
    try:
        return Quantity.parse(value)
    except QuantityError:
        return value


def _ready(wanted: Object, found: Object | None, generation: int) -> Object:
    """The slice as it is written; a taint keeps the time at which the server saw it first."""
    made = copy.deepcopy(wanted)
    made["spec"]["pool"]["generation"] = generation
    if found is None:
        return made
    times = {
        (device.get("name"), _taint(taint)): taint["timeAdded"]
        for device in found["spec"].get("devices") or ()
        for taint in bare(device).get("taints") or ()
        if taint.get("timeAdded")
    }
    for device in made["spec"].get("devices") or ():
        for taint in bare(device).get("taints") or ():
            if since := times.get((device["name"], _taint(taint))):
                taint["timeAdded"] = since
    return made


def _taint(taint: Object) -> tuple[str, str, str]:
    return taint["key"], taint.get("value") or "", taint.get("effect") or ""


def _generation(one: Object) -> int:
    return int(((one.get("spec") or {}).get("pool") or {}).get("generation", -1))


def _pool(one: Object) -> str:
    return str(((one.get("spec") or {}).get("pool") or {}).get("name") or "")
