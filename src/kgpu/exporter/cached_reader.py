"""A reader that caches the inventory: enumerating 56 MIG slices costs more than reading all their values.

The inventory is kept until an event says that it may have changed, a call fails, or ``seconds`` have gone by. This
needs a listener that iterates ``events``, as the exporter does; without one every call is passed on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Final

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HwError
from kgpu.hw.port import Activity, EventKind, HardwareEvent, Inventory, Link, Process, Reader, Reading

KEPT_SECONDS: Final = 60.0


class CachedReader:
    """A ``Reader`` that wraps another one, which its owner closes."""

    def __init__(self, reader: Reader, *, clock: Clock | None = None, seconds: float = KEPT_SECONDS) -> None:
        self._reader = reader
        self._clock = clock or SystemClock()
        self._seconds = seconds
        self._kept: tuple[Inventory, float] | None = None
        self._heard = 0
        self._listeners = 0

    async def inventory(self) -> Inventory:
        now = self._clock.monotonic()
        if self._kept is not None and self._listeners and now - self._kept[1] < self._seconds:
            return self._kept[0]
        heard = self._heard
        inventory = await self._reader.inventory()
        # An event that came during the call may not be in the inventory.
        self._kept = (inventory, now) if heard == self._heard else None
        return inventory

    async def links(self) -> tuple[Link, ...]:
        return await self._reader.links()

    async def readings(self, keys: Collection[str] | None = None) -> tuple[Reading, ...]:
        try:
            return await self._reader.readings(keys)
        except HwError:
            self._forget()
            raise

    async def processes(self) -> tuple[Process, ...]:
        return await self._reader.processes()

    async def activity(self, keys: Collection[str]) -> tuple[Activity, ...]:
        return await self._reader.activity(keys)

    async def events(self) -> AsyncIterator[HardwareEvent]:
        events = self._reader.events()
        self._listeners += 1
        self._forget()
        try:
            async for event in events:
                # An Xid changes no device by itself; what it leads to comes as an event of its own.
                if event.kind is not EventKind.XID:
                    self._forget()
                yield event
        finally:
            self._listeners -= 1
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    async def close(self) -> None:
        """Do nothing: the owner closes the wrapped reader."""

    def _forget(self) -> None:
        self._heard += 1
        self._kept = None
