"""Expiry of Events: each is dropped a while after its last change, as by the real server (``--event-ttl``).

Only Events expire; a change restarts an Event's time; many that expire together do not block the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from kgpu.base.times import moment_of
from kgpu.lab.embedded.core.model import StoredObject
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.store import Key, ObjectStore

EVENTS: Final[Key] = ("", "events")
TTL_SECONDS: Final = 3600.0  # the real server's default
_LOOK_SECONDS: Final = 5.0
_AT_ONCE: Final = 20  # Events dropped before other tasks may run


class Expiring:
    """Follows a store from now on. ``drop_due`` drops expired Events, ``run`` does so until it is cancelled."""

    def __init__(self, store: ObjectStore, ttl: float = TTL_SECONDS, *, clock: Callable[[], float] = time.time) -> None:
        """``ttl`` in seconds; ``clock`` gives seconds since 1970."""
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._due: deque[tuple[float, StoredObject]] = deque()
        kept = [(_changed(stored.obj, clock()) + ttl, stored) for stored in store.table(EVENTS).scan("")]
        self._due.extend(sorted(kept, key=lambda row: row[0]))
        store.on_commit(self._note)

    def _note(self, key: Key, change: str, stored: StoredObject, old: StoredObject | None) -> None:
        del old
        if key == EVENTS and change != "DELETED":
            self._due.append((self._clock() + self._ttl, stored))

    async def drop_due(self) -> int:
        """Drop expired Events; returns how many."""
        dropped = 0
        while self._due and self._due[0][0] <= self._clock():
            _, noted = self._due.popleft()
            now = self._store.get(EVENTS, noted.namespace, noted.name)
            if now is not noted:
                continue  # changed since: it is in the queue again, further back
            self._store.remove(EVENTS, now)
            dropped += 1
            if not dropped % _AT_ONCE:
                await asyncio.sleep(0)
        return dropped

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self.drop_due()
            await asyncio.sleep(_LOOK_SECONDS)


def _changed(event: Object, otherwise: float) -> float:
    """When an Event from disk was last written, by its own times; ``otherwise`` when it has none."""
    times = [event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp")]
    stamps = [moment.timestamp() for moment in map(moment_of, times) if moment]
    return min(max(stamps, default=otherwise), otherwise)
