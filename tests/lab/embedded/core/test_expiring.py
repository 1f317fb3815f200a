"""Events end, a while after their last change; nothing else does."""

from __future__ import annotations

from typing import Any

from kgpu.lab.embedded.core.expiring import Expiring
from tests.lab.embedded.support import CALL, config_map, kind, make_core


def _event(name: str, **rest: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "namespace": "default", "name": "p"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "involvedObject": about, **rest}


async def test_an_event_ends_after_its_time_and_a_change_begins_it_anew() -> None:
    time = [1_800_000_000.0]
    core = make_core()
    events, leases = kind(core, "events"), kind(core, "leases", "coordination.k8s.io")
    expiring = Expiring(core.store, 60, clock=lambda: time[0])
    for name in ("a", "b", "c"):
        core.create(events, "default", _event(name), CALL)
    core.create(leases, "default", {"metadata": {"name": "l"}}, CALL)
    core.create(kind(core, "configmaps"), "default", config_map("m"), CALL)
    time[0] += 40
    core.update(events, "default", "b", _event("b", count=2), CALL)
    core.store.remove(("", "events"), core.get(events, "default", "c"))
    assert await expiring.drop_due() == 0
    time[0] += 30
    watch = core.watch(events, "default", version=str(core.store.revision))
    assert await expiring.drop_due() == 1
    assert [one.name for one in core.list(events).items] == ["b"]
    told = await anext(watch)
    assert (told.type, told.stored.name) == ("DELETED", "a")
    time[0] += 60
    assert await expiring.drop_due() == 1
    time[0] += 1e6
    assert await expiring.drop_due() == 0
    assert len(core.list(leases).items) == len(core.list(kind(core, "configmaps")).items) == 1


async def test_events_that_were_there_end_too() -> None:
    core = make_core()
    events = kind(core, "events")
    core.create(events, "default", _event("old", lastTimestamp="2020-01-01T00:00:00Z"), CALL)
    core.create(events, "default", _event("odd", lastTimestamp="not a time"), CALL)
    now = 4_000_000_000.0  # in the year 2096
    expiring = Expiring(core.store, 60, clock=lambda: now)
    assert await expiring.drop_due() == 2
