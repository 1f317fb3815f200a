"""NVIDIA's GPUs as devices: whole, as the MIG devices that are there, or as all that can be made of them. Pure.

A GPU is a whole device or its slices, never both at once, for two claims would get the same hardware. With slices made
on demand both are devices, and counters keep them apart: each takes of what the GPU has. A slice that is there and that
this driver did not make stays: it is a device for itself, and what it holds is no longer shared out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kgpu.base.quantity import Quantity
from kgpu.dra import nvidia
from kgpu.dra.model import DraCounterSet, DraDevice, GpuDevices, PublishRules
from kgpu.dra.nvidia import GpuOfNode
from kgpu.formats.mig_geometry import Geometry, InstanceProfile, geometry_of, placements
from kgpu.hw.port import Accelerator, Inventory, Partition

Placed = tuple[InstanceProfile, int]
"""An instance of a profile, and where it starts."""


def published(inventory: Inventory, gpu: Accelerator, rules: PublishRules) -> GpuDevices:
    """The devices of one GPU."""
    node = nvidia.gpu_of_node(inventory, gpu, rules.pcie_roots.get(gpu.pci_bus_id, ""))
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
    staying = tuple(one for one in gpu.partitions if not _is_made(gpu, one, rules))
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


def _is_made(gpu: Accelerator, part: Partition, rules: PublishRules) -> bool:
    """By its place: while a slice is being made, it is there before anybody knows its UUID."""
    return (gpu.uuid, part.placement_start) in rules.made


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
    return not placed or placements(geometry, [at_start], beside=placed) is not None


def _found(device: DraDevice, gpu: Accelerator, rules: PublishRules) -> DraDevice:
    """The device with the instance that was made for it, if there is one now."""
    for one in gpu.partitions:
        known = nvidia.profile_of(gpu, one) if _is_made(gpu, one, rules) else None
        if known is not None and nvidia.candidate_name(gpu, known[1], one.placement_start) == device.name:
            return replace(device, instance=one.gpu_instance, compute=one.compute_instance)
    return device
