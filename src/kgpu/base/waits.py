"""Waits that end with the first of several events: a result, a wake-up, a time, a task that should not end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from kgpu.base.clock import Clock
from kgpu.base.service import end, first_end

T = TypeVar("T")


async def first_of(*awaited: Awaitable[Any]) -> bool:
    """Wait until any of these is done and cancel the others; True when the first one is. Raises what any raised."""
    tasks = [asyncio.ensure_future(wait) for wait in awaited]
    try:
        await first_end(tasks)
        return tasks[0].done()
    finally:
        await end(*tasks)


async def within(seconds: float, pending: Awaitable[T], *, clock: Clock) -> T | None:
    """The result of ``pending``, or None after ``seconds``, when it is cancelled. Raises what it raises."""
    return await before(clock.sleep(seconds), pending)


async def before(limit: Awaitable[Any], pending: Awaitable[T]) -> T | None:
    """The result of ``pending``, or None when ``limit`` is done first. Raises what it raises."""
    answer = asyncio.ensure_future(pending)
    return answer.result() if await first_of(answer, limit) else None


async def woken(wake: asyncio.Event, seconds: float, *, clock: Clock, beside: Iterable[asyncio.Task[None]]) -> None:
    """Return when ``wake`` is set or after ``seconds``. Raises the exception of a task of ``beside`` that fails."""
    waits = [asyncio.ensure_future(wake.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await first_end([*waits, *beside])
    finally:
        await end(*waits)
