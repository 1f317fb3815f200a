"""The driver check of vendors whose driver shows files: AMD, Gaudi, Intel.

What it proves: the driver answers about every device, the reader finds nothing wrong with it (for AMD that includes the
KFD, without which nothing computes), and the device nodes that a container would get are there. That a program computes
is not tried, and nothing is opened: a Gaudi has one user, who would be refused meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kgpu.base.errors import HwError
from kgpu.formats.names import INTEL_PCI_ID, NVIDIA
from kgpu.formats.validation_report import CheckTrouble
from kgpu.host import pci
from kgpu.host.root import DriverRoot
from kgpu.hw.open import NoHardwareError
from kgpu.hw.port import Accelerator, Inventory
from kgpu.hw.vendor import Vendor, vendors
from kgpu.validator.checks.driver import broken, gpu_name
from kgpu.validator.model import Check, CheckResult, DeviceResult, Status, failed, of_devices

_CLASSES: Final = ("03", "12")  # displays; processing accelerators
ANSWERS: Final = "the driver answers; that a program computes is not tested"


def skips(vendor: Vendor) -> dict[Check, str]:
    """The checks that mean nothing for a vendor, with reasons."""
    return {
        Check.TOOLKIT: "containers get device nodes alone, which the kubelet gives them",
        Check.CUDA: f"kgpu has no program that computes on {vendor.title}: {ANSWERS}",
    }


def look(root: DriverRoot, vendor: Vendor, inventory: Inventory | None) -> frozenset[str]:
    """The device nodes that containers need and that are there."""
    paths = {*vendor.control_nodes}
    for gpu in inventory.accelerators if inventory is not None else ():
        paths.update(gpu.device_nodes)
    return frozenset(path for path in paths if any(tree.resolve(path) is not None for tree in (root.dev, root.files)))


def by_bus(sys: str) -> Vendor | None:
    """Whose devices are on the PCI bus of a node where no driver has answered; None for NVIDIA's, and without any.

    The graphics in Intel's processors, which are on bus 0, count for nothing.
    """
    try:
        found = {
            device.vendor
            for device in pci.functions(Path(sys) / "bus/pci/devices")
            if device.pci_class[:2] in _CLASSES and not (device.vendor == INTEL_PCI_ID and ":00:" in device.address)
        }
    except OSError:
        return None
    rows = [vendor for vendor in vendors().values() if vendor.pci_id in found]
    return rows[0] if rows and rows[0].name != NVIDIA else None


def judge(vendor: Vendor, nodes: frozenset[str], inventory: Inventory | None, error: HwError | None) -> CheckResult:
    """Judge the driver. ``inventory`` is None if it could not be read, and ``error`` then says why."""
    if inventory is None:
        said = error is not None and not isinstance(error, NoHardwareError)
        return failed(Check.DRIVER, CheckTrouble.of(error) if error is not None and said else _silent(vendor))
    evidence = (
        f"driver {inventory.driver_version or 'of the kernel'}",
        f"{len(inventory.accelerators)} {vendor.title} devices",
        ANSWERS,
    )
    gone = [path for path in vendor.control_nodes if path not in nodes]
    if gone or not inventory.accelerators:
        trouble = _without(gone) if gone else _empty(vendor)
        return failed(Check.DRIVER, trouble, evidence=evidence)
    notes = tuple(finding.sentence for finding in inventory.findings)
    odd = tuple(_odd(inventory))
    return of_devices(
        Check.DRIVER,
        tuple(_device(gpu, nodes) for gpu in inventory.accelerators),
        evidence=evidence,
        notes=(*notes, *odd),
    )


def _odd(inventory: Inventory) -> Iterator[str]:
    for gpu in inventory.accelerators:
        if gpu.usable:
            yield from (f"{gpu_name(gpu)}: {finding.what}" for finding in gpu.findings)


def _device(gpu: Accelerator, nodes: frozenset[str]) -> DeviceResult:
    gone = [path for path in gpu.device_nodes if path not in nodes]
    trouble = broken(gpu) or (_without(gone) if gone else None)
    return DeviceResult(
        uuid=gpu.uuid,
        gpu=gpu.uuid,
        name=gpu_name(gpu),
        index=gpu.index,
        status=Status.FAILED if trouble else Status.PASSED,
        evidence=tuple(text for text in (gpu.pci_bus_id, gpu.mode) if text),
        trouble=trouble,
    )


def _without(paths: list[str]) -> CheckTrouble:
    return CheckTrouble(
        what=f"{', '.join(paths)} is not there",
        expected="the device nodes that a container gets",
        remedy="see that udev runs on the node and /dev is the host's; reload the driver",
    )


def _empty(vendor: Vendor) -> CheckTrouble:
    return CheckTrouble(
        what=f"the driver has no {vendor.title} device",
        expected="at least one",
        remedy=f"see `lspci -d {vendor.pci_id}:` and the driver's lines in dmesg",
    )


def _silent(vendor: Vendor) -> CheckTrouble:
    return CheckTrouble(
        what=f"the driver of the {vendor.title} devices on the PCI bus is not loaded",
        expected="its kernel modules",
        remedy="`kgpu doctor --host` on the node says what keeps it out",
    )
