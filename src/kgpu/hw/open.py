"""Picks the reader for the accelerators that this node has, by looking for their drivers.

Nothing found is a ``NoHardwareError``: a state to wait in, not a crash, because drivers come late. It names every place
looked at. A driver that is there but broken still gives a reader, whose calls then say what NVML says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError, HwError
from kgpu.base.suggest import did_you_mean
from kgpu.hw import roots
from kgpu.hw.port import Reader, Vendor

AUTO: Final = "auto"
LOADER_CACHE: Final = "/etc/ld.so.cache"


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
    known = {row.value: row for row in _VENDORS}
    if vendor != AUTO and vendor not in known:
        names = [AUTO, *known]
        hint = did_you_mean(vendor, names)
        what = f'there is no reader for vendor "{vendor}"{"; " if hint else ""}{hint}'
        raise ConfigError(what, f"one of: {', '.join(names)}", "choose one of them")
    missing: list[str] = []
    for row in _VENDORS if vendor == AUTO else [known[vendor]]:
        look, make = _VENDORS[row]
        places = look(root)
        if not places:
            return make(root, deadline, poll)
        missing += places
    raise NoHardwareError(
        "no accelerator driver was found (nvml init failed: ERROR_LIBRARY_NOT_FOUND)",
        f"one of: {', '.join(missing)}",
        "install the driver, or point --driver-root at the folder where it is installed or mounted",
    )


def _look_for_nvidia(root: Path) -> list[str]:
    """Empty when NVML is there, else the places looked at."""
    if roots.find_library(str(root)):
        return []
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    candidates = [os.path.join(folder, roots.LIBRARY) for folder in folders]
    if any(os.path.isfile(path) for path in candidates):
        return []
    try:
        with open(LOADER_CACHE, "rb") as cache:
            if roots.LIBRARY.encode() in cache.read():
                return []
    except OSError:
        pass
    return [*roots.library_candidates(str(root)), *candidates, f"{roots.LIBRARY} in {LOADER_CACHE}"]


def _open_nvidia(root: Path, deadline: float, poll: float) -> Reader:
    from kgpu.hw.nvidia.client import NvidiaReader

    return NvidiaReader(driver_root=root, deadline=deadline, poll=poll)


_VENDORS: Final[Mapping[Vendor, tuple[Callable[[Path], list[str]], Callable[[Path, float, float], Reader]]]] = {
    Vendor.NVIDIA: (_look_for_nvidia, _open_nvidia),
}
