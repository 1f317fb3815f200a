"""Devices are listed seldom, and never as they were before an event: the port's promises hold through it."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.base.clock import VirtualClock, settle
from kgpu.base.errors import HwError
from kgpu.exporter.cached_reader import KEPT_SECONDS, CachedReader
from kgpu.hw.fake_reader import FakeReader, sample_inventory
from kgpu.hw.port import EventKind, HardwareEvent, Problem


@pytest.fixture
def inner():
    return FakeReader(sample_inventory(2))


@pytest.fixture
async def listed(inner):
    """One whose events are followed."""
    reader = CachedReader(inner, clock=VirtualClock())

    async def follow() -> None:
        async for event in reader.events():
            del event

    task = asyncio.create_task(follow())
    await settle()
    yield reader
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_is_listed_once_for_a_while(inner, listed):
    first = await listed.inventory()
    assert await listed.inventory() is first
    assert inner.inventory_calls == 1
    await listed._clock.advance(KEPT_SECONDS)
    await listed.inventory()
    assert inner.inventory_calls == 2


async def test_every_change_is_seen_and_an_xid_is_none(inner, listed):
    first = await listed.inventory()
    inner.report(HardwareEvent(kind=EventKind.XID, uuid=first.accelerators[0].uuid, code=13))
    await settle()
    assert await listed.inventory() is first
    inner.fail(first.accelerators[0].uuid, Problem.LOST)
    await settle()
    assert not (await listed.inventory()).accelerators[0].usable


async def test_nothing_is_kept_while_nobody_follows(inner):
    reader = CachedReader(inner)
    await reader.inventory()
    await reader.inventory()
    assert inner.inventory_calls == 2


async def test_a_reading_that_fails_means_that_devices_may_be_others(inner, listed):
    await listed.inventory()
    inner._error = HwError("away", "there", "wait")
    with pytest.raises(HwError):
        await listed.readings()
    with pytest.raises(HwError):
        await listed.inventory()


async def test_what_happens_while_it_is_listed_is_not_missed(inner, listed, monkeypatch):
    begun, go = asyncio.Event(), asyncio.Event()
    plain = inner.inventory

    async def slow():
        found = await plain()
        begun.set()
        await go.wait()
        return found

    monkeypatch.setattr(inner, "inventory", slow)
    task = asyncio.create_task(listed.inventory())
    await begun.wait()
    inner.fail(inner._inventory.accelerators[1].uuid, Problem.LOST)
    await settle()
    go.set()
    assert (await task).accelerators[1].usable
    assert not (await listed.inventory()).accelerators[1].usable
