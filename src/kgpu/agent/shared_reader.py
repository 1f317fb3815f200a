"""One hardware reader for all roles: roles share each reading, and an event reaches all of them.

Calls that overlap, or that come within ``max_age`` seconds of the last answer, get the same answer. Any event makes the
next call read again, so nobody acts on an outdated answer. The reader is opened on first use: if that fails, every
caller gets the ``HwError``, and the next call tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Final, Generic, TypeVar

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HwError
from kgpu.hw.port import (
    Activity,
    DriverExchangedError,
    DriverReleasedError,
    EventKind,
    HardwareEvent,
    Inventory,
    Link,
    Process,
    Reader,
    Reading,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

# A subscriber that lags this far behind loses its events and is told to read the inventory again.
QUEUE_LIMIT = 1024
_OF_CUTS: Final = frozenset({EventKind.INVENTORY, EventKind.MIG_CHANGE})


class Coalesced(Generic[T]):
    """The latest answer of one call; concurrent callers share it."""

    def __init__(self, fetch: Callable[[], Awaitable[T]], *, clock: Clock, max_age: float) -> None:
        self._fetch = fetch
        self._clock = clock
        self._max_age = max_age
        self._generation = 0
        self._task: asyncio.Task[T] | None = None
        self._task_generation = -1
        self._kept: tuple[T, float] | None = None
        self._last: tuple[T, int] | None = None

    async def get(self) -> T:
        """The answer, at most ``max_age`` seconds old and begun after the last ``forget``."""
        if self._kept is not None and self._clock.monotonic() - self._kept[1] <= self._max_age:
            return self._kept[0]
        task = self._task
        if task is None or task.done() or self._task_generation != self._generation:
            task = asyncio.create_task(self._read(self._generation), name="shared-reading")
            task.add_done_callback(_retrieve)
            self._task, self._task_generation = task, self._generation
        # One caller's cancellation must not cost the others their answer.
        return await asyncio.shield(task)

    async def known(self) -> T:
        """The last answer however old it is, unless ``forget`` was called since; then a new one."""
        if self._last is not None and self._last[1] == self._generation:
            return self._last[0]
        return await self.get()

    def forget(self) -> None:
        """Drop the answer, including one that is being read: it may be outdated."""
        self._generation += 1
        self._kept = None

    async def cancel(self) -> None:
        """End a read in flight."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _read(self, generation: int) -> T:
        answer = await self._fetch()
        self._last = (answer, generation)
        if generation == self._generation:
            self._kept = (answer, self._clock.monotonic())
        return answer


class RoleSubscription:
    """One role's events since the subscription was made; iterate it, and ``aclose`` it when done."""

    def __init__(self, on_close: Callable[[RoleSubscription], None]) -> None:
        self._items: deque[HardwareEvent | Exception] = deque()
        self._wake = asyncio.Event()
        self._on_close = on_close
        self._closed = False

    def put(self, item: HardwareEvent | Exception) -> None:
        """Hand over one event, or the error that ended them."""
        if len(self._items) >= QUEUE_LIMIT and not isinstance(item, Exception):
            self._items.clear()
            item = HardwareEvent(kind=EventKind.INVENTORY)
        self._items.append(item)
        self._wake.set()

    def __aiter__(self) -> AsyncIterator[HardwareEvent]:
        return self

    async def __anext__(self) -> HardwareEvent:
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    async def aclose(self) -> None:
        """Stop listening."""
        if not self._closed:
            self._closed = True
            self._wake.set()
            self._on_close(self)


