"""What is known is kept up to date while somebody looks, and nobody is asked while nobody does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from kgpu.base.errors import HostError
from kgpu.base.service import running
from kgpu.overview.gather import ClusterGatherer
from kgpu.overview.model import PendingPod, ToldReport
from kgpu.overview.port import FakeWorld
from kgpu.top.model import GpuNode
from kgpu.top.run import NodeWatch
from kgpu.top.source import FakeSource
from tests.overview.making import finding, gpu, node


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def gathering(source: FakeSource, world: FakeWorld, **how: float) -> AsyncIterator[ClusterGatherer]:
    gatherer = ClusterGatherer(NodeWatch(source), world, **how)
    async with running(gather=gatherer.run()):
        yield gatherer


async def test_nobody_is_asked_before_somebody_looks() -> None:
    source, world = FakeSource({"a": node("a", gpu("a", 0))}), FakeWorld(report=ToldReport(findings=(finding(),)))
    async with gathering(source, world) as gatherer:
        for _ in range(20):
            await asyncio.sleep(0)
        assert (source.looks, world.asked, gatherer.paused) == (0, [], True)
        assert not gatherer.gathered().found
        gatherer.look()
        await until(lambda: gatherer.gathered().read_at and len(world.asked) == 6)
        known = gatherer.gathered()
        assert known.nodes == (node("a", gpu("a", 0)),)
        assert known.report.value.findings == (finding(),)
        assert sorted(world.asked) == ["events", "idleness", "limits", "report", "verdicts", "waiting"]


async def test_it_pauses_when_the_last_viewer_has_left_and_goes_on_with_the_next() -> None:
    source = FakeSource({"a": node("a")})
    async with gathering(source, FakeWorld(), pause_after=0.0) as gatherer:
        with gatherer.watching():
            await until(lambda: source.looks)
            assert not gatherer.paused
        await until(lambda: gatherer.paused)
        before = source.looks
        with gatherer.watching():
            await until(lambda: source.looks > before)


async def test_what_cant_be_asked_stays_as_it_was_with_the_reason() -> None:
    world = FakeWorld(waiting=(PendingPod(namespace="ml", name="x"),))
    async with gathering(FakeSource({}), world) as gatherer:
        gatherer.look()
        await until(lambda: gatherer.gathered().waiting.at is not None)
        before = gatherer.gathered().waiting
        world.trouble = HostError("it is gone", "an answer", "wait")
        gatherer.hurry()
        await until(lambda: gatherer.gathered().waiting.trouble)
        after = gatherer.gathered().waiting
        assert (after.value, after.at) == (before.value, before.at)
        assert "it is gone" in after.trouble
        world.trouble = None
        gatherer.hurry()
        await until(lambda: not gatherer.gathered().waiting.trouble)


async def test_a_node_that_fails_or_repeats_itself_is_not_read_anew() -> None:
    first = GpuNode(name="a", gpus=(gpu("a", 0),), read_at=5.0)
    source = FakeSource({"a": first})
    async with gathering(source, FakeWorld()) as gatherer:
        gatherer.look()
        await until(lambda: gatherer.gathered().read_at)
        at = gatherer.gathered().read_at["a"]
        seen = source.looks
        gatherer.hurry()
        await until(lambda: source.looks > seen)
        await gatherer.fresh(60)
        assert gatherer.gathered().read_at["a"] == at
        source.nodes["a"] = HostError("it is silent", "an answer", "wait")
        gatherer.hurry()
        await until(lambda: gatherer.gathered().nodes[0].trouble)
        assert gatherer.gathered().read_at["a"] == at
        source.nodes["a"] = GpuNode(name="a", gpus=(gpu("a", 0),), read_at=4.0)  # its clock was set back
        gatherer.hurry()
        await until(lambda: gatherer.gathered().read_at["a"] > at)
        assert gatherer.gathered().pace == gatherer.gathered().read_at["a"] - at


async def test_a_defect_ends_it_and_is_not_swallowed() -> None:
    class Broken(FakeWorld):
        async def waiting(self):
            raise ZeroDivisionError

    gatherer = ClusterGatherer(NodeWatch(FakeSource({})), Broken())
    gatherer.look()
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(gatherer.run(), 60)
