"""The loop: an outage ends a round and no more, a lost lead ends it, and pages say what it does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from kgpu.base.clock import VirtualClock, settle
from kgpu.formats import names
from kgpu.formats.usage_reclaim import RECLAIM_PATH
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import GPU_USAGE_POLICIES, NAMESPACES
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import KubeApi
from kgpu.manager.run import Options
from kgpu.manager.usage_host import LOOPS, UsageScene, host
from kgpu.operations.writing import evict
from kgpu.usage.agents import UsageAgents
from kgpu.usage.listening import UsageListener
from kgpu.usage.now import HolderNow
from kgpu.usage.reclaim.run import ReclaimController
from tests.usage.reclaim.scene import OWN, SPACE, START, SimDevice, SimDevices, SimWebhook


class Running:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.api.put(NAMESPACES, {"metadata": {"name": SPACE, "labels": {names.RECLAIM_LABEL: "enabled"}}})
        self.clock = VirtualClock()
        self.said: list[str] = []
        holder = HolderNow(namespace=SPACE, pod="p", uid="u", owner="Deployment/d", held_since=START - 90_000)
        devices = SimDevices([SimDevice(node="n", name="GPU-1", holder=holder, idle_since=START - 20_000)])
        self.controller = ReclaimController(
            devices, namespace=OWN, opened=SimWebhook().open, evict=evict, clock=self.clock,
            report=lambda advice: self.said.append(advice.what), now=lambda: START + self.clock.monotonic(),
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def term(self, api: KubeApi | None = None) -> AsyncIterator[asyncio.Task[None]]:
        (work,) = self.controller.term(api or self.api)
        task = asyncio.create_task(work)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def policy(self, **spec: object) -> None:
        self.api.put(GPU_USAGE_POLICIES, {"metadata": {"name": "all"}, "spec": {"namespaces": [SPACE], **spec}})


async def test_without_a_policy_only_policies_are_asked_for() -> None:
    running = Running()
    async with running.term():
        await running.clock.advance(300)
    asked = [call[:2] for call in running.api.calls]
    assert asked.count(("get", "configmaps")) == 1, "whether something is under way"
    assert set(asked) == {("list", "gpuusagepolicies"), ("get", "configmaps")}


async def test_an_outage_ends_a_round_and_no_more() -> None:
    running = Running()
    running.policy()
    async with running.term():
        running.api.down = True
        await running.clock.advance(300)
        assert len(running.said) == 1, "it is told once"
        assert running.controller.status()["reclaim"]["problem"]  # type: ignore[index]
        running.api.down = False
        await running.clock.advance(60)
        assert running.controller.status()["reclaim"]["problem"] == ""  # type: ignore[index]
    assert "status" in next(
        stored.obj for (kind, _, _), stored in running.api._objects.items() if kind == GPU_USAGE_POLICIES
    )


async def test_a_round_comes_with_each_news() -> None:
    running, news, waits = Running(), asyncio.Event(), list[int]()

    async def heard() -> None:
        waits.append(len(running.api.calls))
        await news.wait()
        news.clear()

    running.controller._news = heard
    async with running.term():
        for _ in range(3):
            await settle()
            news.set()
        await settle()
    assert waits == sorted(set(waits)), "between two news there is one round"
    assert len(waits) == 4


async def test_a_lost_lead_ends_it() -> None:
    running = Running()

    class Fenced(FakeApi):
        async def list(self, *_args: object, **_more: object) -> object:  # type: ignore[override]
            raise LostLeadError("the lead is lost", "it", "wait")

    async with running.term(Fenced()) as task:
        await settle()
        with pytest.raises(LostLeadError):
            await task


async def test_pages_say_what_is_idle_and_what_was_done() -> None:
    running = Running()
    running.policy()
    async with running.term():
        await running.clock.advance(60)
    page = running.controller.metrics()
    assert 'kgpu_idle_devices{state="held-idle"} 1' in page
    assert 'kgpu_reclaim_messages_total{result="sent"} 0' in page
    assert running.controller.missing() == ()


@pytest.mark.parametrize(("value", "loops"), [("true", ["usage", "reclaim"]), ("", ["usage"]), ("false", ["usage"])])
def test_the_host_follows_policies_where_it_has_the_rights(value: str, loops: list[str]) -> None:
    api = FakeApi()
    agents = UsageAgents(api, namespace=OWN, direct=False)
    listener = UsageListener(agents, seconds=3600.0, report=lambda _: None)
    scene = UsageScene(
        api=api,
        namespace=OWN,
        listener=listener,
        report=lambda _: None,
        env={names.ENV_RECLAIM: value} if value else {},
    )
    process = host(scene, Options(lease_namespace=OWN, lease_name=names.USAGE_DEPLOYMENT))
    assert [controller.name for controller in process._controllers] == loops
    assert process.options.elect is (len(loops) > 1), "only what writes has to lead"
    assert len(LOOPS) == 2
    assert list(scene.pages) == ([RECLAIM_PATH] if len(loops) > 1 else [])
