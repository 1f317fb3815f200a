"""The modes by name, each imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

from kgpu.toolkit.modes.base import Mode

MODULES: Final[Mapping[str, str]] = {
    "csv": "csv_files",
    "gdrcopy": "gdrcopy",
    "gds": "gds",
    "imex": "imex",
    "management": "management",
    "mofed": "mofed",
    "nvml": "nvml",
    "nvswitch": "nvswitch",
    "wsl": "wsl",
}


def mode_named(name: str) -> Mode:
    """The mode of this name. Raises KeyError for one that is not in the table."""
    mode: Mode = importlib.import_module(f"kgpu.toolkit.modes.{MODULES[name]}").MODE
    return mode
