"""Gaudi accelerators as devices, under the names of Intel's DRA driver. Pure.

A card is one device, ``<PCI address with dashes>-0x<device id>``. The attribute ``healthy`` follows its taints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kgpu.dra.model import DraDevice, GpuDevices, PublishRules
from kgpu.dra.values import texts_of
from kgpu.formats.names import DRA_PCIE_ROOT
from kgpu.hw.port import Accelerator, Inventory

HEALTHY: Final = "healthy"
# The models of Intel's driver, by what a card is called here.
_MODELS: Final[Mapping[str, str]] = {
    "Intel Gaudi": "Gaudi", "Intel Gaudi 2": "Gaudi2", "Intel Gaudi 3": "Gaudi3",
}  # fmt: skip
_UNKNOWN: Final = "Unknown"


def published(inventory: Inventory, gpu: Accelerator, rules: PublishRules) -> GpuDevices:
    """The device of one card."""
    del inventory
    number = gpu.pci_device_id >> 16
    if not (number and gpu.pci_bus_id):
        return GpuDevices(unnamed="its PCI address and device id are not known")
    root = rules.pcie_roots.get(gpu.pci_bus_id, "")
    texts = {
        "model": _MODELS.get(gpu.name, _UNKNOWN),
        "serial": gpu.serial,
        DRA_PCIE_ROOT: root,
        "pciRoot": root,  # superseded by the one before
    }
    name = f"{gpu.pci_bus_id.replace(':', '-').replace('.', '-')}-0x{number:04x}"
    return GpuDevices(devices=(DraDevice(name=name, gpu=gpu.uuid, whole=True, attributes=texts_of(texts)),))
