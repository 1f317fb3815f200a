"""Delivery of hardware events to any number of consumers, none of whom can slow down or starve another.

A consumer that doesn't read keeps at most ``LIMIT`` events; then the oldest go, and an INVENTORY event says to read
the state again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from kgpu.hw.port import EventKind, HardwareEvent

LIMIT: Final = 1024


class Subscription:
    """An async iterator of events; ends when it or its source is closed."""

    def __init__(self, owner: Subscriptions) -> None:
        self._owner = owner
        self._events: deque[HardwareEvent] = deque()
        self._ready = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> HardwareEvent:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._events.popleft()

    async def aclose(self) -> None:
        """Stop receiving; a pending ``anext`` ends."""
        self._owner.remove(self)
        self.end()

    def put(self, event: HardwareEvent) -> None:
        """Queue one event. An INVENTORY event that is still unread is not repeated: it says "look again" as it is."""
        if event.kind is EventKind.INVENTORY and event in self._events:
            return
        if len(self._events) >= LIMIT:
            self._events.popleft()
            self._events[0] = HardwareEvent(kind=EventKind.INVENTORY)
        self._events.append(event)
        self._ready.set()

    def end(self) -> None:
        """No more events."""
        self._closed = True
        self._ready.set()


class Subscriptions:
    """The consumers of one reader's events; true while there is any."""

    def __init__(self) -> None:
        self._all: set[Subscription] = set()

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self) -> Subscription:
        """A new consumer, from now on."""
        subscription = Subscription(self)
        self._all.add(subscription)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Forget a consumer; unknown ones are ignored."""
        self._all.discard(subscription)

    def publish(self, event: HardwareEvent) -> None:
        """Give the event to every consumer."""
        for subscription in self._all:
            subscription.put(event)

    def close(self) -> None:
        """End every consumer's iteration."""
        for subscription in self._all:
            subscription.end()
        self._all.clear()
