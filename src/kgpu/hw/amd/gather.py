"""What is read of one GPU's files for the inventory: a table of files, and one pass over it. May block for good."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.hw import sysfs as files
from kgpu.hw.amd.kfd import DrmNumbers, drm_numbers
from kgpu.hw.sysfs import GarbageError

DEVICES: Final = "bus/pci/devices"
ALL_SET: Final = b"\xff\xff"
RAS_BLOCKS: Final = ("umc", "sdma", "gfx", "mmhub", "xgmi_wafl")

ROWS: Final[tuple[tuple[str, Callable[[str], Any]], ...]] = (
    ("device", files.hexadecimal),
    ("class", files.hexadecimal),
    ("numa_node", files.number),
    ("product_name", files.line),
    ("serial_number", files.line),
    ("unique_id", files.line),
    ("mem_info_vram_total", files.number),
    ("current_compute_partition", files.word),
    ("current_memory_partition", files.word),
    ("available_compute_partition", files.line),
    # Of these the GPU's firmware gives the content: a GPU that does not answer is noticed here.
    ("gpu_busy_percent", files.number),
    *((f"ras/{block}_err_count", files.error_counts) for block in RAS_BLOCKS),
)


@dataclass(frozen=True, slots=True)
class AmdGpuFacts:
    """One GPU's files. ``values`` are those that are there, by name; ``unreadable`` names those that can't be read or
    understood. ``lost``: the bus answers for it with all bits set.
    """

    bus: str
    lost: bool = False
    drm: DrmNumbers | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    def errors(self) -> tuple[int, int] | None:
        """Uncorrectable and correctable errors of all blocks since the driver was loaded; None: none are counted."""
        counts = [value for name, value in self.values.items() if name.startswith("ras/")]
        return (sum(row[0] for row in counts), sum(row[1] for row in counts)) if counts else None


def gather(sys: str, bus: str) -> AmdGpuFacts:
    """Read one GPU now."""
    folder = f"{sys}/{DEVICES}/{bus}"
    lost = False
    with contextlib.suppress(OSError):
        lost = files.raw(f"{folder}/config", 4)[:2] == ALL_SET
    if lost:
        return AmdGpuFacts(bus, lost=True)
    values: dict[str, Any] = {}
    unreadable: list[str] = []
    for name, read in ROWS:
        try:
            values[name] = read(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        except (OSError, GarbageError):
            unreadable.append(name)
    return AmdGpuFacts(bus, False, drm_numbers(f"{folder}/drm"), values, tuple(unreadable))
