"""Recognises Tegra (Jetson, Thor) nodes, whose driver files are listed in CSV files of the board support package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kgpu.host.driver.model import Search
from kgpu.host.driver.programs import sys_of
from kgpu.host.root import DriverRoot, read_some

RELEASE_FILE: Final = "/etc/nv_tegra_release"
_FAMILY: Final = "devices/soc0/family"
_MACHINE: Final = "firmware/devicetree/base/model"
_ORIN: Final = "orin"
_MAX_TEXT: Final = 4096


def is_tegra(root: DriverRoot, *, sys: Path | None = None) -> bool:
    """Whether /etc/nv_tegra_release exists or /sys/devices/soc0/family begins with ``tegra`` (go-nvlib's rule)."""
    return root.files.is_file(RELEASE_FILE) or _text(root, _FAMILY, sys).lower().startswith("tegra")


def is_orin(root: DriverRoot, *, sys: Path | None = None) -> bool:
    """Whether the device tree names an Orin board, whose CUDA compatibility libraries are in a separate folder."""
    return _ORIN in _text(root, _MACHINE, sys).lower()


def is_integrated_gpu(name: str) -> bool:
    """Whether the GPU's name contains ``(nvgpu)`` or ``NVIDIA Thor`` (go-nvlib's rule)."""
    return "(nvgpu)" in name or "NVIDIA Thor" in name


def _text(root: DriverRoot, inside: str, sys: Path | None) -> str:
    return read_some(sys_of(root, Search(sys=sys)) / inside, _MAX_TEXT).decode(errors="replace").strip("\0\n ")
