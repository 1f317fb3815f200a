"""Which driver branches know a GPU: its generation by PCI device id, and the first and last branch of that.

Sources: pci.ids (the ranges of NVIDIA's device ids), NVIDIA's data center driver documentation and release notes (the
first branch of a generation; 470 is the last for Kepler, 580 the last for Maxwell, Pascal and Volta), and the open
kernel modules' README (Turing and later; Blackwell has no other module). An id that is in no row is of no known
generation: nothing is said of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGeneration:
    """``ids``: first and last device id of each range. ``first`` and ``last`` branch, ``last`` 0 while it goes on.

    ``open_module`` and ``closed_module``: whether the open and the proprietary kernel module drive it.
    """

    name: str
    ids: tuple[tuple[int, int], ...]
    first: int
    last: int = 0
    open_module: bool = True
    closed_module: bool = True


GENERATIONS: Final = (
    GpuGeneration(
        name="Kepler", first=304, last=470, open_module=False,
        ids=((0x0FC0, 0x0FFF), (0x1001, 0x103F), (0x1180, 0x11FF), (0x1280, 0x12BF)),
    ),
    GpuGeneration(
        name="Maxwell", first=340, last=580, open_module=False,
        ids=((0x1340, 0x143F), (0x1617, 0x1667), (0x174D, 0x179C), (0x17C2, 0x17FD)),
    ),
    GpuGeneration(name="Pascal", ids=((0x15F0, 0x15FF), (0x1B00, 0x1D7F)), first=375, last=580, open_module=False),
    GpuGeneration(name="Volta", ids=((0x1D80, 0x1DFF),), first=384, last=580, open_module=False),
    GpuGeneration(name="Turing", ids=((0x1E00, 0x1FFF), (0x2180, 0x21FF)), first=410),
    GpuGeneration(name="Ampere", ids=((0x2080, 0x20FF), (0x2200, 0x22FF), (0x2400, 0x25FF)), first=450),
    GpuGeneration(name="Hopper", ids=((0x2300, 0x23FF),), first=520),
    GpuGeneration(name="Ada", ids=((0x2680, 0x28FF),), first=520),
    GpuGeneration(name="Blackwell", ids=((0x2900, 0x29FF), (0x2B80, 0x2FFF)), first=570, closed_module=False),
)  # fmt: skip


def generation_of(device: str) -> GpuGeneration | None:
    """The row of a device id in hex (``1db1``); None for one that no row has, and for what is no id."""
    try:
        number = int(device, 16)
    except ValueError:
        return None
    return next((row for row in GENERATIONS if any(low <= number <= high for low, high in row.ids)), None)
