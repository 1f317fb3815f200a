"""AMD's GPUs as devices, under the names of ROCm's DRA driver. Pure.

A GPU in mode SPX is a device, and so is one that can't be parted; in any other mode each of its partitions is one. The
name is ``gpu-<card>-<render>``, after the device nodes. What the driver does not tell is absent: no size is made up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kgpu.base.printable import underscored
from kgpu.dra.model import DeviceAttribute, DraDevice, GpuDevices, PublishRules
from kgpu.dra.values import amount_of, bytes_of, number_of, text_of, texts_of, versions_of
from kgpu.formats.names import DRA_PCI_BUS_ID, DRA_PCIE_ROOT
from kgpu.hw.port import Accelerator, Inventory, Partition

WHOLE: Final = "amdgpu"
PART: Final = "amdgpu-partition"
_NODE: Final = re.compile(r"/dev/dri/(card|renderD)([0-9]{1,6})", re.ASCII)


def published(inventory: Inventory, gpu: Accelerator, rules: PublishRules) -> GpuDevices:
    """The devices of one GPU."""
    if _numbers(gpu.device_nodes) is None:
        return GpuDevices(unnamed="the driver shows no card and render node of it")
    common = _common(inventory, gpu, rules.pcie_roots.get(gpu.pci_bus_id, ""))
    if not gpu.partitions:
        return GpuDevices(devices=(_whole(gpu, common),))
    ordered = sorted(gpu.partitions, key=lambda part: part.placement_start)
    return GpuDevices(devices=tuple(_part(gpu, part, common) for part in ordered if _numbers(part.device_nodes)))


def place(gpu: Accelerator) -> str:
    """By what its name differs from another's."""
    numbers = _numbers(gpu.device_nodes)
    return f"PCI address {gpu.pci_bus_id}" if numbers is None else f"card number {numbers[0]}"


def _common(inventory: Inventory, gpu: Accelerator, pcie_root: str) -> dict[str, DeviceAttribute]:
    """What a GPU and all its partitions have."""
    texts = {
        "pciAddr": gpu.pci_bus_id,
        "deviceID": _device_id(gpu),
        "family": gpu.family,
        "productName": underscored(gpu.name),
        "driverSrcVersion": inventory.library_version,
        "partitionProfile": gpu.mode,
        DRA_PCI_BUS_ID: gpu.pci_bus_id,
        DRA_PCIE_ROOT: pcie_root,
    }
    found = texts_of(texts) | versions_of({"driverVersion": inventory.driver_version})
    return found if gpu.numa_node is None else found | {"numaNode": number_of(gpu.numa_node)}


def _whole(gpu: Accelerator, common: dict[str, DeviceAttribute]) -> DraDevice:
    return DraDevice(
        name=_name(gpu.device_nodes),
        gpu=gpu.uuid,
        whole=True,
        attributes={"type": text_of(WHOLE), **_indexes(gpu.device_nodes), **common},
        capacity=_capacity(gpu.memory_mib or 0, gpu.compute_units, gpu.simds),
    )


def _part(gpu: Accelerator, part: Partition, common: dict[str, DeviceAttribute]) -> DraDevice:
    parent = texts_of({"parentPciAddr": gpu.pci_bus_id, "parentDeviceID": _device_id(gpu)})
    return DraDevice(
        name=_name(part.device_nodes),
        gpu=gpu.uuid,
        partition=part.uuid,
        start=part.placement_start,
        size=part.placement_size,
        attributes={"type": text_of(PART), **_indexes(part.device_nodes), **common, **parent},
        capacity=_capacity(part.memory_mib, part.multiprocessors, gpu.part_simds),
    )


def _device_id(gpu: Accelerator) -> str:
    device = gpu.pci_device_id >> 16
    return f"0x{device:04x}" if device else ""


def _numbers(nodes: Iterable[str]) -> tuple[int, int] | None:
    """The numbers of the card and the render node, None without both."""
    found = {match[1]: int(match[2]) for match in map(_NODE.fullmatch, nodes) if match}
    return (found["card"], found["renderD"]) if len(found) == 2 else None


def _name(nodes: Iterable[str]) -> str:
    card, render = _numbers(nodes) or (0, 0)
    return f"gpu-{card}-{render}"


def _indexes(nodes: Iterable[str]) -> dict[str, DeviceAttribute]:
    card, render = _numbers(nodes) or (0, 0)
    return {"cardIndex": number_of(card), "renderIndex": number_of(render)}


def _capacity(memory_mib: int, compute_units: int, simds: int) -> dict[str, str]:
    memory = {"memory": bytes_of(memory_mib)} if memory_mib else {}
    counts = {"computeUnits": compute_units, "simdUnits": simds}
    return memory | {name: amount_of(count) for name, count in counts.items() if count}
