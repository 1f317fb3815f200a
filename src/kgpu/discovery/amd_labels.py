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

from kgpu.discovery.tables import LabelledNode, boolean
from kgpu.discovery.values import legal
from kgpu.formats.names import AMD_LABEL_PREFIX, BETA_AMD_LABEL_PREFIX
from kgpu.hw.port import Accelerator

# The first targets of a family, as gfx versions (major, minor, stepping); the last row at or below a GPU's names it.
FAMILIES: Final[tuple[tuple[tuple[int, int, int], str], ...]] = (
    ((6, 0, 0), "SI"),
    ((7, 0, 0), "CI"),
    ((8, 0, 0), "VI"),
    ((8, 0, 1), "CZ"),
    ((8, 0, 2), "VI"),
    ((9, 0, 0), "AI"),
    ((9, 0, 2), "RV"),
    ((9, 0, 4), "AI"),
    ((9, 0, 9), "RV"),
    ((9, 0, 10), "AI"),
    ((9, 0, 12), "RV"),
    ((9, 4, 0), "AI"),
    ((10, 1, 0), "NV"),
    ((10, 3, 3), "VGH"),
    ((10, 3, 4), "NV"),
    ((10, 3, 5), "YC"),
    ((10, 3, 6), "GC_10_3_6"),
    ((10, 3, 7), "GC_10_3_7"),
    ((11, 0, 0), "GC_11_0_0"),
    ((11, 0, 3), "GC_11_0_1"),
    ((11, 5, 0), "GC_11_5_0"),
    ((12, 0, 0), "GC_12_0_0"),
)


@dataclass(frozen=True, slots=True)
class LabelledDevice:
    """One GPU, or one part of a parted one."""

    gpu: Accelerator
    memory_mib: int
    compute_units: int
    simds: int


def family(target: int) -> str:
    """The family of a GPU by its gfx_target_version, "" for one of before."""
    version = (target // 10000, target // 100 % 100, target % 100)
    name = ""
    for start, found in FAMILIES:
        if start <= version:
            name = found
    return name


def _product(device: LabelledDevice) -> str:
    plain = device.gpu.name.replace("(", "").replace(")", "").replace(" ", "_")
    return legal(plain)


def _vram(device: LabelledDevice) -> str:
    return f"{round(device.memory_mib / 1024)}G" if device.memory_mib else ""


COUNTED: Final[tuple[tuple[str, Callable[[LabelledDevice], str]], ...]] = (
    ("family", lambda device: family(device.gpu.target)),
    ("device-id", lambda device: f"{device.gpu.pci_device_id >> 16:04x}" if device.gpu.pci_device_id else ""),
    ("product-name", _product),
    ("vram", _vram),
    ("simd-count", lambda device: str(device.simds) if device.simds else ""),
    ("cu-count", lambda device: str(device.compute_units) if device.compute_units else ""),
)
PLAIN: Final[tuple[tuple[str, Callable[[LabelledNode], str]], ...]] = (
    ("driver-version", lambda view: legal(view.inventory.driver_version)),
    ("driver-src-version", lambda view: legal(view.inventory.library_version)),
    ("compute-memory-partition", lambda view: _only({gpu.mode for gpu in view.gpus})),
    ("compute-partitioning-supported", lambda view: boolean(any(gpu.mode for gpu in view.gpus))),
    ("memory-partitioning-supported", lambda view: boolean(any("_" in gpu.mode for gpu in view.gpus))),
)


def amd_labels(view: LabelledNode) -> Mapping[str, str]:
    """The node's labels; none without GPUs."""
    devices = [device for gpu in view.gpus for device in _devices(gpu)]
    labels = {f"{AMD_LABEL_PREFIX}{key}": text for key, value in PLAIN if (text := value(view))}
    for key, value in COUNTED:
        labels |= _counted(key, Counter(filter(None, map(value, devices))))
    return labels


def _devices(gpu: Accelerator) -> list[LabelledDevice]:
    if not gpu.partitions:
        return [LabelledDevice(gpu, gpu.memory_mib or 0, gpu.compute_units, gpu.simds)]
    simds = gpu.simds // len(gpu.partitions)
    return [LabelledDevice(gpu, part.memory_mib, part.multiprocessors, simds) for part in gpu.partitions]


def _counted(key: str, found: Counter[str]) -> dict[str, str]:
    prefixes = (AMD_LABEL_PREFIX, BETA_AMD_LABEL_PREFIX)
    if len(found) == 1:
        ((value, count),) = found.items()
        return {**{prefix + key: value for prefix in prefixes}, f"{BETA_AMD_LABEL_PREFIX}{key}.{value}": str(count)}
    return {f"{prefix}{key}.{value}": str(count) for value, count in found.items() for prefix in prefixes}


def _only(values: set[str]) -> str:
    return values.pop() if len(values) == 1 else ""
