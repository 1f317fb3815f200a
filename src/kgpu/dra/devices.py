"""From a node's inventory to the devices that it publishes. Pure; read this first.

A GPU is a whole device or its slices, never both at once, for two claims would get the same hardware. With slices made
on demand both are devices, and counters keep them apart: each takes of what the GPU has. A slice that is there and that
this driver did not make stays: it is a device for itself, and what it holds is no longer shared out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.base.quantity import Quantity
from kgpu.dra import nvidia
from kgpu.dra.model import DraCounterSet, DraDevice, GpuDevices, PublishedNode, PublishRules
from kgpu.dra.nvidia import GpuOfNode
from kgpu.dra.taints import tainted
from kgpu.formats.mig_geometry import Geometry, InstanceProfile, geometry_of, placements
from kgpu.formats.names import DRA_GPU_DRIVER, NVIDIA
from kgpu.hw.port import Accelerator, Inventory, Partition
from kgpu.hw.verdicts import GpuVerdict

DRIVERS: Final[Mapping[str, str]] = {NVIDIA: DRA_GPU_DRIVER}
"""The driver's name by vendor; a vendor that is not here publishes nothing yet."""
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
Placed = tuple[InstanceProfile, int]
"""An instance of a profile, and where it starts."""


def node_devices(
    inventory: Inventory, rules: PublishRules, verdicts: Mapping[str, GpuVerdict] | None = None
) -> PublishedNode:
    """What the node publishes. ``verdicts`` are by UUID, None where no process gives any. Raises ConfigError for a
    vendor whose devices kgpu does not publish.
    """
    driver = driver_of(inventory.vendor)
    advice: list[Advice] = []
    gpus: list[GpuDevices] = []
    minors: set[int] = set()
    for gpu in inventory.accelerators:
        if gpu.minor in minors:  # the names of its devices and counters are those of another GPU
            advice.append(_unpublished(gpu.uuid, "it", f"another GPU has minor number {gpu.minor} too"))
            continue
        minors.add(gpu.minor)
        node = GpuOfNode(inventory, gpu, rules.pcie_roots.get(gpu.pci_bus_id, ""))
        published = _published(node, rules)
        kept = tuple(_named(published.devices, advice))
        devices = tainted(kept, gpu, None if verdicts is None else verdicts.get(gpu.uuid), rules)
        if devices:
            gpus.append(replace(published, devices=devices))
    return PublishedNode(driver=driver, gpus=tuple(gpus), advice=tuple(advice))


def driver_of(vendor: str) -> str:
    """The name under which a vendor's devices are published. Raises ConfigError."""
    if vendor not in DRIVERS:
        raise ConfigError(
            f'kgpu has no DRA driver for vendor "{vendor}"', f"one of: {', '.join(DRIVERS)}",
            "use the device plugin, which offers its devices as resources",
        )  # fmt: skip
    return DRIVERS[vendor]


def _named(devices: Iterable[DraDevice], advice: list[Advice]) -> Iterator[DraDevice]:
    """Those with a legal name that no other of the GPU's devices has."""
    names: set[str] = set()
    for device in devices:
        if not _LABEL.fullmatch(device.name):
            advice.append(_unpublished(device.partition or device.gpu, device.name, "that is no DNS label"))
        elif device.name in names:
            advice.append(_unpublished(device.partition or device.gpu, device.name, "another device has that name"))
        else:
            names.add(device.name)
            yield device


def _unpublished(uuid: str, name: str, why: str) -> Advice:
    return Advice(
        subject=uuid, what=f"{name} is not published as a device", why=why, severity=Severity.WARNING,
        reason="DeviceNotPublished", remedy="compare with `nvidia-smi -q`; if the driver says the same, update it",
    )  # fmt: skip


def _published(node: GpuOfNode, rules: PublishRules) -> GpuDevices:
    gpu = node.gpu
    geometry = geometry_of(gpu.name) if rules.dynamic and gpu.mig_capable else None
    # A change of the mode resets such a GPU, so that it stays as it is.
    if geometry is not None and (gpu.mig_enabled or not geometry.needs_reset):
        found = _dynamic(node, geometry, rules)
        if found is not None:
            return found
    if gpu.mig_enabled or gpu.partitions:
        return GpuDevices(devices=_slices(node, gpu.partitions))
    return GpuDevices(devices=(nvidia.gpu_device(node),))


def _slices(node: GpuOfNode, partitions: Iterable[Partition]) -> tuple[DraDevice, ...]:
    ordered = sorted(partitions, key=lambda one: (one.placement_start, one.compute_instance, one.uuid))
    return tuple(nvidia.partition_device(node, one) for one in ordered)


def _dynamic(node: GpuOfNode, geometry: Geometry, rules: PublishRules) -> GpuDevices | None:
    """The whole GPU and every slice that can be made of it, besides those that stay; None where one of these is of no
    known profile, so that nobody can say what is left.
    """
    gpu = node.gpu
    staying = tuple(one for one in gpu.partitions if one.uuid not in rules.made)
    placed = _placed(gpu, staying)
    left = None if placed is None else _left(gpu, geometry, placed)
    if placed is None or left is None:
        return None
    possible = [
        nvidia.candidate_device(node, geometry, row, start)
        for row in geometry.rows
        for start in row.starts
        if _fits(geometry, row, start, placed)
    ]
    devices = [*_slices(node, staying), *(_found(device, gpu, rules) for device in possible)]
    if not placed and not geometry.needs_reset:
        whole = replace(nvidia.gpu_device(node), counter_set=nvidia.counter_set_name(gpu), consumes=left)
        devices.insert(0, whole)
    counters = DraCounterSet(name=nvidia.counter_set_name(gpu), counters=left) if possible else None
    return GpuDevices(devices=tuple(devices), counters=counters)


def _placed(gpu: Accelerator, partitions: Iterable[Partition]) -> tuple[Placed, ...] | None:
    """The GPU instances of the partitions with their starts; None where one is of no known profile."""
    found: dict[int, Placed] = {}
    for one in partitions:
        known = nvidia.profile_of(gpu, one)
        if known is None:
            return None
        found[one.gpu_instance] = (known[1], one.placement_start)
    return tuple(found.values())


def _left(gpu: Accelerator, geometry: Geometry, placed: Iterable[Placed]) -> dict[str, str] | None:
    """The GPU's counters without what the instances hold; None where they hold more than there is."""
    left = {name: Quantity.parse(amount) for name, amount in nvidia.counters(gpu, geometry).items()}
    for row, start in placed:
        for name, amount in nvidia.consumption(gpu, geometry, row, start).items():
            left[name] = left.get(name, Quantity.of(0)) - Quantity.parse(amount)
    if any(amount.nanos < 0 for amount in left.values()):
        return None
    return {name: str(amount) for name, amount in left.items()}


def _fits(geometry: Geometry, row: InstanceProfile, start: int, placed: tuple[Placed, ...]) -> bool:
    at_start = replace(row, starts=(start,))
    return placements(geometry, [at_start], beside=placed) is not None


def _found(device: DraDevice, gpu: Accelerator, rules: PublishRules) -> DraDevice:
    """The device with the instance that was made for it, if there is one now."""
    for one in gpu.partitions:
        known = nvidia.profile_of(gpu, one) if one.uuid in rules.made else None
        if known is not None and nvidia.candidate_name(gpu, known[1], one.placement_start) == device.name:
            return replace(device, instance=one.gpu_instance, compute=one.compute_instance)
    return device
