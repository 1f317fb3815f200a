"""What is read of Intel's GPUs: tables of files, and one pass over them. May block for good.

The two drivers have different files for the same things; of those of a row's name the first that is there counts.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import Any, Final

from kgpu.formats.names import INTEL_DRIVERS
from kgpu.hw import sysfs
from kgpu.hw.file_reader import CardScan
from kgpu.hw.intel.facts import IntelFacts
from kgpu.hw.port import Reading, Value
from kgpu.hw.sysfs import GarbageError

DEVICES: Final = "bus/pci/devices"
MOST: Final = 64
_BUS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_DRM: Final = re.compile(r"(card|renderD)([0-9]{1,4})", re.ASCII)
_MIB: Final = 1 << 20
# key, file ({card}: the card's number, {hwmon}: the folder of sensors), how it is read
ROWS: Final[tuple[tuple[str, str, Callable[[str], Any]], ...]] = (
    ("device", "device", sysfs.hexadecimal),
    ("class", "class", sysfs.hexadecimal),
    ("numa_node", "numa_node", sysfs.number),
    ("memory", "drm/card{card}/lmem_total_bytes", sysfs.number),
    ("memory", "tile0/physical_vram_size_bytes", sysfs.hexadecimal),
    ("clock", "drm/card{card}/gt/gt0/rps_act_freq_mhz", sysfs.number),
    ("clock", "tile0/gt0/freq0/act_freq", sysfs.number),
    ("clock_highest", "drm/card{card}/gt/gt0/rps_max_freq_mhz", sysfs.number),
    ("clock_highest", "tile0/gt0/freq0/max_freq", sysfs.number),
    # Of these the GPU's firmware gives the content: a GPU that does not answer is noticed here.
    ("energy", "{hwmon}/energy1_input", sysfs.number),
    ("power_limit", "{hwmon}/power1_max", sysfs.number),
    ("temperature", "{hwmon}/temp2_input", sysfs.number),
    ("temperature", "{hwmon}/temp1_input", sysfs.number),
    ("width", "current_link_width", sysfs.number),
)
# value, key of the port, divisor
READINGS: Final[tuple[tuple[str, str, int], ...]] = (
    ("memory", "memory_total_mib", _MIB),
    ("clock", "sm_clock_mhz", 1),
    ("clock_highest", "max_sm_clock_mhz", 1),
    ("energy", "energy_mj", 1000),
    ("power_limit", "power_limit_w", 1_000_000),
    ("temperature", "temperature_c", 1000),
    ("width", "pcie_width", 1),
)


def scan(sys: str) -> CardScan:
    """The GPUs that either driver has. Raises FileNotFoundError when none is loaded."""
    found: list[str] = []
    places = 0
    for driver in INTEL_DRIVERS:
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(f"{sys}/bus/pci/drivers/{driver}")
            places += 1
            found += [name for name in names if _BUS.fullmatch(name) and not _hands_out(f"{sys}/{DEVICES}/{name}")]
    if not places:
        raise FileNotFoundError(f"{sys}/bus/pci/drivers/{' or '.join(INTEL_DRIVERS)}")
    return CardScan(tuple(sorted(found)[:MOST]), _release())


def gather(sys: str, bus: str) -> IntelFacts:
    """Read one GPU now."""
    folder = f"{sys}/{DEVICES}/{bus}"
    with contextlib.suppress(OSError):
        if sysfs.raw(f"{folder}/config", 4)[:2] == b"\xff\xff":
            return IntelFacts(bus, lost=True)
    driver = ""
    with contextlib.suppress(OSError):
        driver = os.path.basename(os.readlink(f"{folder}/driver"))
    numbers = {match[1]: int(match[2]) for name in _names(f"{folder}/drm") if (match := _DRM.fullmatch(name))}
    sensors = next(iter(_names(f"{folder}/hwmon")), "none")
    words = {"card": str(numbers.get("card", "")), "hwmon": f"hwmon/{sensors}"}
    values: dict[str, Any] = {}
    unreadable: list[str] = []
    for key, form, read in ROWS:
        if key in values:
            continue
        name = form.format(**words)
        try:
            values[key] = read(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        except (OSError, GarbageError):
            unreadable.append(key)
    known = driver if driver in INTEL_DRIVERS else ""
    return IntelFacts(bus, known, False, numbers.get("card"), numbers.get("renderD"), values, tuple(unreadable))


def reading(facts: IntelFacts) -> Reading:
    """Its telemetry."""
    there = ((key, facts.values[name] / divisor) for name, key, divisor in READINGS if name in facts.values)
    values: dict[str, Value] = dict(there)
    failures = {key: "unknown" for name, key, _ in READINGS if name in facts.unreadable}
    return Reading(uuid=facts.bus, values=values, failures=failures)


def _hands_out(folder: str) -> bool:
    """Whether a GPU has parted itself into virtual functions, which are offered in its place."""
    with contextlib.suppress(OSError, GarbageError):
        return sysfs.number(f"{folder}/sriov_numvfs") > 0
    return False


def _release() -> str:
    """Both drivers are the kernel's own: their version is its."""
    return os.uname().release


def _names(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))[:MOST]
    return []
