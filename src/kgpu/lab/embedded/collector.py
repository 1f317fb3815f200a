"""Garbage collection in small steps, so that no request waits for it.

What the cluster keeps is plain data that reference counts free; the collector would look at it again and again for
nothing, tens of milliseconds at a time. So what lives through two young collections is set aside (``gc.freeze``), and
only now and then everything is looked at, for the rings that connections and tasks have left there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from typing import Final

YOUNG: Final = (1000, 5, 10)
"""Thresholds: a collection looks at some thousand objects, which takes about 3 ms."""
PERIOD_S: Final = 600.0  # between two looks at everything
WORTH: Final = 50_000  # objects set aside since the last one, below which there is none


@contextlib.contextmanager
def small_steps() -> Iterator[None]:
    """Collect so in the block. What exists at its beginning is set aside at once."""
    before = gc.get_threshold()
    everything()
    gc.set_threshold(*YOUNG)
    gc.callbacks.append(_set_aside)
    try:
        yield
    finally:
        gc.callbacks.remove(_set_aside)
        gc.set_threshold(*before)
        gc.unfreeze()


def _set_aside(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"]:
        gc.freeze()


def everything() -> int:
    """Look at all objects; how many were garbage."""
    gc.unfreeze()
    found = gc.collect()
    gc.freeze()
    return found


async def run(*, period: float = PERIOD_S, worth: int = WORTH) -> None:
    """Look at everything from time to time, until cancelled."""
    last = gc.get_freeze_count()
    while True:
        await asyncio.sleep(period)
        if gc.get_freeze_count() - last >= worth:
            everything()
            last = gc.get_freeze_count()