class SharedReader:
    """A ``Reader`` for several roles over one real reader. Only the agent calls ``close``; roles get a ``view()``."""

    def __init__(
        self, open_reader: Callable[[], Awaitable[Reader]], *, clock: Clock | None = None, max_age: float = 0.5
    ) -> None:
        self._clock = clock = clock or SystemClock()
        self._open_reader = open_reader
        self._open = self._opening()
        self._inventory = Coalesced(self._read_inventory, clock=clock, max_age=max_age)
        self._links = Coalesced(self._read_links, clock=clock, max_age=max_age)
        self._readings = Coalesced(self._read_readings, clock=clock, max_age=max_age)
        self._processes = Coalesced(self._read_processes, clock=clock, max_age=max_age)
        self._keys: frozenset[str] | None = frozenset()
        self._subscribers: list[RoleSubscription] = []
        self._pump: asyncio.Task[None] | None = None
        self._source: AsyncIterator[HardwareEvent] | None = None
        self._closed = False
        self._released = ""
        self._exchange = False
        self._quiet = False
        self._kept_back = False
        self._reopened = asyncio.Event()
        self._asking: set[asyncio.Future[Any]] = set()
        self.last_inventory: Inventory | None = None
        self.last_error: HwError | None = None

    async def inventory(self) -> Inventory:
        return await self._inventory.get()

    async def known_inventory(self) -> Inventory:
        """The last inventory, unless something has happened since that it may not show. It is as true as what follows
        from events: somebody has to subscribe to them.
        """
        if self._released or not self._subscribers:
            return await self._inventory.get()
        return await self._inventory.known()

    async def fresh_inventory(self) -> Inventory:
        """An inventory whose reading begins now."""
        self._inventory.forget()
        return await self._inventory.get()

    async def links(self) -> tuple[Link, ...]:
        return await self._links.get()

    async def readings(self, keys: Collection[str] | None = None) -> tuple[Reading, ...]:
        if self._keys is not None and (keys is None or not self._keys.issuperset(keys)):
            # Callers tend to ask for the same keys again, so the keys of all of them are read together.
            self._keys = None if keys is None else self._keys.union(keys)
            self._readings.forget()
        return await self._readings.get()

    async def processes(self) -> tuple[Process, ...]:
        return await self._processes.get()

    async def fresh_processes(self) -> tuple[Process, ...]:
        """The processes by a reading that begins now."""
        self._processes.forget()
        return await self._processes.get()

    async def activity(self, keys: Collection[str]) -> tuple[Activity, ...]:
        """What was done since the call before. The role ``usage`` alone asks: it is told once, and kept for nobody."""
        return await self._ask(lambda reader: reader.activity(keys))

    def events(self) -> RoleSubscription:
        """Subscribe: everything that happens after the next ``inventory`` call has begun reaches the subscription."""
        subscription = RoleSubscription(self._drop)
        self._subscribers.append(subscription)
        if self._pump is None or self._pump.done():
            self._source = None
            self._pump = asyncio.create_task(self._deliver(), name="hardware-events")
            self._pump.add_done_callback(_retrieve)
            # A reader waits for events only from the first reading after a subscription.
            self._forget()
        return subscription

    def view(self) -> RoleReader:
        """The same reader for one role, which may close its view without closing the reader."""
        return RoleReader(self)

    def hold(self, why: str, *, exchange: bool = False) -> None:
        """Nothing opens or asks the driver from now on: calls get ``DriverReleasedError``. ``let_go`` closes it.
        ``exchange``: the driver itself is exchanged, which subscribers get to know at once.
        """
        self._released, self._exchange = why, exchange
        self._reopened.clear()
        for asked in self._asking:
            asked.cancel()
        for shared in self._shared():
            shared.forget()
        if exchange:
            self._publish(HardwareEvent(kind=EventKind.INVENTORY))

    async def let_go(self) -> None:
        """Close the real reader after ``hold``; nothing if it is in use again meanwhile."""
        if not self._released:
            return
        opened, self._open = self._open, self._opening()
        if self._asking:
            await asyncio.wait(tuple(self._asking))
        await _close(opened)

    def changed(self) -> None:
        """Forget what was read, as this process has changed the hardware; subscribers are told to read anew."""
        for shared in self._shared():
            shared.forget()
        self._publish(HardwareEvent(kind=EventKind.INVENTORY))

    def reopen(self) -> None:
        """End ``hold``: the next call opens the driver again, and subscribers are told to read anew."""
        self._released = ""
        self._reopened.set()
        for shared in self._shared():
            shared.forget()

    def quiet(self, quiet: bool) -> None:
        """While ``quiet``, subscribers are not told that GPUs changed: somebody cuts them, and each step is a change.
        They are told once afterwards. Whoever reads meanwhile gets what is there.
        """
        self._quiet = quiet
        if not quiet and self._kept_back:
            self._kept_back = False
            self.changed()

    async def close(self) -> None:
        """Close the real reader; callers that still wait get an ``HwError``."""
        self._closed = True
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])
        for shared in self._shared():
            await shared.cancel()
        await _close(self._open)

    def _opening(self) -> Coalesced[Reader]:
        return Coalesced(self._open_reader, clock=self._clock, max_age=float("inf"))

    def _shared(self) -> tuple[Coalesced[Any], ...]:
        return self._inventory, self._links, self._readings, self._processes

    async def _reader(self) -> Reader:
        if self._closed:
            raise HwError("the hardware reader is closed", "a running agent", "start the agent again")
        if self._released:
            raise self._error()
        reader = await self._open.get()
        if self._released:
            raise self._error()
        if self._source is None and self._subscribers:
            self._source = reader.events()
        return reader

    def _error(self) -> DriverReleasedError:
        return (DriverExchangedError if self._exchange else DriverReleasedError)(self._released)

    def _forget(self) -> None:
        self._inventory.forget()
        self._links.forget()

    async def _ask(self, call: Callable[[Reader], Awaitable[T]]) -> T:
        """Ask the real reader."""
        return await self._until_held(call(await self._reader()))

    async def _until_held(self, call: Awaitable[T]) -> T:
        """Wait for a use of the real reader. ``hold`` ends it: that is a ``DriverReleasedError``, no cancellation."""
        asked = asyncio.ensure_future(call)
        self._asking.add(asked)
        asked.add_done_callback(self._asking.discard)
        try:
            return await asked
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self._released and (current is None or not current.cancelling()):
                raise self._error() from None
            raise

    async def _read_inventory(self) -> Inventory:
        try:
            inventory = await self._ask(lambda reader: reader.inventory())
        except DriverReleasedError:
            raise
        except HwError as error:
            self.last_error = error
            raise
        self.last_inventory, self.last_error = inventory, None
        return inventory

    async def _read_links(self) -> tuple[Link, ...]:
        return await self._ask(lambda reader: reader.links())

    async def _read_readings(self) -> tuple[Reading, ...]:
        return await self._ask(lambda reader: reader.readings(self._keys))

    async def _read_processes(self) -> tuple[Process, ...]:
        return await self._ask(lambda reader: reader.processes())

    async def _deliver(self) -> None:
        while True:
            try:
                end = await self._until_held(self._pass_on())
            except DriverReleasedError as released:
                end = released
            self._source = None
            if not (self._released or isinstance(end, DriverReleasedError)):
                break
            await self._reopened.wait()
            self._forget()
            self._publish(HardwareEvent(kind=EventKind.INVENTORY))
        self._publish(end)

    async def _pass_on(self) -> HwError:
        """Pass the driver's events on until they end; returns why they did."""
        try:
            await self._reader()
            assert self._source is not None, "this runs only for subscribers"
            async for event in self._source:
                self._forget()
                if self._quiet and event.kind in _OF_CUTS:
                    self._kept_back = True
                else:
                    self._publish(event)
        except HwError as error:
            return error
        except Exception as error:
            # No subscriber may wait for events that will not come.
            log.exception("following the driver's events failed")
            return HwError(f"following the driver's events failed: {error}", "no error there", "report it as a defect")
        return HwError("the driver's events ended", "events for as long as the agent runs", "see the agent's log")

    def _publish(self, item: HardwareEvent | HwError) -> None:
        for subscriber in tuple(self._subscribers):
            subscriber.put(item)

    def _drop(self, subscription: RoleSubscription) -> None:
        with contextlib.suppress(ValueError):
            self._subscribers.remove(subscription)


