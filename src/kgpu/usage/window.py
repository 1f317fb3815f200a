"""Pure: since when and until when, as people write it: a date and time, or how long before the recording's end."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.formats.duration import parse_duration

_DAYS: Final = re.compile(r"(?:([0-9]{1,5})w)?(?:([0-9]{1,6})d)?(.*)", re.ASCII | re.DOTALL)
_DAY_US: Final = 86_400_000_000


def moment_us(text: str, flag: str, end_us: int) -> int:
    """Microseconds since 1970. A length such as 7d, 36h or 1d12h is before ``end_us``. A date is its beginning, a time
    without a zone is UTC. Raises ConfigError.
    """
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return end_us - _length_us(text, flag)
    moment = found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    return int((moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(microseconds=1))


def _length_us(text: str, flag: str) -> int:
    cause: ConfigError | None = None
    try:
        length = length_us(text)
    except ConfigError as error:
        length, cause = -1, error
    if not 0 <= length <= 100_000 * _DAY_US:
        raise ConfigError(
            f"{flag} {one_line(text, 60)!r} is no moment",
            "a date and time such as 2026-07-20T08:00:00Z, or how long before the recording's end, such as 7d or 36h",
            f"correct {flag}",
        ) from cause
    return length


def length_us(text: str) -> int:
    """The microseconds of a length such as 7d, 36h, 1w or 1d12h. Raises ConfigError."""
    match = _DAYS.fullmatch(text)
    weeks, days, rest = match.groups() if match else (None, None, text)
    more = parse_duration(rest) // 1000 if rest or not (weeks or days) else 0
    return (int(weeks or 0) * 7 + int(days or 0)) * _DAY_US + more


def check_window(begin_us: int | None, end_us: int | None) -> None:
    """Raises ConfigError for a window that ends before it begins."""
    if begin_us is not None and end_us is not None and begin_us >= end_us:
        raise ConfigError("--since is not before --until", "a moment before the other", "correct one of the two")
