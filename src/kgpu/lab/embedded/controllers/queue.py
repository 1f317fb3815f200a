"""The queue of keys to sync: each at most once in the queue, never with two workers at a time, later after failures.

The rules of client-go's rate limiting work queue: a key that is added while a worker has it comes again after that.
Not for threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_RETRY: Final = 0.005  # seconds, doubled with each failure of the key
# The real one waits up to 1000 s; nobody waits that long for a lab to notice that a quota was raised.
LAST_RETRY: Final = 30.0


class WorkQueue(Generic[K]):
    """``get`` a key, sync it, then call ``retry`` or ``forget`` by the outcome, and ``done``."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def idle(self) -> bool:
        """Nothing is waiting for a worker or with one; timers do not count."""
        return not self._dirty and not self._working

    def add(self, key: K) -> None:
        """Queue the key."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._working:
            self._ready.append(key)
            self._news.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue the key in ``seconds``, or earlier if it is due earlier already."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(when, self._due, key)

    def retry(self, key: K) -> float:
        """After a failure: queue the key after a pause that grows; returns the pause in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(failures, 30))
        self.add_after(key, pause)
        return pause

    def forget(self, key: K) -> None:
        """After a success: the next failure waits the shortest time."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; the caller must call ``done``."""
        while not self._ready:
            self._news.clear()
            await self._news.wait()
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        self._working.discard(key)
        if key in self._dirty:
            self._ready.append(key)
            self._news.set()

    def close(self) -> None:
        """Cancel the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)
