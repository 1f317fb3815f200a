"""What of the host's /sys a device's attributes need: the root complex that a GPU is behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kgpu.host.pci import DEVICES
from kgpu.hw.port import Inventory

_ROOT: Final = re.compile(r"/devices/(pci[0-9a-f]{4,8}:[0-9a-f]{2})/", re.ASCII)
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


def read_pcie_roots(root: str | Path, inventory: Inventory) -> Mapping[str, str]:
    """Root complexes such as ``pci0000:3a`` by the GPUs' PCI addresses; those that /sys does not say are left out."""
    return pcie_roots(Path(root), (gpu.pci_bus_id for gpu in inventory.accelerators))


def pcie_roots(root: Path, addresses: Iterable[str]) -> Mapping[str, str]:
    """The same for any addresses. /sys is below ``root``; it has for each function a link into its place in the tree
    of devices.
    """
    found = {}
    for address in filter(_ADDRESS.fullmatch, addresses):
        try:
            place = os.readlink(root / DEVICES / address)
        except OSError:
            continue
        match = _ROOT.search(place)
        if match:
            found[address] = match[1]
    return found
