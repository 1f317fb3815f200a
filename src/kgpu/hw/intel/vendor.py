"""Intel's GPUs: their names, their nodes, and how their drivers are found."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from kgpu.formats import names
from kgpu.formats.plugin_config import SharingKind
from kgpu.hw import roots
from kgpu.hw.port import Reader
from kgpu.hw.vendor import Cutting, Vendor

OTHERS: Final = frozenset({"0x10de", "0x1da3"})
"""Beside a card of these makers a processor's own graphics are not what a node is for, whether or not their driver has
come yet. AMD's is looked for before: it says by itself whether it computes.
"""


def _missing(root: Path) -> list[str]:
    sys = roots.sys_root(str(root))
    places = [os.path.join(sys, "bus/pci/drivers", driver) for driver in names.INTEL_DRIVERS]
    if any(_has_cards(place) for place in places) and not _beside_another(sys):
        return []
    return places


def _has_cards(place: str) -> bool:
    with contextlib.suppress(OSError):
        return any(":" in name for name in os.listdir(place))
    return False


def _beside_another(sys: str) -> bool:
    devices = os.path.join(sys, "bus/pci/devices")
    for name in os.listdir(devices)[:4096]:
        with contextlib.suppress(OSError), open(f"{devices}/{name}/vendor", "rb") as file:
            if file.read(8).decode("ascii", "replace").strip() in OTHERS and _computes(f"{devices}/{name}"):
                return True
    return False


def _computes(folder: str) -> bool:
    """Display controllers and processing accelerators."""
    with contextlib.suppress(OSError), open(f"{folder}/class", "rb") as file:
        return file.read(10)[:4] in (b"0x03", b"0x12")
    return False


def _open(root: Path, deadline: float, poll: float) -> Reader:
    from kgpu.hw.intel.client import IntelReader

    return IntelReader(driver_root=root, deadline=deadline, poll=poll)


def resource_of(driver: str) -> str:
    """``xe`` is ``gpu.intel.com/xe``."""
    return names.INTEL_RESOURCE_PREFIX + driver.lower()


VENDOR: Final = Vendor(
    name=names.INTEL,
    title="Intel",
    domain=names.INTEL_DOMAIN,
    resource=names.INTEL_GPU_RESOURCE,
    partition_resource=resource_of,
    visible_devices="",
    cdi_vendor=names.CDI_PLUGIN_VENDOR_INTEL,
    pci_id=names.INTEL_PCI_ID,
    pci_labels=names.NFD_PCI_INTEL,
    resources=tuple(f"{names.INTEL_RESOURCE_PREFIX}{driver}" for driver in names.INTEL_DRIVERS),
    driver_root="/",
    sharing=frozenset({SharingKind.TIME_SLICING}),
    cdi_specs=True,
    nodes_suffice=True,
    cutting=Cutting.BY_DRIVER,
    missing=_missing,
    open=_open,
)
