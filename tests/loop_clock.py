"""The running loop's clock put forward, so that what waits for half a minute is over at once, however busy the machine."""

from __future__ import annotations

import asyncio

from kgpu.base.clock import settle


async def pass_seconds(seconds: float) -> None:
    """Let everything run until it waits, then let this much time be over, and what that wakes run until it waits.

    For this loop alone, and for the rest of its life.
    """
    await settle()
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
    await settle()
