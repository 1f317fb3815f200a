"""Python's garbage collection in small steps, so that no request waits for it.

The cluster's objects are plain data, freed by reference counts; scanning them again and again would take tens of
milliseconds each time for nothing. So objects that survive two young collections are frozen (``gc.freeze``), and only
now and then all are collected, for the reference cycles that connections and tasks leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from typing import Final

YOUNG: Final = (1000, 5, 10)
"""Thresholds: a collection scans some thousand objects, which takes about 3 ms."""
PERIOD_S: Final = 600.0  # between two full collections
WORTH: Final = 50_000  # a full collection needs so many objects frozen since the last


@contextlib.contextmanager
def small_steps() -> Iterator[None]:
    """Collect in small steps in the with block. Objects that exist at its beginning are frozen at once."""
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
    """Collect all objects, frozen ones included; returns how many were garbage."""
    gc.unfreeze()
    garbage = gc.collect()
    gc.freeze()
    return garbage


async def run(*, period: float = PERIOD_S, worth: int = WORTH) -> None:
    """Collect everything from time to time, until cancelled."""
    last = gc.get_freeze_count()
    while True:
        await asyncio.sleep(period)
        if gc.get_freeze_count() - last >= worth:
            everything()
            last = gc.get_freeze_count()
