"""Inventories of every simulated model, with and without slices, as the readers give them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from kgpu.dra.api import API_VERSIONS, DraApi
from kgpu.dra.slices import PoolOwner
from kgpu.formats.mig_geometry import Geometry, InstanceProfile, geometry_of, memory_mib, placements
from kgpu.formats.names import AMD, GAUDI, NVIDIA
from kgpu.hw.fake_reader import sample_inventory
from kgpu.hw.port import Accelerator, Inventory, Partition
from kgpu.hw.simulator import profiles

NODE = "gpu-1"
OWNER = PoolOwner(name=NODE, uid="6f6c7f0e-6a3c-4f6a-9f1e-2f1d3c4b5a69")
APIS = tuple(DraApi(version=version, kubernetes=kubernetes) for version in API_VERSIONS for kubernetes in ((1, 34), (1, 35)))  # fmt: skip
H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"


def h100(count: int = 1) -> Inventory:
    return sample_inventory(count)


def a100(count: int = 1) -> Inventory:
    return sample_inventory(count, name=A100, memory_mib=81920, compute_capability=(8, 0))


@functools.cache
def models() -> dict[str, Inventory]:
    """A node with one GPU of each model that the simulator has, by the model's name."""
    found = {}
    for name in profiles.names():
        for gpu in profiles.load(name).gpus:
            model = gpu.model
            major, minor = map(int, model.compute_capability.split("."))
            inventory = sample_inventory(
                1, name=model.name, memory_mib=model.memory.total_mib, compute_capability=(major, minor)
            )
            capable = replace(inventory.accelerators[0], mig_capable=bool(model.mig), brand="tesla")
            found[model.name] = replace(inventory, accelerators=(capable,), driver_version="580.95.05")
    return found


def many(inventory: Inventory, count: int) -> Inventory:
    """The node with so many of its first GPU."""
    first = inventory.accelerators[0]
    gpus = tuple(
        replace(first, index=index, minor=index, uuid=f"{first.uuid[:-2]}{index:02x}", pci_bus_id=f"0000:{index:02x}:00.0")
        for index in range(count)
    )  # fmt: skip
    return replace(inventory, accelerators=gpus)


def partition(
    gpu: Accelerator, row: InstanceProfile, start: int, instance: int, *, compute: int = 0, name: str = ""
) -> Partition:
    geometry = geometry_of(gpu.name)
    assert geometry is not None
    return Partition(
        uuid=f"MIG-{gpu.uuid[4:]}-{instance}-{compute}", index=f"{gpu.index}:{instance}", parent_uuid=gpu.uuid,
        profile=name or row.name, gpu_instance=instance, compute_instance=compute, placement_start=start,
        placement_size=row.units, memory_mib=memory_mib(row, geometry, gpu.memory_mib or 0), multiprocessors=row.sm,
        slices_gi=row.slices, slices_ci=row.slices, copy_engines=row.ce, decoders=row.dec, encoders=row.enc,
        jpeg_engines=row.jpeg, ofa_engines=row.ofa,
    )  # fmt: skip


def cut(gpu: Accelerator, rows: Sequence[InstanceProfile]) -> Accelerator:
    """The GPU with slices of these profiles, wherever they fit."""
    geometry = geometry_of(gpu.name)
    assert geometry is not None
    starts = placements(geometry, rows)
    assert starts is not None
    parts = tuple(partition(gpu, row, at, 1 + n) for n, (row, at) in enumerate(zip(rows, starts, strict=True)))
    return replace(gpu, mig_enabled=True, mig_pending=True, partitions=parts)


def named(geometry: Geometry, name: str) -> InstanceProfile:
    return next(row for row in geometry.rows if row.name == name)


def node_of(*gpus: Accelerator, inventory: Inventory | None = None) -> Inventory:
    return replace(inventory or h100(), vendor=NVIDIA, accelerators=gpus)


def mi300x(count: int = 2, *, parts: int = 0) -> Inventory:
    """A node of AMD's, whose GPUs are whole or in so many parts."""
    gpus = tuple(_mi300x(index, parts) for index in range(count))
    return Inventory(vendor=AMD, driver_version="6.10.5", library_version="0C1A2B", accelerators=gpus)


def _mi300x(index: int, parts: int) -> Accelerator:
    bus, own = f"0000:{5 + index:02x}:00.0", index * 8
    partitions = tuple(
        Partition(
            uuid=bus if position == 0 else f"amdgpu_xcp_{own + position}", index=f"{index}:{position}",
            parent_uuid=bus, profile="dpx_nps1", gpu_instance=position, compute_instance=0,
            placement_start=position, placement_size=1, memory_mib=196592 // parts, multiprocessors=304 // parts,
            device_nodes=_drm(own + position),
        )
        for position in range(parts)
    )  # fmt: skip
    return Accelerator(
        vendor=AMD, index=index, uuid=bus, name="AMD Instinct MI300X OAM", minor=own, pci_bus_id=bus,
        pci_device_id=0x74A11002, numa_node=0, memory_mib=196592, mode="dpx_nps1" if parts else "spx_nps1",
        compute_units=304, simds=1216, target=90402, family="AI", partitions=partitions, device_nodes=_drm(own),
    )  # fmt: skip


def _drm(number: int) -> tuple[str, str]:
    return f"/dev/dri/card{number}", f"/dev/dri/renderD{128 + number}"


def gaudi(count: int = 2) -> Inventory:
    """A node of Gaudi 3."""
    cards = tuple(
        Accelerator(
            vendor=GAUDI, index=index, uuid=f"AN0000{index}", serial=f"AN0000{index}", name="Intel Gaudi 3",
            minor=index, pci_bus_id=f"0000:{0x19 + index:02x}:00.0", pci_device_id=0x10601DA3, memory_mib=131072,
            module_id=index, device_nodes=(
                f"/dev/accel/accel{index}", f"/dev/accel/accel_controlD{index}", f"/dev/infiniband/uverbs{index}",
            ),
        )
        for index in range(count)
    )  # fmt: skip
    return Inventory(vendor=GAUDI, driver_version="1.23.0-695", accelerators=cards)
