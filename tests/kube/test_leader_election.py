"""Leader election and the fence: one leads at a time, and who does not lead writes nothing."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any, Final

import pytest

from kgpu.base.clock import BootClock, VirtualClock
from kgpu.kube.fake import FakeApi
from kgpu.kube.fence import Fenced
from kgpu.kube.leader_election import Lead, LeaseTimes, LostLeadError
from kgpu.kube.port import CONFIG_MAPS, LEASES

NAMESPACE: Final = "gpu-operator"
LEASE: Final = "kgpu-test"
WRITES: Final = ("apply", "patch", "create", "delete")


def lead(api: FakeApi, clock: VirtualClock, identity: str) -> Lead:
    return Lead(api, namespace=NAMESPACE, name=LEASE, identity=identity, clock=clock)


class ReadsCounted(FakeApi):
    """Counts how often objects are read."""

    reads = 0

    async def get(self, *given: Any, **more: Any) -> Any:
        self.reads += 1
        return await super().get(*given, **more)


async def test_another_that_took_the_lease_is_believed_at_once() -> None:
    api, clock = FakeApi(), VirtualClock()
    mine = lead(api, clock, "a")
    async with mine.leading() as renewing:
        renewal = renewing()
        await api.patch(LEASES, LEASE, {"spec": {"holderIdentity": "b"}}, namespace=NAMESPACE)
        await clock.advance(2)
        with pytest.raises(LostLeadError):
            await renewal
        assert not mine.leads


async def test_a_label_on_the_lease_costs_nobody_the_lead() -> None:
    """Somebody changes it between our look and our write, which the API server then refuses as out of date."""
    clock, changed = VirtualClock(), False

    class Annotated(FakeApi):
        async def patch(self, resource: Any, name: str, change: Any, **more: Any) -> Any:
            nonlocal changed
            if "holderIdentity" in change.get("spec", {}) and not changed:
                changed = True
                await super().patch(resource, name, {"metadata": {"labels": {"team": "a"}}}, **more)
            return await super().patch(resource, name, change, **more)

    mine = lead(Annotated(), clock, "a")
    async with mine.leading() as renewing:
        renewal = renewing()
        await clock.advance(60)
        assert changed
        assert not renewal.done()
        mine.guard()
        renewal.cancel()


async def test_a_leader_renews_without_reading_what_it_wrote_itself() -> None:
    api, clock = ReadsCounted(), VirtualClock()
    mine = lead(api, clock, "a")
    async with mine.leading() as renewing:
        renewal = renewing()
        before, version = api.reads, (await api.get(LEASES, LEASE, namespace=NAMESPACE) or {})["metadata"]
        await clock.advance(60)
        mine.guard()
        after = (await api.get(LEASES, LEASE, namespace=NAMESPACE) or {})["metadata"]
        assert api.reads == before + 2  # the two looks of this test
        assert after["resourceVersion"] != version["resourceVersion"]
        renewal.cancel()


async def test_a_lease_that_somebody_deletes_is_made_again() -> None:
    api, clock = FakeApi(), VirtualClock()
    mine = lead(api, clock, "a")
    async with mine.leading() as renewing:
        renewal = renewing()
        await clock.advance(4)
        await api.delete(LEASES, LEASE, namespace=NAMESPACE)
        await clock.advance(5)
        mine.guard()
        found = await api.get(LEASES, LEASE, namespace=NAMESPACE)
        assert found is not None
        assert found["spec"]["holderIdentity"] == "a"
        renewal.cancel()


async def test_two_that_try_at_one_moment_do_not_both_lead() -> None:
    api, clock = FakeApi(), VirtualClock()
    candidates = [lead(api, clock, name) for name in "abcdef"]
    tasks = [asyncio.create_task(one.leading().__aenter__()) for one in candidates]
    await clock.advance(1)
    assert sum(task.done() for task in tasks) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_api_servers_clock_is_known_by_the_renewals(caplog: pytest.LogCaptureFixture) -> None:
    """Clocks that differ by seconds count as the same, so that what is measured by them does not jump."""
    clock, apart = VirtualClock(), dt.timedelta()

    class Stamping(FakeApi):
        async def patch(self, resource: Any, name: str, change: Any, **more: Any) -> Any:
            answer = await super().patch(resource, name, change, **more)
            stamp = (dt.datetime.now(dt.UTC) + apart).strftime("%Y-%m-%dT%H:%M:%SZ")
            older = {"manager": "b", "time": "2020-01-01T00:00:00Z"}
            answer["metadata"]["managedFields"] = [{"manager": "a", "time": stamp}, older, {"manager": "c"}]
            return answer

    mine = lead(Stamping(), clock, "a")
    async with mine.leading() as renewing:
        renewal = renewing()
        ahead = []
        for seconds in (0, 3, 3600, 3603, -3600, 1):
            apart = dt.timedelta(seconds=seconds)
            await clock.advance(3)
            ahead.append(round(mine.server_ahead, -2))
        assert ahead == [0, 0, 3600, 3600, -3600, 0]
        assert caplog.text.count("set the clocks right") == 2
        renewal.cancel()


@pytest.mark.parametrize("stamp", ["", "yesterday", "2026-01-01T00:00:00", 7, None])
async def test_a_stamp_that_is_none_says_nothing_of_clocks(stamp: Any) -> None:
    clock = VirtualClock()

    class Odd(FakeApi):
        async def patch(self, resource: Any, name: str, change: Any, **more: Any) -> Any:
            answer = await super().patch(resource, name, change, **more)
            answer["metadata"]["managedFields"] = [{"time": stamp}, "none"]
            return answer

    mine = lead(Odd(), clock, "a")
    async with mine.leading() as renewing:
        renewal = renewing()
        await clock.advance(3)
        assert mine.server_ahead == 0
        renewal.cancel()


def test_times_that_can_not_work_are_refused() -> None:
    with pytest.raises(ValueError, match="impossible times"):
        LeaseTimes(duration=5, deadline=10, retry=2)


async def test_a_renewal_counts_from_when_it_was_sent() -> None:
    clock, times = VirtualClock(), LeaseTimes()

    class Late(FakeApi):
        async def patch(self, *given: Any, **more: Any) -> Any:
            await clock.sleep(6)
            return await super().patch(*given, **more)

    api = Late()
    mine = Lead(api, namespace=NAMESPACE, name=LEASE, identity="a", times=times, clock=clock)
    async with mine.leading() as renewing:
        renewal = renewing()
        await clock.advance(times.retry + 6 + 0.1)
        sent = clock.monotonic() - 6 - 0.1
        mine.guard()
        await clock.advance(sent + times.deadline - clock.monotonic() + 0.01)
        with pytest.raises(LostLeadError):
            mine.guard()
        renewal.cancel()


@pytest.mark.parametrize("verb", WRITES)
async def test_no_kind_of_write_passes_a_fence(verb: str) -> None:
    api, open_ = FakeApi(), True

    def guard() -> None:
        if not open_:
            raise LostLeadError("lost", "the lead", "nothing")

    fenced = Fenced(api, guard)
    obj = {"metadata": {"name": "x", "namespace": NAMESPACE}}
    calls: dict[str, Callable[[], Any]] = {
        "create": lambda: fenced.create(CONFIG_MAPS, obj),
        "apply": lambda: fenced.apply(CONFIG_MAPS, obj, manager="m"),
        "patch": lambda: fenced.patch(CONFIG_MAPS, "x", {"data": {"a": "b"}}, namespace=NAMESPACE),
        "delete": lambda: fenced.delete(CONFIG_MAPS, "x", namespace=NAMESPACE),
    }
    api.put(CONFIG_MAPS, obj)
    open_ = False
    before = len(api.calls)
    with pytest.raises(LostLeadError):
        await calls[verb]()
    assert api.calls[before:] == []
    assert await fenced.get(CONFIG_MAPS, "x", namespace=NAMESPACE) is not None
    assert (await fenced.list(CONFIG_MAPS)).items
    open_ = True
    if verb == "create":
        await calls["delete"]()
    await calls[verb]()
    assert api.calls[-1] == (verb, "configmaps", "" if verb == "list" else "x")


async def test_a_leader_that_wakes_from_suspend_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock has stood still meanwhile, and another may lead."""
    now = 100.0
    monkeypatch.setattr(BootClock, "monotonic", lambda _self: now)
    mine = Lead(FakeApi(), namespace=NAMESPACE, name=LEASE, identity="a")
    async with mine.leading():
        mine.guard()
        now += 60.0
        with pytest.raises(LostLeadError):
            mine.guard()
