"""Which boot of the machine this is, and how long ago it was."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


ENV_BOOT_ID: Final = "KGPU_BOOT_ID"
"""The id of a simulated machine's boot, for the programs on it: they share a kernel with every other one."""


def boot_id(path: Path | None = None) -> str:
    """The kernel's id of this boot, "" where there is none; on a simulated machine that machine's.

    With ``path`` that file alone is asked: ``BOOT_ID`` for the kernel's own, whatever machine is simulated.
    """
    if path is None:
        if simulated := os.environ.get(ENV_BOOT_ID, ""):
            return simulated[:64]
        path = BOOT_ID
    try:
        return path.read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
        return ""


def uptime() -> float:
    """Seconds since boot, suspended time included; the same in every container of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
