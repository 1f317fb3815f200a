"""Of several operators one writes; the next takes over when it is gone, and never both write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kgpu.base.clock import BootClock, SystemClock, VirtualClock
from kgpu.kube import kinds
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, LEASES, Resource
from kgpu.operator.fence import Fenced
from kgpu.operator.lead import Lead, LeaseTimes, LostLeadError
from kgpu.operator.run import Operator, Options
from tests.operator.run.support import POLICY, WRITES, Meddled, cluster, running, silence, writes
from tests.operator.world import NAMESPACE, SETTINGS


def lead(api: FakeApi, clock: VirtualClock, identity: str) -> Lead:
    return Lead(api, namespace=NAMESPACE, identity=identity, clock=clock)


async def holder(api: FakeApi) -> str:
    lease = await api.get(LEASES, "53822513.nvidia.com", namespace=NAMESPACE)
    return "" if lease is None else str(lease["spec"]["holderIdentity"])


async def test_one_leads_and_the_other_follows_when_it_is_killed() -> None:
    api, clock = cluster(), VirtualClock()
    first, second = Meddled(api), Meddled(api)
    wrote: list[str] = []
    first.after = lambda verb, plural, _: wrote.append("first") if verb == "apply" and plural != "leases" else None
    second.after = lambda verb, plural, _: wrote.append("second") if verb == "apply" and plural != "leases" else None
    async with running(second, clock=clock, elect=True, identity="b", settle_first=False) as standby:
        await clock.advance(0)
        async with running(first, clock=clock, elect=True, identity="a", settle_first=False):
            await clock.advance(30)
            leader = await holder(api)
            assert len(set(wrote)) == 1
        assert leader in ("a", "b")
        if leader == "a":
            await clock.advance(14)
            assert await holder(api) == "a", "its time is not over yet"
        await clock.advance(10)
        assert await holder(api) == "b"
        await standby.settled()


async def test_who_stops_in_order_gives_the_lease_back() -> None:
    api, clock = cluster(), VirtualClock()
    async with running(api, clock=clock, elect=True, identity="a") as run:
        run.operator.stop.set()
        await clock.advance(1)
        assert run.task.done()
        assert await holder(api) == ""
    async with running(api, clock=clock, elect=True, identity="b", settle_first=False):
        await clock.advance(0.5)
        assert await holder(api) == "b"


async def test_a_leader_that_can_not_renew_stops_to_write_and_leads_again() -> None:
    api, clock = cluster(), VirtualClock()
    meddled, cut = Meddled(api), False

    def no_leases(_verb: str, plural: str, _name: str) -> None:
        if cut and plural == "leases":
            raise silence()

    meddled.before = no_leases
    async with running(meddled, clock=clock, elect=True, identity="a") as run:
        cut = True
        await clock.advance(13)
        since = len(api.calls)
        api.put(kinds.CLUSTER_POLICIES, {**POLICY, "spec": {"gfd": {"enabled": False}}})
        await clock.advance(5)
        assert writes(api, since) == {}
        cut = False
        await run.until(lambda: writes(api, since), "writes")


async def test_another_that_took_the_lease_is_believed_at_once() -> None:
    api, clock = FakeApi(), VirtualClock()
    mine = lead(api, clock, "a")
    async with mine.leading() as renewing:
        renewal = renewing()
        await api.patch(LEASES, "53822513.nvidia.com", {"spec": {"holderIdentity": "b"}}, namespace=NAMESPACE)
        await clock.advance(2)
        with pytest.raises(LostLeadError):
            await renewal
        assert not mine.leads


async def test_two_that_try_at_one_moment_do_not_both_lead() -> None:
    api, clock = FakeApi(), VirtualClock()
    candidates = [lead(api, clock, name) for name in "abcdef"]
    tasks = [asyncio.create_task(one.leading().__aenter__()) for one in candidates]
    await clock.advance(1)
    assert sum(task.done() for task in tasks) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_times_that_can_not_work_are_refused() -> None:
    with pytest.raises(ValueError, match="impossible times"):
        LeaseTimes(duration=5, deadline=10, retry=2)


class Pausable(SystemClock):
    """The system's clock of a process that may have been stopped for a while, and did not notice."""

    stopped_for = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.stopped_for


async def test_who_was_stopped_begins_no_write_when_it_goes_on() -> None:
    api, clock = cluster(300), Pausable()
    begun: list[tuple[str, str]] = []

    class Slow(Meddled):
        async def _call(self, verb: str, resource: Resource, name: str, call: Any) -> Any:
            begun.append((verb, resource.plural))
            await asyncio.sleep(0.02)
            return await super()._call(verb, resource, name, call)

    operator = Operator(Slow(api), SETTINGS, Options(elect=True, identity="old"), clock=clock)
    task = asyncio.create_task(operator.run())
    try:
        async with asyncio.timeout(60):
            while begun.count(("apply", "nodes")) < 40:  # noqa: ASYNC110 - it is as the operator comes
                await asyncio.sleep(0.01)
            lease = await api.get(LEASES, "53822513.nvidia.com", namespace=NAMESPACE)
            assert lease is not None
            # No other task runs between these lines.
            clock.stopped_for = 30.0
            del begun[:]
            api.put(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": "new"}})
            assert operator._lead.leads, "it does not know yet"
            assert operator._terms[0].labeller.pending > 100, "and has much to write"
            while operator._lead.leads:  # noqa: ASYNC110 - the same
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    late = [call for call in begun if call[0] in WRITES and call[1] != LEASES.plural]
    assert late == []


async def test_a_renewal_counts_from_when_it_was_sent() -> None:
    api, clock = FakeApi(), VirtualClock()
    times = LeaseTimes()

    class Late(Meddled):
        async def _call(self, verb: str, resource: Resource, name: str, call: Any) -> Any:
            if verb == "patch":
                await clock.sleep(6)
            return await super()._call(verb, resource, name, call)

    mine = Lead(Late(api), namespace=NAMESPACE, identity="a", times=times, clock=clock)
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
    api, open_ = cluster(), True

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
    mine = Lead(FakeApi(), namespace=NAMESPACE, identity="a")
    async with mine.leading():
        mine.guard()
        now += 60.0
        with pytest.raises(LostLeadError):
            mine.guard()
    assert isinstance(Operator(cluster(1), SETTINGS, Options())._lead._clock, BootClock)
