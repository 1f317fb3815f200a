"""AMD: its names, its nodes, and how its driver is found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from kgpu.formats import names
from kgpu.hw import roots
from kgpu.hw.partitioning import ModeKernel, ModePartitioner
from kgpu.hw.port import Reader
from kgpu.hw.vendor import Cutting, Pairing, Vendor

DRIVERS: Final = "module/amdgpu/drivers"


def _missing(root: Path) -> list[str]:
    place = os.path.join(roots.sys_root(str(root)), DRIVERS)
    return [] if os.path.isdir(place) else [place]


def _open(root: Path, deadline: float, poll: float) -> Reader:
    from kgpu.hw.amd.client import AmdReader

    return AmdReader(driver_root=root, deadline=deadline, poll=poll)


def _modes(root: Path, kernel: ModeKernel) -> ModePartitioner:
    from kgpu.hw.amd.modes import AmdModes

    return AmdModes(root, kernel)


def partition_resource(mode: str) -> str:
    """``cpx_nps4`` is ``amd.com/cpx_nps4``."""
    return names.AMD_RESOURCE_PREFIX + mode.lower()


VENDOR: Final = Vendor(
    name=names.AMD,
    title="AMD",
    domain=names.AMD_DOMAIN,
    resource=names.AMD_GPU_RESOURCE,
    partition_resource=partition_resource,
    visible_devices="",
    cdi_vendor=names.CDI_PLUGIN_VENDOR_AMD,
    control_nodes=names.AMD_CONTROL_NODES,
    pci_id=names.AMD_PCI_ID,
    pci_labels=names.NFD_PCI_AMD,
    resources=(names.AMD_GPU_RESOURCE, f"{names.AMD_RESOURCE_PREFIX}*_nps*"),
    driver_root="/",
    cdi_specs=True,
    nodes_suffice=True,
    cutting=Cutting.BY_MODE,
    pairing=Pairing.WEIGHTS,
    missing=_missing,
    open=_open,
    health_socket=names.ROCM_HEALTH_SOCKET,
    modes=_modes,
)
