"""The features ``pci.device``, ``usb.device``, ``storage.block`` and ``network.*``: a node's devices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.discovery.features.host_tree import HostTree, files, folders, text
from kgpu.discovery.features.model import FeatureSet
from kgpu.host import pci

PCI_FIELDS: Final = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")
USB_FIELDS: Final = ("class", "vendor", "device", "serial")
_OPTIONAL: Final = ("sriov_totalvfs", "iommu_group/type", "iommu/intel-iommu/version")
_USB: Final = {"class": "bDeviceClass", "vendor": "idVendor", "device": "idProduct"}
_BLOCK: Final = ("dax", "rotational", "nr_zones", "zoned")
_NETWORK: Final = ("operstate", "speed", "mtu")
_SRIOV: Final = ("sriov_numvfs", "sriov_totalvfs")
_CLASS_PER_INTERFACE: Final = "00"


def pci_features(roots: Sequence[Path]) -> FeatureSet:
    """PCI devices of each root that has a bus of its own. Raises HostError for a bus that may not be entered."""
    found = [device for folder in pci_folders(roots) for device in _pci(folder)]
    return FeatureSet(instances={"pci.device": tuple(found)})


def pci_names(roots: Sequence[Path]) -> frozenset[str]:
    """The paths of all PCI functions, read cheaply: if they change, the features are read again."""
    try:
        buses = pci_folders(roots)
    except HostError:  # reported when the devices are read
        return frozenset()
    return frozenset(str(device) for bus in buses for device in folders(bus))


def pci_folders(roots: Sequence[Path]) -> list[Path]:
    """The PCI buses under the roots, each once. Raises HostError for one that may not be entered."""
    by_identity: dict[tuple[int, int], Path] = {}
    for root in roots:
        folder = root / pci.DEVICES
        try:
            seen = folder.stat()
        except PermissionError as error:
            raise HostError(
                f"{folder} can't be looked at: {error.strerror}",
                "a folder that user and group of this process may enter, with all above it",
                "let everybody enter it (chmod o+x), or give hostPaths.driverInstallDir another place",
            ) from error
        except OSError:
            continue
        by_identity.setdefault((seen.st_dev, seen.st_ino), folder)
    return list(by_identity.values())


def _pci(bus: Path) -> Iterator[Mapping[str, str]]:
    """Devices with a class and a vendor; simulated ones have no more."""
    try:
        functions = list(pci.functions(bus))
    except OSError:
        return
    for one in functions:
        if len(one.pci_class) < 4 or len(one.vendor) != 4:
            continue
        more = {name: one.hex(name) for name in PCI_FIELDS[2:]}
        fields = {"class": one.pci_class[:4], "vendor": one.vendor, **more, **dict(files(one.folder, _OPTIONAL))}
        yield {name: value for name, value in fields.items() if value}


def usb_features(host: HostTree) -> FeatureSet:
    """USB devices; one whose interfaces have classes of their own is there once for each."""
    return (
        FeatureSet(instances={"usb.device": tuple(_usb(host))}) if _has(host, "sys/bus/usb/devices") else FeatureSet()
    )


def _usb(host: HostTree) -> Iterator[Mapping[str, str]]:
    for folder in host.folders("sys/bus/usb/devices"):
        fields = {name: text(folder / file).lower() for name, file in _USB.items()}
        if not all(fields.values()):
            continue
        serial = text(folder / "serial")
        fields |= {"serial": serial} if serial else {}
        if fields["class"] != _CLASS_PER_INTERFACE:
            yield fields
            continue
        interfaces = [one for one in folders(folder) if one.name.startswith(f"{folder.name}:")]
        classes = {text(one / "bInterfaceClass").lower() for one in interfaces} - {""}
        yield from ({**fields, "class": found} for found in sorted(classes))


def storage_features(host: HostTree) -> FeatureSet:
    """Block devices."""
    if not _has(host, "sys/block"):
        return FeatureSet()
    found = [{"name": disk.name, **dict(files(disk / "queue", _BLOCK))} for disk in host.folders("sys/block")]
    return FeatureSet(instances={"storage.block": tuple(found)})


def network_features(host: HostTree) -> FeatureSet:
    """Network devices with hardware behind them, and virtual ones."""
    if not _has(host, "sys/class/net"):
        return FeatureSet()
    real, virtual = [], []
    for folder in host.folders("sys/class/net"):
        if folder.name == "bonding_masters":
            continue
        fields = {"name": folder.name, **dict(files(folder, _NETWORK))}
        if os.path.exists(folder / "device"):
            real.append({**fields, **dict(files(folder / "device", _SRIOV))})
        else:
            virtual.append(fields)
    return FeatureSet(instances={"network.device": tuple(real), "network.virtual": tuple(virtual)})


def _has(host: HostTree, name: str) -> bool:
    return os.path.isdir(host.root / name)
