"""Waits for what comes first: news, a time, or the end of a task that should not end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from kgpu.base.clock import Clock


async def first_of(*awaited: Awaitable[Any]) -> bool:
    """Wait until any of these is done and give up the others; True when the first is."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def woken(wake: asyncio.Event, seconds: float, *, clock: Clock, beside: Iterable[asyncio.Task[None]]) -> None:
    """Return when ``wake`` is set or after ``seconds``. A task of ``beside`` that ends raises what it died of."""
    beside = tuple(beside)
    waits = [asyncio.ensure_future(wake.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await asyncio.wait([*waits, *beside], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    for task in beside:
        if task.done():
            task.result()
