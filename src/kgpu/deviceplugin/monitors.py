"""The resources of monitors on nodes with Intel's GPUs: a device that is every GPU, for programs that only look. Pure.

``single`` has one resource for all GPUs, ``split`` one for those of each driver. A GPU that can't be used is left out,
as no container starts with a device node that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from kgpu.base.advice import Advice, Severity
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import GpuUnit, PluginDevice, PluginResource
from kgpu.hw.port import Accelerator
from kgpu.hw.vendor import Cutting, vendor_of

ALL = "all"
"""The device's id for the kubelet, as with the replaced plugin."""
SUFFIX = "monitoring"


def monitors(
    accelerators: Sequence[Accelerator], settings: PluginSettings, advice: list[Advice]
) -> list[PluginResource]:
    """The resources that are asked for."""
    named = [gpu for gpu in accelerators if vendor_of(gpu.vendor).cutting is Cutting.BY_DRIVER]
    if accelerators and not named:
        advice.append(
            Advice(
                subject="",
                what="--enable-monitoring offers nothing",
                why=f"it is for Intel's GPUs, and these are of {vendor_of(accelerators[0].vendor).title}",
                severity=Severity.WARNING,
                remedy="take the flag out on such nodes",
                reason="MonitoringImpossible",
            )
        )
    return [
        PluginResource(
            name=vendor_of(unit.vendor).partition_resource(unit.uuid), devices=(PluginDevice(id=ALL, unit=unit),)
        )
        for unit in monitor_units(named, settings)
    ]


def monitor_units(accelerators: Sequence[Accelerator], settings: PluginSettings) -> list[GpuUnit]:
    """A unit for each resource, called as the resource is below the vendor's domain."""
    groups: dict[str, list[Accelerator]] = {}
    for gpu in accelerators:
        if gpu.usable and gpu.device_nodes and gpu.mode:
            name = SUFFIX if settings.monitoring_mode == "single" else f"{gpu.mode}_{SUFFIX}"
            groups.setdefault(name, []).append(gpu)
    return [
        GpuUnit(
            uuid=name, index=name, gpu_uuid="", gpu_index=-1, vendor=gpus[0].vendor, model=gpus[0].name,
            mode=gpus[0].mode, device_nodes=tuple(path for gpu in gpus for path in gpu.device_nodes),
        )
        for name, gpus in groups.items()
    ]  # fmt: skip
