"""Events are heard again after a stream that failed or ended, and what may have been missed is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kgpu.base.clock import VirtualClock
from kgpu.base.errors import HwError
from kgpu.hw.follow import PAUSE_SECONDS, follow_events
from kgpu.hw.port import EventKind, HardwareEvent


class Streams:
    """A reader whose streams give one event each; the first fails after it, the others end."""

    def __init__(self) -> None:
        self.begun = 0
        self.closed = 0

    async def events(self) -> AsyncIterator[HardwareEvent]:
        self.begun += 1
        number = self.begun
        try:
            yield HardwareEvent(kind=EventKind.XID, code=number)
            if number == 1:
                raise HwError("the driver went away", "events", "wait")
        finally:
            self.closed += 1


async def test_a_stream_that_fails_or_ends_is_begun_again() -> None:
    reader: Any = Streams()
    clock, heard, missed = VirtualClock(), [], []
    following = asyncio.create_task(
        follow_events(
            reader, lambda event: heard.append(event.code), clock=clock, missed=lambda: missed.append(len(heard))
        )
    )
    for number in (1, 2, 3):
        await clock.advance(0)
        assert (heard, missed) == (list(range(1, number + 1)), list(range(1, number + 1)))
        await clock.advance(PAUSE_SECONDS)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert reader.closed == reader.begun


async def test_what_the_listener_raises_is_not_hidden() -> None:
    def hear(_event: HardwareEvent) -> None:
        raise RuntimeError("a defect")

    reader: Any = Streams()
    with pytest.raises(RuntimeError, match="a defect"):
        await asyncio.wait_for(follow_events(reader, hear, clock=VirtualClock()), 60)
    assert reader.closed == 1
