"""NVIDIA's names: what its driver calls devices, attributes, capacities and counters. Pure.

Names and meanings are those of NVIDIA's DRA driver, because claims select by them. Where the driver can't tell a fact,
the attribute is absent. Published are a whole GPU as ``gpu-<minor>``, a slice as
``gpu-<minor>-mig-<profile>-<printed profile id>-<start>``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.quantity import Quantity
from kgpu.dra.model import DeviceAttribute, DraDevice
from kgpu.dra.values import amount_of, bytes_of, text_of, texts_of, versions_of
from kgpu.formats.mig_geometry import Geometry, InstanceProfile, find, geometry_of, memory_mib
from kgpu.formats.mig_profile import GPU_INSTANCE_KINDS, MigProfile, parse_mig_profile
from kgpu.formats.names import DRA_PCI_BUS_ID, DRA_PCIE_ROOT
from kgpu.hw.port import Accelerator, Inventory, Partition

_PROFILE_LENGTH: Final = 32
_SLICE: Final = "memory-slice-"

# From the words of images' requirements (``Accelerator.brand``).
_BRANDS: Final[Mapping[str, str]] = {
    "unknown": "Unknown", "quadro": "Quadro", "tesla": "Tesla", "nvs": "NVS", "grid": "Grid", "geforce": "GeForce",
    "titan": "Titan", "vapps": "NvidiaVApps", "vpc": "NvidiaVPC", "vcs": "NvidiaVCS", "vws": "NvidiaVWS",
    "cloudgaming": "NvidiaCloudGaming", "quadrortx": "QuadroRTX", "nvidiartx": "NvidiaRTX", "nvidia": "Nvidia",
    "geforcertx": "GeForceRTX", "titanrtx": "TitanRTX",
}  # fmt: skip
# The architecture from this compute capability on.
_ARCHITECTURES: Final = (
    ((3, 0), "Kepler"), ((5, 0), "Maxwell"), ((6, 0), "Pascal"), ((7, 0), "Volta"), ((7, 5), "Turing"),
    ((8, 0), "Ampere"), ((8, 9), "Ada Lovelace"), ((9, 0), "Hopper"), ((10, 0), "Blackwell"), ((11, 0), ""),
    ((12, 0), "Blackwell"), ((13, 0), ""),
)  # fmt: skip
# Capacity, counter, member of a partition, member of a profile of the geometry.
_ENGINES: Final = (
    ("multiprocessors", "multiprocessors", "multiprocessors", "sm"),
    ("copyEngines", "copy-engines", "copy_engines", "ce"),
    ("decoders", "decoders", "decoders", "dec"),
    ("encoders", "encoders", "encoders", "enc"),
    ("jpegEngines", "jpeg-engines", "jpeg_engines", "jpeg"),
    ("ofaEngines", "ofa-engines", "ofa_engines", "ofa"),
)


@dataclass(frozen=True, slots=True)
class GpuOfNode:
    """A GPU with the attributes that it and all its slices have."""

    gpu: Accelerator
    attributes: Mapping[str, DeviceAttribute]


def gpu_of_node(inventory: Inventory, gpu: Accelerator, pcie_root: str) -> GpuOfNode:
    """The GPU as it is published; ``pcie_root`` is the root complex that it is behind, "" if nobody knows."""
    texts = {
        "productName": gpu.name,
        "brand": _BRANDS.get(gpu.brand, ""),
        "architecture": architecture(gpu.compute_capability),
        "addressingMode": gpu.addressing_mode or ("ATS" if gpu.coherent else ""),
        DRA_PCI_BUS_ID: gpu.pci_bus_id,
        DRA_PCIE_ROOT: pcie_root,
    }
    versions = {
        "cudaComputeCapability": _dotted(gpu.compute_capability),
        "driverVersion": inventory.driver_version,
        "cudaDriverVersion": _dotted(inventory.cuda_version),
    }
    found = texts_of(texts)
    found |= versions_of(versions)
    return GpuOfNode(gpu, found)


def gpu_device(node: GpuOfNode) -> DraDevice:
    """A whole GPU."""
    gpu = node.gpu
    attributes = {
        "type": DeviceAttribute("gpu"),
        "uuid": text_of(gpu.uuid),
        **node.attributes,
    }
    capacity = {} if gpu.memory_mib is None else {"memory": bytes_of(gpu.memory_mib)}
    return DraDevice(name=f"gpu-{gpu.minor}", gpu=gpu.uuid, whole=True, attributes=attributes, capacity=capacity)


def partition_device(node: GpuOfNode, partition: Partition) -> DraDevice:
    """A MIG device that is there."""
    gpu = node.gpu
    counts = {capacity: getattr(partition, member) for capacity, _, member, _ in _ENGINES}
    start, size = partition.placement_start, partition.placement_size
    return DraDevice(
        name=_slice_name(gpu, partition),
        gpu=gpu.uuid,
        partition=partition.uuid,
        instance=partition.gpu_instance,
        compute=partition.compute_instance,
        start=start,
        size=size,
        attributes={"uuid": text_of(partition.uuid), **_of_slice(node, partition.profile)},
        capacity={
            **{name: amount_of(count) for name, count in counts.items()},
            "memory": bytes_of(partition.memory_mib),
            **{f"memorySlice{unit}": "1" for unit in range(start, start + size)},
        },
    )


def candidate_device(node: GpuOfNode, geometry: Geometry, row: InstanceProfile, start: int) -> DraDevice:
    """A MIG device that can be made: a profile at a place, with what it takes of the GPU's counters."""
    gpu = node.gpu
    memory = bytes_of(memory_mib(row, geometry, gpu.memory_mib or 0))
    return DraDevice(
        name=candidate_name(gpu, row, start),
        gpu=gpu.uuid,
        profile=row.enum,
        start=start,
        size=row.units,
        attributes=_of_slice(node, row.name),
        capacity={
            **{capacity: amount_of(getattr(row, member)) for capacity, _, _, member in _ENGINES},
            "memory": memory,
        },
        counter_set=counter_set_name(gpu),
        consumes=consumption(gpu, geometry, row, start),
    )


