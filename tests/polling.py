"""Looking again and again, at a pace that leaves the processor to what is waited for.

A look at a cluster by kubectl or by the doctor takes a quarter of a second of processor time. Taken all the time it is
most of what a test uses, and holds up the very programs that it waits for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 4
"""A look is followed by a pause of so many times the processor time that it took."""


def computed() -> float:
    """Seconds of processor time of this process, and of its children that have ended."""
    return sum(os.times()[:4])


def holds(condition: Callable[[], object], *, seconds: float, pause: float = 0.2) -> bool:
    """Whether the condition holds within the time; it is looked at once at least. ``pause`` is the least, in seconds."""
    end = time.monotonic() + seconds
    while True:
        before = computed()
        if condition():
            return True
        if time.monotonic() > end:
            return False
        time.sleep(max(pause, SHARE * (computed() - before)))
