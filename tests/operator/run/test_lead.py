"""Of several operators one writes; the next takes over when it is gone, and never both write."""

from __future__ import annotations

import asyncio
from typing import Any

from kgpu.base.clock import SystemClock, VirtualClock
from kgpu.kube import kinds
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import LEASES, Resource
from kgpu.manager.run import ManagerProcess, Options
from kgpu.operator.run import OperatorController
from tests.operator.run.support import POLICY, WRITES, Meddled, cluster, running, silence, writes
from tests.operator.world import NAMESPACE, SETTINGS


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
        run.manager.stop.set()
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

    slow = Slow(api)
    operator = OperatorController(slow, SETTINGS, clock=clock)
    manager = ManagerProcess(slow, [operator], Options(lease_namespace=NAMESPACE, identity="old"), clock=clock)
    task = asyncio.create_task(manager.run())
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
            assert manager.lead.leads, "it does not know yet"
            assert operator.working is not None
            assert operator.working.labeller.pending > 100, "and has much to write"
            while manager.lead.leads:  # noqa: ASYNC110 - the same
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    late = [call for call in begun if call[0] in WRITES and call[1] != LEASES.plural]
    assert late == []
