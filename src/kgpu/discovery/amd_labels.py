"""The labels of AMD's node labeller. Pure; loaded only on nodes with AMD GPUs.

What is counted has a plain key where all devices agree, and a key with the value in it and the number of devices as its
value: below ``beta.amd.com`` always, below ``amd.com`` where devices differ. Devices are GPUs, or parts of parted ones.
Unlike in the replaced program labels follow what changes, and those that hold no longer go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.printable import underscored
from kgpu.discovery.tables import LabelledNode, boolean
from kgpu.discovery.values import legal
from kgpu.formats.names import AMD_LABEL_PREFIX, BETA_AMD_LABEL_PREFIX
from kgpu.hw.port import Accelerator


@dataclass(frozen=True, slots=True)
class LabelledDevice:
    """One GPU, or one part of a parted one."""

    gpu: Accelerator
    memory_mib: int
    compute_units: int
    simds: int


def _product(device: LabelledDevice) -> str:
    return legal(underscored(device.gpu.name))


def _vram(device: LabelledDevice) -> str:
    return f"{round(device.memory_mib / 1024)}G" if device.memory_mib else ""


COUNTED: Final[tuple[tuple[str, Callable[[LabelledDevice], str]], ...]] = (
    ("family", lambda device: device.gpu.family),
    ("device-id", lambda device: f"{device.gpu.pci_device_id >> 16:04x}" if device.gpu.pci_device_id else ""),
    ("product-name", _product),
    ("vram", _vram),
    ("simd-count", lambda device: str(device.simds) if device.simds else ""),
    ("cu-count", lambda device: str(device.compute_units) if device.compute_units else ""),
)
DRIVER: Final[tuple[tuple[str, Callable[[LabelledNode], str]], ...]] = (
    ("driver-version", lambda view: legal(view.inventory.driver_version)),
    ("driver-src-version", lambda view: legal(view.inventory.library_version)),
)
"""Written without a value, too: the kernel's own amdgpu has no version."""
PLAIN: Final[tuple[tuple[str, Callable[[LabelledNode], str]], ...]] = (
    ("compute-memory-partition", lambda view: _only({gpu.mode for gpu in view.gpus})),
    ("compute-partitioning-supported", lambda view: boolean(any(gpu.mode for gpu in view.gpus))),
    ("memory-partitioning-supported", lambda view: boolean(any("_" in gpu.mode for gpu in view.gpus))),
)


def amd_labels(view: LabelledNode) -> Mapping[str, str]:
    """The node's labels; none without GPUs."""
    devices = [device for gpu in view.gpus for device in _devices(gpu)]
    labels = {f"{AMD_LABEL_PREFIX}{key}": value(view) for key, value in DRIVER}
    labels |= {f"{AMD_LABEL_PREFIX}{key}": text for key, value in PLAIN if (text := value(view))}
    for key, value in COUNTED:
        labels |= _counted(key, Counter(filter(None, map(value, devices))))
    labels |= _firmware(view, devices)
    return {key: text for key, text in labels.items() if not view.settings.leaves_out(key)}


def _firmware(view: LabelledNode, devices: list[LabelledDevice]) -> dict[str, str]:
    """Under ``beta`` alone, each version with the number of devices that have it."""
    versions = Counter(
        f"{name}.fw.{version}"
        for device in devices
        for name, version in view.facts.firmware.get(device.gpu.pci_bus_id, {}).items()
    )
    return {f"{BETA_AMD_LABEL_PREFIX}firmware.{key}": str(count) for key, count in versions.items()}


def _devices(gpu: Accelerator) -> list[LabelledDevice]:
    if not gpu.partitions:
        return [LabelledDevice(gpu, gpu.memory_mib or 0, gpu.compute_units, gpu.simds)]
    return [LabelledDevice(gpu, part.memory_mib, part.multiprocessors, gpu.part_simds) for part in gpu.partitions]


def _counted(key: str, found: Counter[str]) -> dict[str, str]:
    prefixes = (AMD_LABEL_PREFIX, BETA_AMD_LABEL_PREFIX)
    if len(found) == 1:
        ((value, count),) = found.items()
        return {**{prefix + key: value for prefix in prefixes}, f"{BETA_AMD_LABEL_PREFIX}{key}.{value}": str(count)}
    return {f"{prefix}{key}.{value}": str(count) for value, count in found.items() for prefix in prefixes}


def _only(values: set[str]) -> str:
    return values.pop() if len(values) == 1 else ""
