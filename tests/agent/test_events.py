"""A warning is told once, a flood is cut, and an API server that refuses costs only the Event."""

from __future__ import annotations

import asyncio
import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from kgpu.agent.events import BURST, REFILL, REPEAT_AFTER, EventFilter, EventQueue, MemoryEventPublisher
from kgpu.base.advice import Advice, Severity
from kgpu.base.clock import VirtualClock, settle
from kgpu.base.errors import KubeError

WARNING = Advice(subject="GPU-1", what="unhealthy", why="Xid 79", severity=Severity.WARNING, reason="GpuUnhealthy")


def numbered(number: int) -> Advice:
    return dataclasses.replace(WARNING, subject=f"GPU-{number}")


def test_information_is_not_an_event():
    assert not EventFilter().admit(dataclasses.replace(WARNING, severity=Severity.INFO), 0)


def test_the_same_advice_is_told_again_only_after_a_while():
    admitted = EventFilter().admit
    told = [now for now in range(int(REPEAT_AFTER) + 1) if admitted(WARNING, now)]
    assert told == [0, REPEAT_AFTER]


def test_recovery_is_told_and_makes_the_same_trouble_news_again():
    seen = EventFilter()
    well = dataclasses.replace(WARNING, severity=Severity.INFO, reason="DeviceRecovered")
    assert seen.admit(WARNING, 0)
    assert seen.admit(numbered(2), 0)
    assert seen.admit(well, 1)
    assert seen.admit(WARNING, 2)
    assert not seen.admit(numbered(2), 2)
    assert seen.admit(well, 3)


def test_another_device_reason_or_cause_is_another_event():
    seen = EventFilter()
    assert seen.admit(WARNING, 0)
    assert seen.admit(numbered(2), 0)
    assert seen.admit(dataclasses.replace(WARNING, reason="GpuHealthy"), 0)
    assert seen.admit(dataclasses.replace(WARNING, why="Xid 48"), 0)


@given(st.lists(st.floats(0, 5), max_size=300))
def test_a_flood_never_exceeds_the_bucket(gaps):
    seen, now, admitted = EventFilter(), 0.0, 0
    for number, gap in enumerate(gaps):
        now += gap
        admitted += seen.admit(numbered(number), now)
    assert admitted <= BURST + now / REFILL + 1
    assert admitted + seen.suppressed == len(gaps)


async def test_advice_reach_the_api_server_in_order_and_a_refusal_is_survived():
    events, publisher = EventQueue(clock=VirtualClock()), MemoryEventPublisher()
    task = asyncio.create_task(events.run(publisher))
    events.take(numbered(1))
    events.take(numbered(2))
    await settle()
    assert publisher.published == [numbered(1), numbered(2)]
    publisher.refuse = KubeError("forbidden", "the right to create events", "grant it")
    events.take(numbered(3))
    await settle()
    publisher.refuse = None
    events.take(numbered(4))
    await settle()
    assert publisher.published == [numbered(1), numbered(2), numbered(4)]
    task.cancel()


async def test_what_happened_before_the_worker_started_is_told():
    events, publisher = EventQueue(clock=VirtualClock()), MemoryEventPublisher()
    events.take(WARNING)
    task = asyncio.create_task(events.run(publisher))
    await settle()
    assert publisher.published == [WARNING]
    task.cancel()
