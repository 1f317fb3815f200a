"""Small pieces for this folder's tests: GPUs, facts, results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kgpu.formats.validation_report import CheckTrouble
from kgpu.hw.fake_reader import sample_inventory, sample_partitions
from kgpu.hw.port import Inventory
from kgpu.validator.look import LIBRARIES, CdiFacts, CdiName, DriverFacts, PciGpu
from kgpu.validator.model import Check, CheckResult, DeviceResult, Status, of_devices


def inventory(count: int = 2, *, mig: int = 0) -> Inventory:
    """``mig`` slices on GPU 0."""
    found = sample_inventory(count)
    if not mig:
        return found
    first = found.accelerators[0]
    sliced = replace(first, mig_enabled=True, mig_pending=True, partitions=sample_partitions(first, count=mig))
    return replace(found, accelerators=(sliced, *found.accelerators[1:]))


def driver_facts(found: Inventory, **changes: Any) -> DriverFacts:
    """A whole driver for these GPUs."""
    facts = DriverFacts(
        root="/driver",
        libraries={name: f"/usr/lib64/{name}" for name in LIBRARIES},
        searched=("/usr/lib64", "/lib64"),
        smi="/usr/bin/nvidia-smi",
        smi_searched=("/usr/bin",),
        nodes=frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{g.minor}" for g in found.accelerators)}),
        module=found.driver_version,
        pci=tuple(PciGpu(address=gpu.pci_bus_id, driver="nvidia") for gpu in found.accelerators),
    )
    return replace(facts, **changes)


def specs(found: Inventory, **changes: Any) -> CdiFacts:
    """A spec that has every device by its index."""
    names = {f"nvidia.com/gpu={gpu.index}": CdiName(file="/cdi/a.json") for gpu in found.accelerators}
    names |= {
        f"nvidia.com/gpu={part.index}": CdiName(file="/cdi/a.json")
        for gpu in found.accelerators
        for part in gpu.partitions
    }
    return replace(CdiFacts(folders=("/etc/cdi", "/var/run/cdi"), names=names), **changes)


def device(uuid: str, status: Status = Status.PASSED, what: str = "it is broken", gpu: str = "") -> DeviceResult:
    trouble = CheckTrouble(what=what, expected="health", remedy="heal it") if status is Status.FAILED else None
    return DeviceResult(uuid=uuid, gpu=gpu or uuid, name=f"GPU {uuid}", status=status, trouble=trouble)


def passed(check: Check) -> CheckResult:
    return CheckResult(check=check, status=Status.PASSED, evidence=(f"{check} is well",))


def cuda(*devices: DeviceResult) -> CheckResult:
    return of_devices(Check.CUDA, devices)
