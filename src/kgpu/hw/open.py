"""Picks the reader for the accelerators that this node has, by looking for their drivers.

Nothing found is a ``NoHardwareError``: a state to wait in, not a crash, because drivers come late. It names every place
looked at. A driver that is there but broken still gives a reader, whose calls then say what NVML says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError, HwError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.names import NVIDIA
from kgpu.hw.partitioning import GpuReset, ModeKernel, ModePartitioner, Partitioner
from kgpu.hw.port import Reader
from kgpu.hw.vendor import Vendor, vendor_names, vendor_of

AUTO: Final = "auto"


class NoHardwareError(HwError):
    """No vendor's driver is here (yet)."""


def open_reader(
    *, driver_root: Path | None = None, vendor: str = AUTO, deadline: float = 2.0, poll: float = 1.0
) -> Reader:
    """A reader for the vendor whose driver is under ``driver_root`` (None: the node's own ``/``).

    ``deadline`` is seconds per call on one device, ``poll`` seconds between looks for changes while anyone listens to
    events. Raises NoHardwareError when there is no driver, ConfigError on an unknown vendor.
    """
    root = driver_root or Path("/")
    known = vendor_names()
    if vendor != AUTO and vendor not in known:
        names = [AUTO, *known]
        hint = did_you_mean(vendor, names)
        what = f'there is no reader for vendor "{vendor}"{"; " if hint else ""}{hint}'
        raise ConfigError(what, f"one of: {', '.join(names)}", "choose one of them")
    row = _found(root, known if vendor == AUTO else [vendor])
    return row.open(root, deadline, poll)


def open_partitioner(*, driver_root: Path | None = None, reset: GpuReset) -> Partitioner:
    """What cuts this node's GPUs into slices; ``reset`` resets one where a change of mode needs that.

    Raises NoHardwareError when there is no driver of GPUs that kgpu can cut.
    """
    root = driver_root or Path("/")
    row = _found(root, vendor_names(), lambda row: row.partitioner is not None)
    assert row.partitioner is not None, "others were left out"
    return row.partitioner(root, reset)


def open_modes(*, driver_root: Path | None = None, kernel: ModeKernel) -> ModePartitioner:
    """What sets the modes by which this node's GPUs are parted; ``kernel`` is how their driver is told.

    Raises NoHardwareError when there is no driver of such GPUs.
    """
    root = driver_root or Path("/")
    row = _found(root, vendor_names(), lambda row: row.modes is not None)
    assert row.modes is not None, "others were left out"
    return row.modes(root, kernel)


def _found(root: Path, names: Sequence[str], counts: Callable[[Vendor], bool] = lambda _row: True) -> Vendor:
    """The first vendor whose driver is there, of those that count; no other is imported."""
    missing: list[str] = []
    for row in map(vendor_of, names):
        if not counts(row):
            continue
        places = row.missing(root)
        if not places:
            return row
        missing += places
    nvml = " (nvml init failed: ERROR_LIBRARY_NOT_FOUND)" if NVIDIA in names else ""
    raise NoHardwareError(
        f"no accelerator driver was found{nvml}",
        f"one of: {', '.join(missing)}",
        "install the driver, or point --driver-root at the folder where it is installed or mounted",
    )
