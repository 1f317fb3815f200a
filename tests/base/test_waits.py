"""Waiting for news, a time, or a task that dies."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.base.clock import SystemClock, VirtualClock
from kgpu.base.waits import before, first_of, within, woken


async def fails() -> None:
    raise ValueError("gone")


async def test_news_end_the_wait() -> None:
    wake = asyncio.Event()
    asyncio.get_running_loop().call_soon(wake.set)
    await woken(wake, 3600, clock=SystemClock(), beside=())


async def test_time_ends_the_wait() -> None:
    await woken(asyncio.Event(), 0.001, clock=SystemClock(), beside=())


async def test_what_a_task_died_of_is_raised_and_nothing_is_left_waiting() -> None:
    task = asyncio.create_task(fails())
    with pytest.raises(ValueError, match="gone"):
        await woken(asyncio.Event(), 3600, clock=VirtualClock(), beside=[task])
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_first_to_be_done_ends_the_wait_and_the_others_are_given_up() -> None:
    never = asyncio.Event()
    assert await first_of(asyncio.sleep(0), never.wait())
    assert not await first_of(never.wait(), asyncio.sleep(0), never.wait())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_the_first_died_of_is_raised() -> None:
    with pytest.raises(ValueError, match="gone"):
        await first_of(asyncio.Event().wait(), fails())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_answer_in_time_is_given_and_a_late_one_is_given_up() -> None:
    async def answer() -> str:
        return "yes"

    assert await within(3600, answer(), clock=VirtualClock()) == "yes"
    assert await within(0.001, asyncio.Event().wait(), clock=SystemClock()) is None
    with pytest.raises(ValueError, match="gone"):
        await within(3600, fails(), clock=VirtualClock())
    switched = asyncio.Event()
    switched.set()
    assert await before(switched.wait(), asyncio.Event().wait()) is None
    assert asyncio.all_tasks() == {asyncio.current_task()}
