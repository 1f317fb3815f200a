"""Go durations as config files spell them: ``60s``, ``1m0s``, ``1h30m``, ``1.5s``, ``250ms``, and ``infinite``.

Values are nanoseconds, as in Go. ``INFINITE`` is Go's longest duration.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation, localcontext
from typing import Final

from kgpu.base.errors import ConfigError

INFINITE: Final = 2**63 - 1
UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART: Final = re.compile(r"([0-9]*\.?[0-9]*)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_MAX_TEXT: Final = 128


def parse_duration(text: str) -> int:
    """Nanoseconds. Raises ConfigError, with Go's word ``invalid duration``."""
    if text == "infinite":
        return INFINITE
    body = text[1:] if text[:1] in {"+", "-"} else text
    if body == "0":
        return 0
    total = Decimal(0)
    position = 0
    with localcontext() as context:
        context.prec = 60
        while position < len(body) <= _MAX_TEXT:
            match = _PART.match(body, position)
            if match is None or match.group(1) in {"", "."}:
                break
            try:
                total += Decimal(match.group(1)) * UNITS[match.group(2)]
            except InvalidOperation:
                break
            position = match.end()
    nanoseconds = int(total) * (-1 if text.startswith("-") else 1)
    if not body or position < len(body) or abs(nanoseconds) > INFINITE:
        raise ConfigError(
            f"invalid duration {text[:_MAX_TEXT]!r}",
            "a number and a unit, e.g. 60s, 1m30s, 500ms, or infinite",
            "correct the duration",
        )
    return nanoseconds


def format_duration(nanoseconds: int) -> str:
    """The shortest spelling that ``parse_duration`` reads back to the same value, in Go's form (``1m0s``)."""
    if nanoseconds == INFINITE:
        return "infinite"
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest == 0:
        return "0s"
    for unit in ("ns", "µs", "ms"):
        scale, limit = UNITS[unit], {"ns": 10**3, "µs": 10**6, "ms": 10**9}[unit]
        if rest < limit:
            return f"{sign}{_decimal(rest, scale)}{unit}"
    hours, rest = divmod(rest, UNITS["h"])
    minutes, rest = divmod(rest, UNITS["m"])
    seconds = f"{_decimal(rest, UNITS['s'])}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(value: int, scale: int) -> str:
    whole, fraction = divmod(value, scale)
    if not fraction:
        return str(whole)
    digits = str(fraction).rjust(len(str(scale)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}"
