"""How long ``kgpu top`` rests between two rounds: the interval at the least, and longer where a round was much work."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.top.model import GpuNode
from kgpu.top.run import IDLE_PER_WORK, NodeWatch
from kgpu.top.source import FakeSource

INTERVAL = 2.0


async def rests(monkeypatch: pytest.MonkeyPatch, *worked: float) -> list[float]:
    """The seconds that it rests after rounds that took so many seconds of a processor, all at one moment."""
    found: list[float] = []
    used = [second for number, _ in enumerate(worked) for second in (sum(worked[:number]), sum(worked[: number + 1]))]
    over = asyncio.Event()

    async def rest(waits, seconds: float) -> None:
        waits.close()
        found.append(seconds)
        if len(found) < len(worked):
            raise TimeoutError
        over.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("kgpu.top.run.time.process_time", iter(used).__next__)
    monkeypatch.setattr("kgpu.top.run.asyncio.wait_for", rest)
    running = asyncio.create_task(NodeWatch(FakeSource({"n": GpuNode(name="n")}), now=lambda: 100.0).run(INTERVAL))
    await over.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return found


async def test_a_round_that_was_much_work_makes_the_next_one_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await rests(monkeypatch, 0.0, 5.0, 0.25) == [INTERVAL, 5.0 * IDLE_PER_WORK, INTERVAL]


def test_it_takes_at_most_a_quarter_of_a_processor() -> None:
    assert 1 / (1 + IDLE_PER_WORK) == 0.25
