"""Waits for what comes first: an answer, news, a time, or the end of a task that should not end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from kgpu.base.clock import Clock
from kgpu.base.service import end, first_end

T = TypeVar("T")


async def first_of(*awaited: Awaitable[Any]) -> bool:
    """Wait until any of these is done and give up the others; True when the first is. Raises what any died of."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    try:
        await first_end(tasks)
        return tasks[0].done()
    finally:
        await end(*tasks)


async def within(seconds: float, asked: Awaitable[T], *, clock: Clock) -> T | None:
    """The answer, or None when it takes longer; it is given up then. Raises what asking raises."""
    return await before(clock.sleep(seconds), asked)


async def before(limit: Awaitable[Any], asked: Awaitable[T]) -> T | None:
    """The answer, or None when ``limit`` is done first. Raises what asking raises."""
    answer = asyncio.ensure_future(asked)
    return answer.result() if await first_of(answer, limit) else None


async def woken(wake: asyncio.Event, seconds: float, *, clock: Clock, beside: Iterable[asyncio.Task[None]]) -> None:
    """Return when ``wake`` is set or after ``seconds``. A task of ``beside`` that ends raises what it died of."""
    waits = [asyncio.ensure_future(wake.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await first_end([*waits, *beside])
    finally:
        await end(*waits)
