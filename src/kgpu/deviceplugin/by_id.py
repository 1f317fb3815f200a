"""What Intel's device plugin is told by flags: which devices to offer, by PCI ids, and into how many shares. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kgpu.base.advice import Advice, Severity
from kgpu.deviceplugin.config import PluginSettings
from kgpu.formats.plugin_config import SharedResource, Sharing, SharingKind
from kgpu.hw.port import Accelerator
from kgpu.hw.vendor import Cutting, vendor_of

WHERE = "--shared-dev-num"


def by_id(
    accelerators: Sequence[Accelerator], settings: PluginSettings, advice: list[Advice]
) -> tuple[Sequence[Accelerator], PluginSettings]:
    """The accelerators that are left, and the settings with the shares as a sharing block."""
    left = [gpu for gpu in accelerators if wanted(gpu, settings)]
    advice += [
        Advice(
            subject=gpu.uuid,
            what=f"GPU {gpu.index} is not offered",
            why=f"its PCI device id {_id(gpu)} is left out by --allow-ids or --deny-ids",
            evidence=(gpu.name,),
            reason="LeftOutById",
        )
        for gpu in accelerators
        if not wanted(gpu, settings)
    ]
    return left, settings if settings.shared_dev_num == 1 else _shared(left, settings, advice)


def wanted(gpu: Accelerator, settings: PluginSettings) -> bool:
    """Whether its PCI device id is one of those to offer."""
    return (not settings.allow_ids or _id(gpu) in settings.allow_ids) and _id(gpu) not in settings.deny_ids


def _id(gpu: Accelerator) -> str:
    return f"0x{gpu.pci_device_id >> 16:04x}"


def _shared(gpus: Sequence[Accelerator], settings: PluginSettings, advice: list[Advice]) -> PluginSettings:
    shareable = [gpu for gpu in gpus if vendor_of(gpu.vendor).cutting is Cutting.BY_DRIVER]
    if len(shareable) < len(gpus):
        advice.append(
            Advice(
                subject="",
                what=f"{WHERE} shares nothing",
                why=f"it is for Intel's GPUs, and these are of {vendor_of(gpus[0].vendor).title}",
                severity=Severity.WARNING,
                remedy="share by a sharing block in the config file, where the vendor's devices can be shared",
                reason="SharingImpossible",
            )
        )
    names = dict.fromkeys(vendor_of(gpu.vendor).partition_resource(gpu.mode) for gpu in shareable if gpu.mode)
    entries = tuple(SharedResource(name=name, replicas=settings.shared_dev_num, where=WHERE) for name in names)
    return replace(settings, sharing=Sharing(kind=SharingKind.TIME_SLICING, resources=entries) if entries else None)
