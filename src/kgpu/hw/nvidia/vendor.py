"""NVIDIA: its names, its nodes, and how its driver is found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from kgpu.formats import names
from kgpu.formats.plugin_config import SharingKind
from kgpu.formats.simulated import state_file
from kgpu.hw import roots
from kgpu.hw.partitioning import GpuReset, Partitioner
from kgpu.hw.port import Reader
from kgpu.hw.vendor import Vendor

LOADER_CACHE: Final = "/etc/ld.so.cache"


def _missing(root: Path) -> list[str]:
    if roots.find_library(str(root)):
        return []
    if state_file(str(root)):  # a simulated machine has its own driver, or none of ours
        return roots.library_candidates(str(root))
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    candidates = [os.path.join(folder, roots.LIBRARY) for folder in folders]
    if any(os.path.isfile(path) for path in candidates):
        return []
    try:
        with open(LOADER_CACHE, "rb") as cache:
            if roots.LIBRARY.encode() in cache.read():
                return []
    except OSError:
        pass
    return [*roots.library_candidates(str(root)), *candidates, f"{roots.LIBRARY} in {LOADER_CACHE}"]


def _open(root: Path, deadline: float, poll: float) -> Reader:
    from kgpu.hw.nvidia.client import NvidiaReader

    return NvidiaReader(driver_root=root, deadline=deadline, poll=poll)


def _partitioner(root: Path, reset: GpuReset) -> Partitioner:
    from kgpu.hw.nvidia.partitioner import NvmlPartitioner

    return NvmlPartitioner(root, reset)


def partition_resource(profile: str) -> str:
    """``1g.10gb+me`` is ``nvidia.com/mig-1g.10gb.me``: '+' is not allowed in resource names."""
    return names.MIG_RESOURCE_PREFIX + profile.replace("+", ".")


VENDOR: Final = Vendor(
    name=names.NVIDIA,
    title="NVIDIA",
    domain=names.NVIDIA_DOMAIN,
    resource=names.GPU_RESOURCE,
    partition_resource=partition_resource,
    visible_devices=names.ENV_VISIBLE_DEVICES,
    cdi_vendor=names.CDI_PLUGIN_VENDOR,
    control_nodes=names.NVIDIA_CONTROL_NODES,
    left_out=names.NVIDIA_DISPLAY_BOARDS,
    pci_id=names.NVIDIA_PCI_ID,
    pci_labels=names.NFD_PCI_NVIDIA,
    resources=(f"{names.GPU_RESOURCE}*", f"{names.MIG_RESOURCE_PREFIX}*"),
    driver_root=names.DRIVER_INSTALL_DIR,
    sharing=frozenset(SharingKind),
    cdi_specs=True,
    computes=True,
    missing=_missing,
    open=_open,
    partitioner=_partitioner,
)
