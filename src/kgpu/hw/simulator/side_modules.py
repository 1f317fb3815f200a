"""Kernel modules of a simulated machine beside the driver's own, as the containers beside the driver's load them.

They need the driver's module, so they go with it: unloading a driver removes them, and whoever wants them back loads
them again. The kernel's files of them are all that there is.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from kgpu.base.errors import HwError
from kgpu.hw.simulator import kernel_log

NAMES: Final = ("nvidia_fs", "gdrdrv", "nvidia_peermem")
_FOLDER: Final = "sys/module"
_DRIVER_ROOT: Final = "run/nvidia/driver"
_NOTICE: Final = 5


def is_loaded(root: Path, name: str) -> bool:
    """Whether a module is loaded."""
    return (Path(root) / _FOLDER / name / "refcnt").is_file()


def load(root: Path, name: str) -> None:
    """Load a module, also as the root of a driver's container shows it. Raises HwError without the driver's module."""
    root = Path(root)
    if not is_loaded(root, "nvidia"):
        raise HwError(f"{name}: Unknown symbol nvidia_p2p_get_pages", "the module nvidia, before this one", "load it")
    try:
        for place in _places(root):
            (place / name / "holders").mkdir(parents=True, exist_ok=True)
            (place / name / "refcnt").write_text("0\n")
            (place / name / "initstate").write_text("live\n")
    except OSError as error:
        raise HwError(
            f"{name} can't be loaded: {error.strerror or error}", "a simulated machine that this user owns",
            "check its owner",
        ) from error  # fmt: skip
    kernel_log.say(root, f"{name}: loaded", priority=_NOTICE)


def unload_all(root: Path) -> None:
    """Unload all of them. Raises OSError."""
    for place in _places(Path(root)):
        for name in NAMES:
            if (place / name).exists():
                shutil.rmtree(place / name)


def _places(root: Path) -> tuple[Path, ...]:
    """The machine's folder of modules, and the copy in a driver's container where there is one."""
    both = (root / _FOLDER, root / _DRIVER_ROOT / _FOLDER)
    return tuple(place for place in both if place.is_dir())
