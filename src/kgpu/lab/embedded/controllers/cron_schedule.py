"""When a CronJob is due: five fields, a name such as ``@hourly`` or ``@every 90s``, in a time zone.

The rules are those of the parser that kube-controller-manager uses: a day must match both day fields when one of them
is a star, else either. A local time that a change of clocks leaves out is skipped; one that comes twice counts twice.
Pure.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from kgpu.base.times import time_zone
from kgpu.lab.embedded.types.validate.cron import schedule_error

_RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMES: Final[dict[int, dict[str, int]]] = {
    3: {name: at + 1 for at, name in enumerate(_MONTHS)},
    4: {name: at for at, name in enumerate(_WEEKDAYS)},
}
_NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)")
_YEARS: Final = 5  # searched ahead; a schedule without a time in them is never due
_SECOND: Final = dt.timedelta(seconds=1)
_MINUTE: Final = dt.timedelta(minutes=1)


class ScheduleError(Exception):
    """The schedule can't be parsed; ``str()`` is the parser's message."""


@dataclass(frozen=True, slots=True)
class Every:
    """Again after so many whole seconds."""

    seconds: int

    def after(self, at: dt.datetime) -> dt.datetime | None:
        """The next time, None when it is out of datetime's range."""
        try:
            return at.replace(microsecond=0) + dt.timedelta(seconds=self.seconds)
        except OverflowError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Minutes, hours, days, months and weekdays (0 is Sunday); ``zone`` None is this machine's."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    starred: bool
    """One of the two day fields is a star."""
    zone: dt.tzinfo | None = None

    def _is_day(self, day: dt.date) -> bool:
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (in_month and in_week) if self.starred else (in_month or in_week)

    def _midnight(self, day: dt.date) -> dt.datetime:
        naive = dt.datetime.combine(day, dt.time())
        return (naive.replace(tzinfo=self.zone) if self.zone is not None else naive).astimezone(dt.UTC)

    def after(self, at: dt.datetime) -> dt.datetime | None:
        """The first time later than ``at``, in UTC; None when there is none in five years."""
        try:
            return self._after(at)
        except OverflowError:
            return None

    def _after(self, at: dt.datetime) -> dt.datetime | None:
        candidate = (at.astimezone(dt.UTC) + _SECOND).replace(microsecond=0)
        if candidate.second:
            candidate = candidate.replace(second=0) + _MINUTE
        last = candidate.astimezone(self.zone).year + _YEARS
        while (local := candidate.astimezone(self.zone)).year <= last:
            if local.month not in self.months:
                first = dt.date(local.year + local.month // 12, local.month % 12 + 1, 1)
                candidate = max(self._midnight(first), candidate + _MINUTE)
            elif not self._is_day(local.date()):
                candidate = max(self._midnight(local.date() + dt.timedelta(days=1)), candidate + _MINUTE)
            elif local.hour not in self.hours:
                candidate += dt.timedelta(minutes=60 - local.minute)
            elif local.minute not in self.minutes:
                candidate += _MINUTE
            else:
                return candidate
        return None


Schedule: TypeAlias = Every | Times


def zone_of(name: str) -> dt.tzinfo:
    """The time zone. Raises ScheduleError."""
    try:
        return time_zone(name or "UTC")
    except ValueError as error:
        raise ScheduleError(f"unknown time zone {name}") from error


def parse(text: str, zone: str | None = None) -> Schedule:
    """Parse a schedule; a ``TZ=`` in the text overrides ``zone``. Raises ScheduleError."""
    if wrong := schedule_error(text):
        raise ScheduleError(wrong)
    rest = text
    if text.startswith(("TZ=", "CRON_TZ=")):
        head, _, rest = text.partition(" ")
        zone = head.partition("=")[2]
    rest = rest.strip()
    if rest.startswith("@every "):
        return _every(rest.removeprefix("@every "))
    fields = _NAMED.get(rest, rest).split()
    read = [_field(field, place) for place, field in enumerate(fields)]
    return Times(
        minutes=read[0][0], hours=read[1][0], days=read[2][0], months=read[3][0], weekdays=read[4][0],
        starred=read[2][1] or read[4][1], zone=zone_of(zone) if zone is not None else None,
    )  # fmt: skip


def _every(text: str) -> Every:
    seconds = sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(text))
    if seconds >= 2**63 / 1e9:
        raise ScheduleError(f'failed to parse duration @every {text}: time: invalid duration "{text}"')
    return Every(1 if text.startswith("-") else max(1, int(seconds)))


def _field(text: str, place: int) -> tuple[frozenset[int], bool]:
    """The values of a field, and whether it has a star."""
    low, high = _RANGES[place]
    values: set[int] = set()
    starred = False
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = int(step_text) if slash else 1
        first, dash, last = span.partition("-")
        if first in ("*", "?"):
            start, end = low, high
            starred = starred or step == 1
        else:
            start = _number(first, place)
            end = _number(last, place) if dash else (high if slash else start)
        values.update(range(start, end + 1, step))
    return frozenset(values), starred


def _number(text: str, place: int) -> int:
    name = _NAMES.get(place, {}).get(text.lower())
    return int(text) if name is None else name
