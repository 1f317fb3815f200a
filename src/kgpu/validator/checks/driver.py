"""The driver check: do the driver's files and device nodes exist, and does the driver enumerate every GPU on the PCI
bus?

Causes are checked in the order in which one hides the next: another driver, libraries, NVML, device nodes, no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import HwError
from kgpu.formats import names
from kgpu.formats.validation_report import CheckTrouble
from kgpu.hw.port import Accelerator, Inventory
from kgpu.validator.look import DriverFacts
from kgpu.validator.model import Check, CheckResult, DeviceResult, Status, failed, of_devices
from kgpu.validator.modules import missing_modules

CTL, UVM = names.NVIDIA_CONTROL_NODES[:2]


@dataclass(frozen=True, slots=True)
class DriverCause:
    """A possible cause that keeps the whole driver from working; ``find`` returns its trouble, None if it is another
    one.
    """

    name: str
    find: Callable[[DriverFacts, Inventory | None, HwError | None], CheckTrouble | None]


def judge(facts: DriverFacts, inventory: Inventory | None, error: HwError | None) -> CheckResult:
    """Judge the driver. ``inventory`` is None if it could not be read, and ``error`` then says why."""
    evidence = tuple(_evidence(facts, inventory))
    for cause in CAUSES:
        trouble = cause.find(facts, inventory, error)
        if trouble is not None:
            return failed(Check.DRIVER, trouble, evidence=evidence)
    assert inventory is not None, "the last cause is that there is none"
    devices = (*(_device(gpu, facts) for gpu in inventory.accelerators), *_not_enumerated(facts, inventory))
    return of_devices(Check.DRIVER, devices, evidence=evidence, notes=tuple(_notes(facts, inventory)))


def gpu_name(gpu: Accelerator) -> str:
    """The name of a GPU in results."""
    return f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"


def _evidence(facts: DriverFacts, inventory: Inventory | None) -> Iterator[str]:
    yield f"driver root {facts.root}"
    for name, path in facts.libraries.items():
        yield f"{name}: {path or 'not found'}"
    if inventory is not None:
        cuda = f", CUDA {inventory.cuda_version[0]}.{inventory.cuda_version[1]}" if inventory.cuda_version else ""
        yield f"driver {inventory.driver_version or 'of unknown version'}{cuda}"
        on_bus = "" if facts.pci is None else f", {len(facts.pci)} on the PCI bus"
        yield f"{len(inventory.accelerators)} GPUs enumerated{on_bus}"
    elif facts.module:
        yield f"kernel module {facts.module}"


def _notes(facts: DriverFacts, inventory: Inventory) -> Iterator[str]:
    yield from (finding.sentence for finding in inventory.findings)
    if not facts.smi:
        yield f"nvidia-smi is in none of {_some(facts.smi_searched)}; containers will not have it"
    yield from (trouble.one_line() for trouble in missing_modules(facts.asked, facts.loaded).values())
    for gpu in inventory.accelerators:
        if gpu.mig_pending != gpu.mig_enabled and gpu.mig_capable:
            yield f"{gpu_name(gpu)}: MIG is to be {'on' if gpu.mig_pending else 'off'} after the next GPU reset"
        elif gpu.mig_enabled and not gpu.partitions:
            yield f"{gpu_name(gpu)} is in MIG mode without slices: it offers nothing. Apply a MIG configuration to it"
        yield from (f"{gpu_name(gpu)}: {finding.what}" for finding in gpu.findings if gpu.usable)


def _device(gpu: Accelerator, facts: DriverFacts) -> DeviceResult:
    trouble = broken(gpu) or _without_node(gpu, facts)
    slices = f"{len(gpu.partitions)} MIG devices" if gpu.mig_enabled else ""
    return DeviceResult(
        uuid=gpu.uuid,
        gpu=gpu.uuid,
        name=gpu_name(gpu),
        index=gpu.index,
        status=Status.FAILED if trouble else Status.PASSED,
        evidence=tuple(text for text in (gpu.pci_bus_id, slices) if text),
        trouble=trouble,
    )


def broken(gpu: Accelerator) -> CheckTrouble | None:
    """What the reader has found that keeps work off a GPU."""
    if gpu.usable:
        return None
    finding = gpu.findings[0]
    return CheckTrouble(what=finding.what, expected=finding.expected, remedy=finding.remedy, problem=finding.problem)


def _without_node(gpu: Accelerator, facts: DriverFacts) -> CheckTrouble | None:
    missing = [path for path in gpu.device_nodes if path == f"/dev/nvidia{gpu.minor}" and path not in facts.nodes]
    if not missing:
        return None
    return CheckTrouble(
        what=f"{', '.join(missing)} is not there",
        expected="the device node of every GPU",
        remedy="run `nvidia-modprobe -c " + str(gpu.minor) + "` on the node",
    )


def _not_enumerated(facts: DriverFacts, inventory: Inventory) -> Iterator[DeviceResult]:
    known = {gpu.pci_bus_id for gpu in inventory.accelerators}
    for gpu in facts.pci or ():
        if gpu.address in known or (gpu.driver and gpu.driver != "nvidia" and known):
            continue  # another driver has it on purpose, e.g. vfio-pci for a virtual machine
        yield DeviceResult(
            uuid=f"pci:{gpu.address}",
            gpu=f"pci:{gpu.address}",
            name=f"GPU at {gpu.address}",
            status=Status.FAILED,
            trouble=CheckTrouble(
                what="it is on the PCI bus, but the driver does not have it",
                expected="every NVIDIA GPU of the bus among those that the driver enumerates",
                remedy="look for `NVRM` in the kernel log (`dmesg`): firmware, power or a fault of the GPU; "
                "then reboot",
            ),
        )


def _held_by_another(facts: DriverFacts, inventory: Inventory | None, _error: HwError | None) -> CheckTrouble | None:
    drivers = {gpu.driver for gpu in facts.pci or ()}
    if inventory is not None and inventory.accelerators:
        return None
    if "nouveau" in drivers or "nova_core" in drivers:
        return CheckTrouble(
            what="the GPUs are held by the kernel's nouveau driver",
            expected="GPUs bound to the nvidia driver",
            remedy="blacklist nouveau (`options nouveau modeset=0` and `blacklist nouveau` in /etc/modprobe.d), "
            "rebuild the initramfs and reboot",
        )
    if drivers and all(name in {"vfio-pci", "nvgrace_gpu_vfio_pci"} for name in drivers):
        return CheckTrouble(
            what="every GPU is bound to vfio-pci, for virtual machines",
            expected="GPUs bound to the nvidia driver on a node for containers",
            remedy="label the node nvidia.com/gpu.workload.config=container, or leave it to virtual machines",
        )
    return None


def _some(folders: Sequence[str]) -> str:
    """The first few folders: conditions and Events are truncated, and the remedy comes last."""
    rest = len(folders) - 5
    return ", ".join(folders[:5]) + (f" and {rest} more folders" if rest > 0 else "")


def _no_library(facts: DriverFacts, _inventory: Inventory | None, error: HwError | None) -> CheckTrouble | None:
    missing = [name for name, path in facts.libraries.items() if not path]
    if not missing:
        return None
    module = (
        f"the kernel module {facts.module} is loaded, but its libraries are not where they were looked for: "
        "point the driver root at the folder where the driver is installed or mounted"
        if facts.module
        else "install the NVIDIA driver on the node, or let the operator do it (driver.enabled=true)"
    )
    detail = f" ({error.what})" if error is not None and not any(facts.libraries.values()) and facts.module else ""
    return CheckTrouble(
        what=f"{' and '.join(missing)} not found under {facts.root}{detail}",
        expected=f"in one of {_some(facts.searched)}",
        remedy=module,
    )


def _unreadable(facts: DriverFacts, inventory: Inventory | None, error: HwError | None) -> CheckTrouble | None:
    if inventory is not None:
        return None
    if error is not None:
        return CheckTrouble.of(error)
    return CheckTrouble(what=f"the driver under {facts.root} can't be read", expected="an answer from NVML")


def _no_node(facts: DriverFacts, _inventory: Inventory | None, _error: HwError | None) -> CheckTrouble | None:
    rows = (
        (CTL, "the driver's control device, without which nothing works", "run `nvidia-modprobe` on the node"),
        (UVM, "the device without which CUDA does not start", "run `nvidia-modprobe -u -c=0` on the node"),
    )
    for path, expected, remedy in rows:
        if path not in facts.nodes:
            return CheckTrouble(what=f"{path} is not there", expected=expected, remedy=remedy)
    return None


def _no_gpu(facts: DriverFacts, inventory: Inventory | None, _error: HwError | None) -> CheckTrouble | None:
    if inventory is None or inventory.accelerators:
        return None
    on_bus = len(facts.pci or ())
    return CheckTrouble(
        what="the driver has no GPU" + (f", although {on_bus} are on the PCI bus" if on_bus else ""),
        expected="at least one GPU",
        remedy="look for `NVRM` in the kernel log (`dmesg`); a GPU can be too old or too new for this driver"
        if on_bus
        else "is this a GPU node? See `lspci -d 10de:`",
    )


CAUSES: Final = (
    DriverCause("held by another driver", _held_by_another),
    DriverCause("no libraries", _no_library),
    DriverCause("no driver", _unreadable),
    DriverCause("no nodes", _no_node),
    DriverCause("no GPU", _no_gpu),
)
