"""Time as a port, so that loops that wait can be tested without waiting.

``SystemClock`` is the real one, ``BootClock`` the one that goes on while the machine is suspended; ``VirtualClock``
beside them jumps to the next deadline whenever a test says so.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow, and waiting for them."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellation ends it at once."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class BootClock(SystemClock):
    """The machine's clock with the time that it was suspended: what others may have done meanwhile."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class VirtualClock:
    """A clock that a test moves; sleepers wake in the order of their deadlines."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    @property
    def deadlines(self) -> list[float]:
        """When the present sleepers wake, soonest first."""
        return sorted(when for when, _, future in self._sleepers if not future.done())

    async def advance(self, seconds: float) -> None:
        """Move on, waking sleepers on the way, and let what they woke run until it waits again."""
        end = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
                await settle()
        self._now = end
        await settle()


async def settle(rounds: int = 20) -> None:
    """Let every task that can run do so, for chains of up to ``rounds`` wake-ups.

    It ends as soon as the loop has nothing else to run, and had nothing either after a look at what comes from outside:
    a test that plays minutes of a cluster would otherwise mostly turn an idle loop.
    """
    # Asyncio has no public word for it, and other loops have none at all.
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    idle = 0
    for _ in range(rounds):
        await asyncio.sleep(0)
        idle = idle + 1 if ready is not None and not ready else 0
        if idle > 1:
            return
