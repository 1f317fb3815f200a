"""Mode ``auto``: which mode a node needs, and why (go-nvlib's rule)."""

from __future__ import annotations

from kgpu.host.driver.tegra import is_integrated_gpu, is_tegra
from kgpu.host.driver.wsl import is_wsl
from kgpu.host.root import DriverRoot
from kgpu.hw.port import Inventory
from kgpu.toolkit.config import NVML


def before_hardware(root: DriverRoot) -> tuple[str, str] | None:
    """The mode and the reason when the files alone decide; None when the GPUs must be asked."""
    if is_wsl(root):
        return "wsl", "/dev/dxg and libdxcore.so are there"
    return None


def with_hardware(root: DriverRoot, inventory: Inventory | None) -> tuple[str, str]:
    """The mode and the reason. ``inventory`` None: NVML does not answer."""
    if inventory is None:
        if is_tegra(root):
            return "csv", "this is a Tegra and NVML does not answer"
        return NVML, "nothing says otherwise, although NVML does not answer"
    integrated = next((gpu.name for gpu in inventory.accelerators if is_integrated_gpu(gpu.name)), "")
    if integrated:
        return "csv", f"{integrated} is an integrated GPU"
    return NVML, "NVML answers"
