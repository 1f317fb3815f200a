"""Moments as Kubernetes writes them, and the time zones in which people say theirs."""

from __future__ import annotations

import datetime as dt
import time
from typing import Final

LAST_MOMENT: Final = 253_402_300_799
"""The last second of the year 9999, in seconds since 1970."""


def stamp_of(moment: float) -> str:
    """The time in RFC 3339, in UTC and rounded down to whole seconds; at most the last that it has.

    ``moment`` is in seconds since 1970. Such texts sort as their moments do.
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(moment, LAST_MOMENT)))


def moment_of(stamp: object) -> dt.datetime | None:
    """The moment of an RFC 3339 time, in UTC where it names no zone; None for anything else."""
    if not isinstance(stamp, str):
        return None
    try:
        moment = dt.datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def time_zone(name: str) -> dt.tzinfo:
    """The zone of that name, such as ``Europe/Berlin``; ``UTC`` also where there is no database of zones.

    Raises ValueError where there is none of that name.
    """
    if name == "UTC":
        return dt.UTC
    import zoneinfo  # not for those that only write moments

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, TypeError, OSError) as error:
        raise ValueError(f"unknown time zone {str(name)[:64]}") from error
