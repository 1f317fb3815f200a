"""Which boot of the machine this is, and how long ago it was."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID) -> str:
    """The kernel's id of this boot, "" where there is none."""
    try:
        return path.read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
        return ""


def uptime() -> float:
    """Seconds since boot, suspended time included; the same in every container of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
