"""What is read of one Gaudi card's files: a table of files, and one pass over it. May block for good."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import Any, Final

from kgpu.formats.names import GAUDI_DRIVER
from kgpu.hw import sysfs
from kgpu.hw.file_reader import CardScan
from kgpu.hw.gaudi.facts import GaudiFacts
from kgpu.hw.sysfs import GarbageError

DEVICES: Final = "bus/pci/devices"
MOST: Final = 64
_BUS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_ACCEL: Final = re.compile(r"accel([0-9]{1,4})", re.ASCII)
_UVERBS: Final = re.compile(r"uverbs[0-9]{1,4}", re.ASCII)
ROWS: Final[tuple[tuple[str, Callable[[str], Any]], ...]] = (
    ("device", sysfs.hexadecimal),
    ("class", sysfs.hexadecimal),
    ("numa_node", sysfs.number),
    ("status", sysfs.line),
    ("device_type", sysfs.word),
    ("module_id", sysfs.number),
    ("armcp_kernel_ver", sysfs.line),
    ("uboot_ver", sysfs.line),
    ("clk_cur_freq_mhz", sysfs.number),
    ("clk_max_freq_mhz", sysfs.number),
    ("max_power", sysfs.number),
    ("current_link_width", sysfs.number),
)


def scan(sys: str) -> CardScan:
    """The cards that the driver has. Raises FileNotFoundError when it is not loaded."""
    entries = os.listdir(f"{sys}/bus/pci/drivers/{GAUDI_DRIVER}")
    buses = sorted(entry for entry in entries if _BUS.fullmatch(entry))[:MOST]
    version = ""
    with contextlib.suppress(OSError, GarbageError):
        version = sysfs.line(f"{sys}/module/{GAUDI_DRIVER}/version")
    return CardScan(tuple(buses), version)


def gather(sys: str, bus: str) -> GaudiFacts:
    """Read one card's files now."""
    folder = f"{sys}/{DEVICES}/{bus}"
    with contextlib.suppress(OSError):
        if sysfs.raw(f"{folder}/config", 4)[:2] == b"\xff\xff":
            return GaudiFacts(bus, lost=True)
    values: dict[str, Any] = {}
    unreadable: list[str] = []
    for name, read in ROWS:
        try:
            values[name] = read(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        except (OSError, GarbageError):
            unreadable.append(name)
    minor = _first(f"{folder}/accel", _ACCEL)
    uverbs = _first(f"{folder}/infiniband_verbs", _UVERBS)
    return GaudiFacts(
        bus, False, int(minor[1]) if minor else None, uverbs[0] if uverbs else "", values, tuple(unreadable)
    )


def _first(folder: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(folder)):
            if match := pattern.fullmatch(entry):
                return match
    return None
