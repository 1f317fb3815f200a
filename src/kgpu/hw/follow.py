"""Follows a reader's events: a stream that ends or fails is started again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from kgpu.base.clock import Clock
from kgpu.base.errors import HwError
from kgpu.hw.port import HardwareEvent, Reader

PAUSE_SECONDS: Final = 1.0


async def follow_events(
    reader: Reader,
    hear: Callable[[HardwareEvent], object],
    *,
    clock: Clock,
    missed: Callable[[], object] = lambda: None,
) -> None:
    """Call ``hear`` with each event until cancelled, and ``missed`` when some may have happened unheard."""
    while True:
        with contextlib.suppress(HwError):
            events = reader.events()
            try:
                async for event in events:
                    hear(event)
            finally:
                close = getattr(events, "aclose", None)
                if close is not None:
                    await close()
        missed()
        await clock.sleep(PAUSE_SECONDS)
