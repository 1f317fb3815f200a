"""Of several operators one writes; the next takes over when it is gone, and never both write."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.base.clock import VirtualClock
from kgpu.kube import kinds
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import LEASES
from kgpu.operator.lead import Lead, LeaseTimes, LostLeadError
from tests.operator.run.support import POLICY, Meddled, cluster, running, silence, writes
from tests.operator.world import NAMESPACE


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
