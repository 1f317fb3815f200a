"""When repairs may begin by themselves: weekly windows in a time zone, as kured has them. Pure.

A window that ends before it begins goes on after midnight, and counts to the day on which it began. One that ends when
it begins lasts a day. A window holds back the beginning alone: what has begun is finished.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.times import time_zone

MAX_WINDOWS: Final = 16
DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_TIME: Final = re.compile(r"(?P<hour>[01][0-9]|2[0-3]):(?P<minute>[0-5][0-9])")
_LOOK_AHEAD: Final = 9
"""Days: a week, and one that a change to summer time may have cost."""
_KEYS: Final = ("days", "start", "end", "timeZone")
_EXAMPLE: Final = '{days: [Mon, Tue], start: "22:00", end: "06:00", timeZone: Europe/Berlin}'


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairWindow:
    """``days`` are those on which it begins, Monday is 0."""

    days: frozenset[int]
    start: dt.time
    end: dt.time
    zone: str

    def spans(self, day: dt.date) -> tuple[float, float]:
        """When the window of a day begins and ends, in seconds since 1970."""
        zone = time_zone(self.zone)
        last = day if self.end > self.start else day + dt.timedelta(days=1)
        begin, end = dt.datetime.combine(day, self.start, zone), dt.datetime.combine(last, self.end, zone)
        return begin.timestamp(), end.timestamp()


def opens_at(windows: Sequence[RepairWindow], now: float) -> float:
    """``now`` if a window is open, otherwise when the next one opens; infinity if none does within nine days."""
    if not windows:
        return now
    return min((max(now, begin) for window in windows for begin, end in _upcoming(window, now)), default=float("inf"))


def _upcoming(window: RepairWindow, now: float) -> list[tuple[float, float]]:
    """The spans that have not ended, from that of yesterday on."""
    today = dt.datetime.fromtimestamp(now, time_zone(window.zone)).date()
    days = (today + dt.timedelta(days=ahead) for ahead in range(-1, _LOOK_AHEAD))
    spans = (window.spans(day) for day in days if day.weekday() in window.days)
    return [(begin, end) for begin, end in spans if begin < end and now < end]


def read_windows(value: Any, where: str) -> tuple[RepairWindow, ...]:
    """Read the windows from the chart's values. Raises ConfigError."""
    rows = value or ()
    if not isinstance(rows, (list, tuple)) or len(rows) > MAX_WINDOWS:
        raise ConfigError(f"{where} is not a list of at most {MAX_WINDOWS}", f"[{_EXAMPLE}]", "correct it")
    return tuple(_window(row, f"{where}[{place}]") for place, row in enumerate(rows))


def _window(row: Any, where: str) -> RepairWindow:
    if not isinstance(row, Mapping) or not {"start", "end"} <= row.keys() <= set(_KEYS):
        raise ConfigError(f"{where} is {str(row)[:80]!r}", f"a mapping such as {_EXAMPLE}", "correct it")
    return RepairWindow(
        days=_days(row.get("days"), f"{where}.days"), start=_time(row["start"], f"{where}.start"),
        end=_time(row["end"], f"{where}.end"), zone=_zone(row.get("timeZone") or "UTC", f"{where}.timeZone"),
    )  # fmt: skip


def _days(value: Any, where: str) -> frozenset[int]:
    """All days if none is named."""
    if not value:
        return frozenset(range(7))
    if not isinstance(value, (list, tuple)) or not all(day in DAYS for day in value):
        raise ConfigError(f"{where} is {str(value)[:80]!r}", f"a list of: {', '.join(DAYS)}", "correct it")
    return frozenset(DAYS.index(day) for day in value)


def _time(value: Any, where: str) -> dt.time:
    hit = _TIME.fullmatch(value) if isinstance(value, str) else None
    if hit is None:
        hint = "write it in quotes: YAML reads 22:00 as a number" if isinstance(value, int) else "correct it"
        raise ConfigError(f"{where} is {str(value)[:40]!r}", 'a time such as "22:00"', hint)
    return dt.time(int(hit["hour"]), int(hit["minute"]))


def _zone(value: Any, where: str) -> str:
    try:
        time_zone(value)
    except ValueError as error:
        raise ConfigError(
            f"{where} is {str(value)[:60]!r}", "a time zone such as Europe/Berlin", "correct it"
        ) from error
    return str(value)
