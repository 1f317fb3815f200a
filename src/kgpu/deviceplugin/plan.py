"""Turns accelerators and settings into resources: naming, MIG strategies, patterns, sharing. Pure.

Promises: the same input gives the same resources in the same order; whatever is left out is reported with its reason
and never affects the rest (an invalid MIG layout ends the replaced program).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kgpu.base.advice import Advice, Severity
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import (
    GpuUnit,
    PluginDevice,
    PluginResource,
    ResourcePlan,
    SharingRefusal,
    slices_of,
)
from kgpu.deviceplugin.shares import share
from kgpu.formats.plugin_config import NamePattern
from kgpu.hw.port import Accelerator
from kgpu.hw.vendor import Cutting, vendor_of


def plan(accelerators: Sequence[Accelerator], settings: PluginSettings) -> ResourcePlan:
    """What to offer for these accelerators."""
    advice: list[Advice] = []
    if settings.discovery_strategy == "tegra":
        advice.append(
            Advice(
                subject="",
                what="Only devices that the driver library shows are offered",
                why="the discovery strategy tegra is asked for, and integrated Tegra GPUs can't be discovered",
                severity=Severity.WARNING,
                remedy="choose auto or nvml",
                reason="DiscoveryUnsupported",
            )
        )
    if settings.allow_ids or settings.deny_ids or settings.shared_dev_num > 1:
        from kgpu.deviceplugin.by_id import by_id  # loaded only where that is asked for

        accelerators, settings = by_id(accelerators, settings, advice)
    watching: list[PluginResource] = []
    if settings.enable_monitoring:
        from kgpu.deviceplugin.monitors import monitors  # likewise

        watching = monitors(accelerators, settings, advice)
    units = _offered_units(accelerators, settings, advice)
    by_name: dict[str, list[GpuUnit]] = {}
    for unit in units:
        name = _resource_name(unit, settings, advice)
        if name:
            by_name.setdefault(name, []).append(unit)
    plain = [
        PluginResource(name=name, devices=tuple(PluginDevice(id=unit.uuid, unit=unit) for unit in members))
        for name, members in by_name.items()
    ]
    refused: list[SharingRefusal] = []
    mig = sorted(gpu.index for gpu in accelerators if gpu.mig_enabled)
    resources = [*share(plain, settings, advice, refused, mig=mig), *watching]
    advice += [refusal.advice for refusal in refused]
    if not resources:
        advice.append(
            Advice(
                subject="",
                what="No devices found; nothing is offered",
                why="no accelerator is left after the rules above" if accelerators else "the driver shows no device",
                severity=Severity.WARNING,
                remedy="devices are looked for all the time; nothing needs a restart",
                reason="NoDevices",
            )
        )
    offered = tuple(sorted(resources, key=lambda resource: resource.name))
    return ResourcePlan(resources=offered, advice=tuple(advice), refused=tuple(refused))


def whole_gpu(gpu: Accelerator) -> GpuUnit:
    """The unit of a whole accelerator."""
    return GpuUnit(
        uuid=gpu.uuid,
        index=str(gpu.index),
        gpu_uuid=gpu.uuid,
        gpu_index=gpu.index,
        vendor=gpu.vendor,
        model=gpu.name,
        numa_node=gpu.numa_node,
        compute_capability=gpu.compute_capability,
        minor=gpu.minor,
        module_id=gpu.module_id,
        device_nodes=gpu.device_nodes,
    )


def _offered_units(
    accelerators: Sequence[Accelerator], settings: PluginSettings, advice: list[Advice]
) -> list[GpuUnit]:
    computing = (gpu for gpu in accelerators if gpu.name not in vendor_of(gpu.vendor).left_out)
    gpus = sorted(computing, key=lambda gpu: (gpu.index, gpu.uuid))
    if gpus and vendor_of(gpus[0].vendor).cutting is not Cutting.BY_STRATEGY:
        from kgpu.deviceplugin.modes import units_by_mode  # loaded only where there are such GPUs

        return units_by_mode(gpus, settings, advice)
    if settings.mig_strategy == "none":
        return _units_none(gpus, advice)
    advice += [
        Advice(
            subject=gpu.uuid,
            what=f"GPU {gpu.index} is not offered",
            why=f"device {gpu.index} has no MIG devices configured",
            evidence=("MIG mode is on and no MIG device exists",),
            severity=Severity.WARNING,
            remedy="make MIG devices on it, or turn its MIG mode off",
            reason="MigEmpty",
        )
        for gpu in gpus
        if gpu.mig_enabled and not gpu.partitions
    ]
    if settings.mig_strategy == "mixed":
        return [unit for gpu in gpus for unit in (slices_of(gpu) if gpu.mig_enabled else [whole_gpu(gpu)])]
    return _units_single(gpus, advice)


def _units_none(gpus: Sequence[Accelerator], advice: list[Advice]) -> list[GpuUnit]:
    advice += [
        Advice(
            subject=gpu.uuid,
            what=f"GPU {gpu.index} is offered whole although its MIG mode is on",
            why="MIG strategy none does not look at MIG devices",
            evidence=(f"{len(gpu.partitions)} MIG devices exist on it",),
            severity=Severity.WARNING,
            remedy="choose MIG strategy single or mixed, or turn MIG mode off",
            reason="MigIgnored",
        )
        for gpu in gpus
        if gpu.mig_enabled
    ]
    return [whole_gpu(gpu) for gpu in gpus]


def _units_single(gpus: Sequence[Accelerator], advice: list[Advice]) -> list[GpuUnit]:
    """The units for strategy single, which promises equal devices: the most frequent kind is kept, the
    rest left out.
    """
    on = [gpu for gpu in gpus if gpu.mig_enabled]
    off = [gpu for gpu in gpus if not gpu.mig_enabled]
    if on and off:
        keep_slices = len(on) >= len(off)
        left_out = off if keep_slices else on
        evidence = (f"MIG mode is on for {len(on)} GPUs and off for {len(off)}",)
        advice += [
            Advice(
                subject=gpu.uuid,
                what=f"GPU {gpu.index} is not offered",
                why="all devices on the node must be configured with the same migEnabled value"
                " under MIG strategy single",
                evidence=evidence,
                severity=Severity.ERROR,
                remedy=f"turn MIG mode {'on' if keep_slices else 'off'} for it, or choose MIG strategy mixed",
                reason="MigInvalid",
            )
            for gpu in left_out
        ]
        on, off = (on, []) if keep_slices else ([], off)
    units = [unit for gpu in on for unit in slices_of(gpu)]
    counts = Counter(unit.profile for unit in units)
    if len(counts) > 1:
        # The most frequent profile; among equals the one that comes first on the node.
        kept = max(counts, key=lambda profile: counts[profile])
        for profile, number in sorted(counts.items()):
            if profile != kept:
                advice.append(
                    Advice(
                        subject=vendor_of(units[0].vendor).resource,
                        what=f"{number} MIG devices with profile {profile} are not offered",
                        why="more than one MIG device type present on node, and MIG strategy single promises one",
                        evidence=tuple(f"{count} of {name}" for name, count in sorted(counts.items())),
                        severity=Severity.ERROR,
                        remedy=f"make all MIG devices {kept}, or choose MIG strategy mixed",
                        reason="MigInvalid",
                    )
                )
        units = [unit for unit in units if unit.profile == kept]
    return units + [whole_gpu(gpu) for gpu in off]


def _first_match(rows: Sequence[NamePattern], text: str) -> str:
    return next((row.name for row in rows if row.matches(text)), "")


def _resource_name(unit: GpuUnit, settings: PluginSettings, advice: list[Advice]) -> str:
    """The name of the unit's resource before sharing; "" with advice if none fits."""
    vendor = vendor_of(unit.vendor)
    if vendor.cutting is not Cutting.BY_STRATEGY:
        from kgpu.deviceplugin.modes import resource_by_mode

        return _first_match(settings.gpus, unit.model) or resource_by_mode(unit, settings)
    if not unit.is_mig:
        return _first_match(settings.gpus, unit.model) or vendor.resource
    if named := _first_match(settings.mig, unit.profile):
        return named
    if settings.mig_strategy == "single":
        return vendor.resource
    # A compute instance smaller than its GPU instance ("1c.3g.20gb") shares the memory of its siblings.
    if "c." in unit.profile:
        advice.append(
            Advice(
                subject=unit.uuid,
                what=f"MIG device {unit.index} is not offered",
                why=f"MIG profile '{unit.profile}' does not match any resource patterns",
                evidence=("it is a compute instance that does not fill its GPU instance",),
                severity=Severity.WARNING,
                remedy="make one compute instance over the whole GPU instance, or name the profile in resources.mig",
                reason="MigNoResource",
            )
        )
        return ""
    return vendor.partition_resource(unit.profile)
