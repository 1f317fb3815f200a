"""Moments as Kubernetes writes them."""

from __future__ import annotations

import time
from typing import Final

LAST_MOMENT: Final = 253_402_300_799
"""The last second of the year 9999, in seconds since 1970."""


def stamp_of(moment: float) -> str:
    """The time in RFC 3339, in UTC and rounded down to whole seconds; at most the last that it has.

    ``moment`` is in seconds since 1970. Such texts sort as their moments do.
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(moment, LAST_MOMENT)))
