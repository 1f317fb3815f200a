"""What is offered of accelerators that their driver parts by modes (AMD), and under which names. Pure.

A GPU that is parted is offered by its parts alone: no program runs on more than one. With naming strategy ``single``
everything has the GPU's resource name, which promises equal devices: the most frequent mode is kept, and the rest left
out (the replaced program ends itself). With ``mixed`` each mode has a resource of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kgpu.base.advice import Advice, Severity
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import GpuUnit, slices_of
from kgpu.hw.port import Accelerator
from kgpu.hw.vendor import Cutting, vendor_of


def units_by_mode(gpus: Sequence[Accelerator], settings: PluginSettings, advice: list[Advice]) -> list[GpuUnit]:
    """The parts of parted GPUs, and the others whole."""
    units = [unit for gpu in gpus for unit in _units(gpu)]
    kinds = Counter(unit.mode for unit in units)
    if settings.naming_strategy == "mixed" or len(kinds) < 2 or _by_driver(units[0]):
        return units
    # The most frequent mode; among equals the one that comes first on the node.
    kept = max(kinds, key=lambda mode: kinds[mode])
    for mode, number in sorted(kinds.items()):
        if mode != kept:
            advice.append(
                Advice(
                    subject=vendor_of(units[0].vendor).resource,
                    what=f"{number} devices with partition mode {mode or 'none'} are not offered",
                    why="Partitions of different styles on one node are not supported with the naming strategy single,"
                    " which promises equal devices",
                    evidence=tuple(f"{count} of {name or 'none'}" for name, count in sorted(kinds.items())),
                    severity=Severity.ERROR,
                    remedy=f"part all GPUs as {kept or 'none'}, or choose the naming strategy mixed",
                    reason="ModesDiffer",
                )
            )
    return [unit for unit in units if unit.mode == kept]


def resource_by_mode(unit: GpuUnit, settings: PluginSettings) -> str:
    """The unit's resource: that of its mode with ``mixed``, if it can be parted at all."""
    vendor = vendor_of(unit.vendor)
    if _by_driver(unit):
        return vendor.partition_resource(unit.mode) if unit.mode else vendor.resource
    return (
        vendor.partition_resource(unit.mode) if settings.naming_strategy == "mixed" and unit.mode else vendor.resource
    )


def _by_driver(unit: GpuUnit) -> bool:
    return vendor_of(unit.vendor).cutting is Cutting.BY_DRIVER


def _units(gpu: Accelerator) -> list[GpuUnit]:
    whole = GpuUnit(
        uuid=gpu.uuid,
        index=str(gpu.index),
        gpu_uuid=gpu.uuid,
        gpu_index=gpu.index,
        vendor=gpu.vendor,
        model=gpu.name,
        mode=gpu.mode,
        numa_node=gpu.numa_node,
        device_nodes=gpu.device_nodes,
    )
    if not gpu.partitions:
        return [whole]
    return [replace(part, mode=part.profile, profile="") for part in slices_of(gpu)]
