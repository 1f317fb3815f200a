"""Small nodes for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kgpu.deviceplugin.config import PluginSettings
from kgpu.formats.plugin_config import DeviceSelection, SharedResource, Sharing, SharingKind
from kgpu.hw.fake_reader import sample_inventory, sample_partitions
from kgpu.hw.port import Accelerator, HardwareFinding, Problem

GPU = "nvidia.com/gpu"


def gpus(count: int = 8, **options: object) -> tuple[Accelerator, ...]:
    return sample_inventory(count, **options).accelerators


def with_mig(gpu: Accelerator, *layout: tuple[str, int]) -> Accelerator:
    """`with_mig(gpu, ("3g.40gb", 1), ("1g.10gb", 2))`"""
    parts = []
    for profile, count in layout:
        for part in sample_partitions(gpu, profile, count):
            position = len(parts)
            parts.append(
                replace(
                    part, index=f"{gpu.index}:{position}", gpu_instance=1 + position, uuid=f"{part.uuid}-{position}"
                )
            )
    return replace(gpu, mig_enabled=True, mig_pending=True, partitions=tuple(parts))


def broken(gpu: Accelerator, problem: Problem = Problem.LOST) -> Accelerator:
    found = HardwareFinding(subject=gpu.uuid, problem=problem, what="injected", expected="health", remedy="heal")
    return replace(gpu, findings=(found,))


def shared(*entries: SharedResource, kind: SharingKind = SharingKind.TIME_SLICING, **options: object) -> PluginSettings:
    sharing = Sharing(kind=kind, resources=entries, **options)
    return PluginSettings(sharing=sharing, mps_root="/run/nvidia/mps" if kind is SharingKind.MPS else "")


def entry(
    replicas: int, name: str = GPU, *, rename: str | None = None, refs: Sequence[str] = (), count: int | None = None
) -> SharedResource:
    devices = DeviceSelection(refs=tuple(refs), count=count)
    return SharedResource(name=name, replicas=replicas, rename=rename, devices=devices, where="sharing.entry")