class RoleReader:
    """One role's view of a ``SharedReader``."""

    def __init__(self, shared: SharedReader) -> None:
        self._shared = shared
        self._subscriptions: list[RoleSubscription] = []

    async def inventory(self) -> Inventory:
        return await self._shared.inventory()

    async def links(self) -> tuple[Link, ...]:
        return await self._shared.links()

    async def readings(self, keys: Collection[str] | None = None) -> tuple[Reading, ...]:
        return await self._shared.readings(keys)

    async def processes(self) -> tuple[Process, ...]:
        return await self._shared.processes()

    async def activity(self, keys: Collection[str]) -> tuple[Activity, ...]:
        return await self._shared.activity(keys)

    def events(self) -> RoleSubscription:
        subscription = self._shared.events()
        self._subscriptions.append(subscription)
        return subscription

    async def close(self) -> None:
        """End this role's subscriptions; the reader stays open for the others."""
        while self._subscriptions:
            await self._subscriptions.pop().aclose()


async def _close(opened: Coalesced[Reader]) -> None:
    with contextlib.suppress(HwError, asyncio.CancelledError):
        if opened._task is not None:
            await (await opened.get()).close()


def _retrieve(task: asyncio.Task[T]) -> None:
    """Mark a failure as retrieved: the callers got it, or there are none left."""
    if not task.cancelled():
        task.exception()
