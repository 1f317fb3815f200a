"""Both clocks keep the same contract; the virtual one wakes sleepers in order, at their own times."""

from __future__ import annotations

import asyncio
import time

import pytest

from kgpu.base.clock import BootClock, SystemClock, VirtualClock, settle


@pytest.mark.parametrize("make", [SystemClock, VirtualClock])
async def test_sleeping_no_time_ends_and_time_never_goes_back(make):
    clock = make()
    before = clock.monotonic()
    await asyncio.wait_for(clock.sleep(0), 60)
    assert clock.monotonic() >= before


@pytest.mark.parametrize("make", [SystemClock, VirtualClock])
async def test_a_sleep_can_be_cancelled(make):
    task = asyncio.create_task(make().sleep(1000))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_sleepers_wake_at_their_times_in_order():
    clock = VirtualClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, *seconds: float) -> None:
        for one in seconds:
            await clock.sleep(one)
            woken.append((name, clock.monotonic()))

    tasks = [asyncio.create_task(sleeper("a", 3, 3)), asyncio.create_task(sleeper("b", 2, 2, 2))]
    await clock.advance(5)
    assert woken == [("b", 2), ("a", 3), ("b", 4)]
    assert clock.monotonic() == 5
    assert clock.deadlines == [6, 6]
    await clock.advance(1)
    await asyncio.gather(*tasks)
    assert len(woken) == 5


def test_the_time_of_a_suspended_machine_counts_for_who_has_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still meanwhile: a leader would go on as if nobody else could have taken the lead.

    On a machine that has never slept the two are equal, so this one has slept for an hour.
    """
    monkeypatch.setattr(time, "clock_gettime", lambda which: 7200.0 if which == time.CLOCK_BOOTTIME else 3600.0)
    assert BootClock().monotonic() == 7200.0
