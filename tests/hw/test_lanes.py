"""A call that does not end costs its lane, one thread, and nobody's time but the first asker's."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kgpu.hw.lanes import HungError, Lane


async def test_a_call_that_hangs_is_left_and_its_lane_is_closed_until_it_ends() -> None:
    lane, begun, gate, calls = Lane(0.05), threading.Event(), threading.Event(), []

    def stuck() -> str:
        calls.append("stuck")
        begun.set()
        gate.wait()
        raise OSError("nobody waits for this")

    with pytest.raises(HungError):
        await lane.ask(stuck)
    with pytest.raises(HungError):
        await lane.ask(stuck)
    assert begun.wait(60), "a busy machine may begin it only now"
    assert calls == ["stuck"]
    gate.set()
    async with asyncio.timeout(60):
        while True:
            try:
                assert await lane.ask(lambda: "well") == "well"
                break
            except HungError:
                await asyncio.sleep(0.01)


async def test_answers_and_errors_are_the_calls() -> None:
    lane = Lane(60)
    assert await lane.ask(max, 1, 2) == 2
    with pytest.raises(ZeroDivisionError):
        await lane.ask(lambda: 1 / 0)
    assert await asyncio.gather(lane.ask(str, 1), lane.ask(str, 2)) == ["1", "2"]
