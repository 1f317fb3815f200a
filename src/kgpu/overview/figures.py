"""Numbers for people: the same unit everywhere, and a dash for what is not known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

UNKNOWN: Final = "-"


def percent(value: float | None) -> str:
    """``63 %``."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.0f} %"


def gib(mib: float | None) -> str:
    """MiB as GiB."""
    return UNKNOWN if mib is None or not math.isfinite(mib) else f"{mib / 1024:,.0f} GiB"


def celsius(value: float | None) -> str:
    """``63 °C``."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.0f} °C"


def watts(value: float | None) -> str:
    """``310 W``."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.0f} W"


def memory(values: Mapping[str, float]) -> str:
    """``12 GiB of 80 GiB``."""
    total = values.get("memory_total_mib")
    return UNKNOWN if total is None else f"{gib(values.get('memory_used_mib'))} of {gib(total)}"


def amount(value: float | None, currency: str) -> str:
    """``24.48 USD``."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.2f} {currency}"


def age(seconds: float | None) -> str:
    """How long ago, in steps, so that a page that stays the same is not sent again for it."""
    if seconds is None or not math.isfinite(seconds):
        return "never read"
    if seconds < 10:
        return "now"
    for limit, step, unit in ((60, 10, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // step) * (10 if unit == 's' else 1)} {unit} ago"
    return f"{int(seconds // 86_400)} d ago"
