"""Intel Gaudi: its names, its nodes, what its containers are told, and how its driver is found."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kgpu.formats import names
from kgpu.hw import roots
from kgpu.hw.port import Reader
from kgpu.hw.vendor import GivenDevice, Vendor


def _missing(root: Path) -> list[str]:
    place = os.path.join(roots.sys_root(str(root)), "bus/pci/drivers", names.GAUDI_DRIVER)
    return [] if os.path.isdir(place) else [place]


def _open(root: Path, deadline: float, poll: float) -> Reader:
    from kgpu.hw.gaudi.client import GaudiReader

    return GaudiReader(driver_root=root, deadline=deadline, poll=poll)


def partition_resource(profile: str) -> str:
    """A Gaudi can't be cut; a name for what nothing offers."""
    return f"{names.GAUDI_RESOURCE}-{profile.lower()}"


def environment(devices: Sequence[GivenDevice], *, whole_node: bool) -> Mapping[str, str]:
    """What Gaudi's software reads: numbers, paths, serials (in a variable called UUID), and modules.

    The modules are named only where a container has not all of them, as the replaced program does.
    """
    paths = [path for device in devices for path in device.device_nodes if path.startswith("/dev/accel/accel")]
    found = {
        names.ENV_HABANA_VISIBLE_DEVICES: ",".join(str(device.minor) for device in devices),
        names.ENV_HL_VISIBLE_DEVICES: ",".join(path for path in paths if "control" not in path),
        names.ENV_HL_VISIBLE_DEVICES_UUID: ",".join(device.uuid for device in devices),
    }
    modules = [device.module_id for device in devices]
    if not whole_node and None not in modules:
        found[names.ENV_HABANA_VISIBLE_MODULES] = ",".join(map(str, modules))
    return found


VENDOR: Final = Vendor(
    name=names.GAUDI,
    title="Intel Gaudi",
    domain=names.GAUDI_DOMAIN,
    resource=names.GAUDI_RESOURCE,
    partition_resource=partition_resource,
    visible_devices=names.ENV_HABANA_VISIBLE_DEVICES,
    environment=environment,
    cdi_vendor=names.CDI_PLUGIN_VENDOR_GAUDI,
    pci_id=names.GAUDI_PCI_ID,
    pci_labels=names.NFD_PCI_GAUDI,
    driver_root="/",
    cdi_specs=True,
    nodes_suffice=True,
    host_files=(names.GAUDI_NETWORK_FILE,),
    missing=_missing,
    open=_open,
)