def candidate_name(gpu: Accelerator, row: InstanceProfile, start: int) -> str:
    """The device that is an instance of the profile at that place."""
    return f"gpu-{gpu.minor}-mig-{label_of(row.name)}-{row.id}-{start}"


def counter_set_name(gpu: Accelerator) -> str:
    """The GPU's counter set."""
    return f"gpu-{gpu.minor}-counter-set"


def consumption(gpu: Accelerator, geometry: Geometry, row: InstanceProfile, start: int) -> dict[str, str]:
    """What an instance of the profile at the place takes, by counter; nothing is left out."""
    taken = {counter: amount_of(getattr(row, member)) for _, counter, _, member in _ENGINES}
    taken = {counter: amount for counter, amount in taken.items() if amount != "0"}
    if memory := memory_mib(row, geometry, gpu.memory_mib or 0):
        taken["memory"] = bytes_of(memory)
    return {**taken, **{f"{_SLICE}{unit}": "1" for unit in range(start, start + row.units)}}


def counters(gpu: Accelerator, geometry: Geometry) -> dict[str, str]:
    """Everything that there is to share out: the most that any profile takes, and each memory slice."""
    most: dict[str, Quantity] = {}
    for row in geometry.rows:
        for counter, amount in consumption(gpu, geometry, row, 0).items():
            if not counter.startswith(_SLICE):
                most[counter] = max(most.get(counter, Quantity.of(0)), Quantity.parse(amount))
    slices = {f"{_SLICE}{unit}": "1" for unit in range(geometry.units)}
    return {**{name: str(amount) for name, amount in most.items()}, **slices}


def profile_of(gpu: Accelerator, partition: Partition) -> tuple[Geometry, InstanceProfile] | None:
    """The GPU's geometry and the profile in it of the partition's GPU instance; None where no table has it."""
    geometry, profile = geometry_of(gpu.name), _parsed(partition.profile)
    row = find(geometry, profile) if geometry is not None and profile is not None else None
    return None if geometry is None or row is None else (geometry, row)


def _slice_name(gpu: Accelerator, partition: Partition) -> str:
    """With the number of the compute instance where it is not all of its GPU instance: there are several then."""
    profile, known = _parsed(partition.profile), profile_of(gpu, partition)
    printed = known[1].id if known is not None else _kind(profile)
    part = "" if profile is None or profile.whole else f"-ci{partition.compute_instance}"
    return f"gpu-{gpu.minor}-mig-{label_of(partition.profile)}{part}-{printed}-{partition.placement_start}"


def _kind(profile: MigProfile | None) -> int:
    """NVML's number for the profile, where no table has the one that ``nvidia-smi`` prints."""
    if profile is None:
        return 0
    extras = (profile.attributes, profile.negative_attributes)
    kinds = GPU_INSTANCE_KINDS.items()
    return next((n for n, k in kinds if (k.slices, (k.attributes, k.negative_attributes)) == (profile.g, extras)), 0)


def label_of(profile: str) -> str:
    """A profile as part of a name: dots dropped, whatever else is no letter or digit a dash."""
    text = re.sub(r"[^a-z0-9]+", "-", profile.lower().replace(".", ""))[:_PROFILE_LENGTH].strip("-")
    return text or "unknown"


def _of_slice(node: GpuOfNode, profile: str) -> dict[str, DeviceAttribute]:
    return {
        "type": DeviceAttribute("mig"),
        "parentUUID": text_of(node.gpu.uuid),
        "profile": text_of(profile),
        **node.attributes,
    }


def architecture(capability: tuple[int, int] | None) -> str:
    """The architecture's name as NVIDIA's driver has it, "" where none is known."""
    found = ""
    for start, name in _ARCHITECTURES:
        if capability is not None and start <= capability:
            found = name
    return found


def _dotted(numbers: tuple[int, int] | None) -> str:
    return "" if numbers is None else ".".join(map(str, numbers))


def _parsed(profile: str) -> MigProfile | None:
    try:
        return parse_mig_profile(profile)
    except ConfigError:
        return None
