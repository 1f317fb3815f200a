"""One reading for all who ask together, fresh after an event; events reach everyone; errors reach everyone."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kgpu.agent.shared_reader import QUEUE_LIMIT, SharedReader
from kgpu.base.clock import VirtualClock, settle
from kgpu.base.errors import HwError
from kgpu.hw.port import DriverExchangedError, DriverReleasedError, EventKind, HardwareEvent, Inventory

XID = HardwareEvent(kind=EventKind.XID, uuid="GPU-1", code=79)


class Scripted:
    """A reader whose answers a test holds back and counts."""

    def __init__(self) -> None:
        self.reads = 0
        self.calls: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: HwError | None = None
        self.queue: asyncio.Queue[HardwareEvent | HwError] = asyncio.Queue()
        self.listeners = 0
        self.closed = False

    async def inventory(self) -> Inventory:
        self.calls.append("inventory")
        self.reads += 1
        number = self.reads
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return Inventory(vendor="nvidia", driver_version=str(number))

    async def links(self):
        return ()

    async def readings(self, keys=None):
        self.calls.append(("readings", None if keys is None else sorted(keys)))
        return ()

    async def processes(self):
        self.calls.append("processes")
        return ()

    async def activity(self, keys):
        self.calls.append("activity")
        return ()

    def events(self):
        self.calls.append("events")
        self.listeners += 1
        return self.listen()

    async def listen(self):
        while True:
            item = await self.queue.get()
            if isinstance(item, Exception):
                raise item
            yield item

    async def close(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.real = Scripted()
        self.opens = 0
        self.missing: HwError | None = None
        self.shared = SharedReader(self.open, clock=self.clock, max_age=1.0)

    async def open(self) -> Scripted:
        self.opens += 1
        if self.missing is not None:
            raise self.missing
        return self.real


@pytest.fixture
async def world():
    world = World()
    yield world
    await world.shared.close()


async def test_callers_together_share_one_reading(world):
    answers = await asyncio.gather(*(world.shared.inventory() for _ in range(5)))
    assert world.real.reads == 1
    assert world.opens == 1
    assert all(answer is answers[0] for answer in answers)


async def test_an_answer_ages(world):
    await world.shared.inventory()
    await world.clock.advance(0.9)
    await world.shared.inventory()
    assert world.real.reads == 1
    await world.clock.advance(0.2)
    await world.shared.inventory()
    assert world.real.reads == 2


async def test_fresh_processes_are_read_after_the_call(world):
    await world.shared.processes()
    await world.shared.processes()
    assert world.real.calls == ["processes"]
    await world.shared.fresh_processes()
    assert world.real.calls == ["processes"] * 2


async def test_an_event_makes_even_a_reading_in_flight_stale(world):
    events = world.shared.events()
    world.real.gate.clear()
    before = asyncio.create_task(world.shared.inventory())
    await settle()
    world.real.queue.put_nowait(XID)
    assert await anext(events) == XID
    after = asyncio.create_task(world.shared.inventory())
    await settle()
    world.real.gate.set()
    assert (await before).driver_version == "1"
    assert (await after).driver_version == "2"
    assert (await world.shared.inventory()).driver_version == "2"


async def test_a_subscription_makes_the_next_reading_fresh_and_comes_before_it(world):
    await world.shared.inventory()
    world.shared.events()
    assert (await world.shared.inventory()).driver_version == "2"
    assert world.real.calls == ["inventory", "events", "inventory"]


async def test_one_callers_cancellation_does_not_cost_the_others(world):
    world.real.gate.clear()
    first = asyncio.create_task(world.shared.inventory())
    second = asyncio.create_task(world.shared.inventory())
    await settle()
    first.cancel()
    await settle()
    world.real.gate.set()
    assert (await second).driver_version == "1"
    assert first.cancelled()


async def test_an_error_is_everyones_and_is_not_kept(world):
    world.real.error = HwError("a", "b", "c")
    results = await asyncio.gather(world.shared.inventory(), world.shared.inventory(), return_exceptions=True)
    assert [type(result) for result in results] == [HwError, HwError]
    assert world.shared.last_error is world.real.error
    world.real.error = None
    assert await world.shared.inventory()
    assert world.shared.last_error is None


async def test_a_reader_that_can_not_be_opened_is_tried_again(world):
    world.missing = HwError("no library", "the library", "install it")
    with pytest.raises(HwError, match="no library"):
        await world.shared.inventory()
    world.missing = None
    assert await world.shared.inventory()
    assert world.opens == 2


async def test_every_subscriber_gets_every_event_through_one_listener(world):
    first, second = world.shared.view().events(), world.shared.view().events()
    await settle()
    world.real.queue.put_nowait(XID)
    assert await anext(first) == XID
    assert await anext(second) == XID
    assert world.real.listeners == 1


async def test_gpus_that_are_being_cut_are_told_of_once_at_the_end(world):
    """Each slice is a change; readings of a half-cut node, each by every role, would only slow the cutting."""
    events = world.shared.events()
    await settle()
    world.shared.quiet(True)
    before = await world.shared.inventory()
    for kind in (EventKind.MIG_CHANGE, EventKind.INVENTORY):
        world.real.queue.put_nowait(HardwareEvent(kind=kind))
    world.real.queue.put_nowait(XID)
    assert await anext(events) == XID, "only what slices explain is kept back"
    assert (await world.shared.inventory()).driver_version > before.driver_version, "who asks gets what is there"
    world.shared.quiet(False)
    assert (await anext(events)).kind is EventKind.INVENTORY
    world.shared.quiet(True)
    world.shared.quiet(False)
    assert not events._items, "nothing has changed"


async def test_a_subscription_holds_from_the_call_on(world):
    events = world.shared.events()
    await settle()
    world.real.queue.put_nowait(XID)
    await settle()
    assert await asyncio.wait_for(anext(events), 60) == XID


async def test_a_subscriber_that_sleeps_is_told_to_read_again_instead_of_growing(world):
    events = world.shared.events()
    for _ in range(QUEUE_LIMIT + 1):
        world.real.queue.put_nowait(XID)
    while not world.real.queue.empty():
        await settle()
    await settle()
    assert (await anext(events)).kind is EventKind.INVENTORY


async def test_the_end_of_events_is_an_error_for_all_and_a_new_subscription_works(world):
    first, second = world.shared.events(), world.shared.events()
    world.real.queue.put_nowait(HwError("gone", "a driver", "wait"))
    for events in (first, second):
        with pytest.raises(HwError, match="gone"):
            await anext(events)
    again = world.shared.events()
    await settle()
    world.real.queue.put_nowait(XID)
    assert await anext(again) == XID


async def test_a_defect_while_following_events_leaves_nobody_waiting(world):
    first = world.shared.events()
    world.real.queue.put_nowait(ValueError("a defect"))
    with pytest.raises(HwError, match="a defect"):
        await asyncio.wait_for(anext(first), 60)


async def test_closing_a_view_ends_its_events_but_not_the_reader(world):
    view, other = world.shared.view(), world.shared.view()
    events, others = view.events(), other.events()
    waiting = asyncio.create_task(anext(events))
    await settle()
    await view.close()
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert not world.real.closed
    world.real.queue.put_nowait(XID)
    assert await anext(others) == XID


async def test_close_closes_the_reader_and_refuses_further_calls():
    world = World()
    await world.shared.inventory()
    await world.shared.close()
    assert world.real.closed
    await world.clock.advance(2)
    with pytest.raises(HwError, match="closed"):
        await world.shared.inventory()


async def test_close_without_a_reader_ever_opened():
    world = World()
    await world.shared.close()
    assert world.opens == 0


async def test_readings_are_read_for_everybodys_wishes_together(world: World) -> None:
    one, two = world.shared.view(), world.shared.view()
    asked = lambda: [call[1] for call in world.real.calls if call[0] == "readings"]  # noqa: E731
    await one.readings(["power_w"])
    await two.readings({"temperature_c"})
    assert asked() == [["power_w"], ["power_w", "temperature_c"]]
    await one.readings(["power_w"])
    assert len(asked()) == 2, "what was read for both is still fresh"
    await two.readings()
    assert asked()[-1] is None
    await world.clock.advance(5.0)
    await one.readings(["power_w"])
    assert asked()[-1] is None


async def test_a_reader_that_is_held_back_is_closed_and_opened_again(world):
    events = world.shared.events()
    await world.shared.inventory()
    world.shared.hold("a reset")
    await world.shared.let_go()
    assert world.real.closed
    for call in (world.shared.inventory, world.shared.links, world.shared.readings, world.shared.processes):
        with pytest.raises(DriverReleasedError, match="a reset"):
            await call()
    assert world.shared.last_error is None
    assert world.opens == 1
    world.real = Scripted()
    world.shared.reopen()
    assert await anext(events) == HardwareEvent(kind=EventKind.INVENTORY)
    assert (await world.shared.inventory()).driver_version
    await world.real.queue.put(XID)
    assert await anext(events) == XID
    assert world.opens == 2


async def test_an_exchange_is_told_at_once_and_a_release_after_it_is_none_any_more(world):
    events = world.shared.events()
    await world.shared.inventory()
    world.shared.hold("another driver", exchange=True)
    assert await anext(events) == HardwareEvent(kind=EventKind.INVENTORY)
    await world.shared.let_go()
    with pytest.raises(DriverExchangedError, match="another driver"):
        await world.shared.inventory()
    world.real = Scripted()
    world.shared.reopen()
    await world.shared.inventory()
    world.shared.hold("a reset")
    await world.shared.let_go()
    with pytest.raises(DriverReleasedError) as released:
        await world.shared.inventory()
    assert type(released.value) is DriverReleasedError


async def test_calls_that_are_under_way_end_as_released_and_cancel_nobody(world):
    world.real.gate.clear()
    callers = [asyncio.create_task(world.shared.inventory()) for _ in range(3)]
    await settle()
    world.shared.hold("a reset")
    await world.shared.let_go()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(found) for found in answers] == [DriverReleasedError] * 3


async def test_a_subscription_made_meanwhile_hears_the_driver_later(world):
    world.shared.hold("a reset")
    events = world.shared.events()
    first = asyncio.create_task(anext(events))
    await settle()
    assert not first.done()
    assert world.opens == 0
    world.shared.reopen()
    assert (await first).kind is EventKind.INVENTORY
    await world.shared.inventory()
    await world.real.queue.put(XID)
    assert await anext(events) == XID


async def test_a_reader_that_is_used_again_is_not_closed(world):
    await world.shared.inventory()
    world.shared.hold("a reset")
    world.shared.reopen()
    await world.shared.let_go()
    assert not world.real.closed


async def test_a_fresh_inventory_is_read_after_the_call(world):
    await world.shared.inventory()
    await world.shared.fresh_inventory()
    assert world.real.reads == 2


async def test_what_is_known_is_read_again_only_once_something_has_happened() -> None:
    world = World()
    assert (await world.shared.known_inventory()).driver_version == "1"
    await world.clock.advance(60.0)
    assert (await world.shared.known_inventory()).driver_version == "2", "nobody hears whether something has happened"
    async with contextlib.aclosing(world.shared.events()):
        known = await world.shared.known_inventory()
        await world.clock.advance(3600.0)
        assert await world.shared.known_inventory() is known
        world.real.queue.put_nowait(XID)
        await settle()
        again = await world.shared.known_inventory()
        assert again is not known
        assert await world.shared.known_inventory() is again
        world.shared.changed()
        assert await world.shared.known_inventory() is not again
        world.shared.hold("a reset")
        with pytest.raises(DriverReleasedError):
            await world.shared.known_inventory()
    await world.shared.close()


async def test_what_was_outdated_as_it_was_read_is_not_known() -> None:
    world = World()
    async with contextlib.aclosing(world.shared.events()):
        world.real.gate.clear()
        reading = asyncio.create_task(world.shared.known_inventory())
        await settle()
        world.real.queue.put_nowait(XID)
        await settle()
        world.real.gate.set()
        first = await reading
        assert await world.shared.known_inventory() is not first
    await world.shared.close()
