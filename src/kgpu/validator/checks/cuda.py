"""The CUDA check: did a vector addition give the right sums on every device, and if not, what does that mean?

A device that others use exclusively, or whose memory is taken, does not count as broken: it is skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.formats.validation_report import CheckTrouble
from kgpu.hw.port import Accelerator, Inventory
from kgpu.validator.checks.driver import gpu_name
from kgpu.validator.cuda import CudaOutcome
from kgpu.validator.cuda_child import ELEMENTS
from kgpu.validator.model import Check, CheckResult, DeviceResult, Status, of_devices

PASSED: Final = "Test PASSED"
VECTOR: Final = f"[Vector addition of {ELEMENTS} elements]"
PROHIBITED, EXCLUSIVE = 2, (1, 3)
OUT_OF_MEMORY, UNAVAILABLE, NO_DEVICE = 2, 46, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaTarget:
    """Something that CUDA runs on: a GPU, or a MIG device of one."""

    uuid: str
    gpu: str
    name: str
    index: int | None = None


# CUresult -> what it means on a node, what to do
CODES: Final[Mapping[int, tuple[str, str]]] = {
    NO_DEVICE: (
        "CUDA does not see the device that NVML sees",
        "check that /dev/nvidia* are there and may be opened; reset the GPU or reboot the node",
    ),
    UNAVAILABLE: ("the GPU refuses new work", "reset the GPU (`nvidia-smi -r -i <gpu>`) or reboot the node"),
    3: ("CUDA does not start", "run `nvidia-modprobe -u -c=0` on the node: /dev/nvidia-uvm has to be there"),
    34: ("a stub library is in place of the driver's libcuda.so.1", "point the driver root at the installed driver"),
    214: ("the GPU has an uncorrectable memory error", "reset the GPU; if it comes again, have it replaced"),
    220: ("an NVLink has an uncorrectable error", "reset the GPU; if it comes again, check cables and NVSwitches"),
    700: ("a correct program was told that it used a wrong address", "reset the GPU; if it comes again, replace it"),
    702: ("the kernel did not end in the time that the driver allows", "reset the GPU or reboot the node"),
    714: ("the GPU's stack hardware failed", "reset the GPU; if it comes again, have it replaced"),
    715: ("the GPU met an instruction that it does not know", "reset the GPU; if it comes again, have it replaced"),
    719: ("the kernel failed on the GPU", "look for an Xid in the kernel log (`dmesg | grep Xid`); reset the GPU"),
    802: (
        "the system is not ready: the NVLink fabric is not up",
        "install and start nvidia-fabricmanager of exactly the driver's version",
    ),
    803: (
        "kernel module and libcuda are of different versions",
        "finish the driver's installation, or reboot so that module and libraries match",
    ),
    804: ("a compatibility libcuda is used on a GPU that has none", "remove the compat library from the driver root"),
    999: (
        "the driver does not say what failed",
        "look for `NVRM` and `Xid` in the kernel log (`dmesg`); reset the GPU",
    ),
}


def targets(inventory: Inventory) -> tuple[CudaTarget, ...]:
    """The devices to test: usable GPUs, and instead of those in MIG mode their MIG devices."""
    return tuple(_targets(inventory))


def _targets(inventory: Inventory) -> Iterator[CudaTarget]:
    for gpu in inventory.accelerators:
        if not gpu.usable:
            continue
        if not gpu.mig_enabled:
            yield CudaTarget(uuid=gpu.uuid, gpu=gpu.uuid, name=gpu_name(gpu), index=gpu.index)
        for part in gpu.partitions if gpu.mig_enabled else ():
            yield CudaTarget(uuid=part.uuid, gpu=gpu.uuid, name=f"MIG {part.index} ({part.profile})")


def judge(inventory: Inventory, known: Mapping[str, DeviceResult]) -> CheckResult:
    """Judge from results of devices by uuid; a target without one waits. The driver check reports unusable GPUs."""
    tried = targets(inventory)
    if not tried:
        return CheckResult(check=Check.CUDA, status=Status.WAITING, trouble=_nothing(inventory.accelerators))
    devices = tuple(known.get(target.uuid) or device(target, None) for target in tried)
    passed = sum(result.status is Status.PASSED for result in devices)
    evidence = f"{PASSED} on {passed} of {len(devices)} device{'s' if len(devices) != 1 else ''}"
    return of_devices(Check.CUDA, devices, evidence=(VECTOR, evidence) if passed else (evidence,))


def _nothing(gpus: tuple[Accelerator, ...]) -> CheckTrouble:
    if any(gpu.usable and gpu.mig_enabled for gpu in gpus):
        return CheckTrouble(
            what="every usable GPU is in MIG mode without slices",
            expected="at least one device that CUDA can use",
            remedy="apply a MIG configuration (label nvidia.com/mig.config), or switch MIG off",
        )
    return CheckTrouble(
        what="no GPU is usable", expected="at least one that the driver can use", remedy="see the driver check"
    )


def device(target: CudaTarget, outcome: CudaOutcome | None) -> DeviceResult:
    """The result of one run, WAITING for None."""
    if outcome is None:
        return _result(target, Status.WAITING, trouble=CheckTrouble(what="not tried yet"))
    if outcome.passed:
        cuda = f", CUDA {outcome.cuda[0]}.{outcome.cuda[1]}" if outcome.cuda else ""
        return _result(target, Status.PASSED, f"{PASSED} on {outcome.name}{cuda} in {outcome.seconds:.2f} s")
    where = f"{outcome.step} answered {outcome.code_name or 'error'} ({outcome.code})" if outcome.code else ""
    busy = _busy(outcome)
    if busy:
        return _result(target, Status.SKIPPED, busy, where)
    evidence = tuple(text for text in (where, outcome.text, *outcome.notes) if text)
    return DeviceResult(
        uuid=target.uuid, gpu=target.gpu, name=target.name, index=target.index, status=Status.FAILED,
        evidence=evidence, trouble=_trouble(outcome, where),
    )  # fmt: skip


def _result(target: CudaTarget, status: Status, *evidence: str, trouble: CheckTrouble | None = None) -> DeviceResult:
    return DeviceResult(
        uuid=target.uuid,
        gpu=target.gpu,
        name=target.name,
        index=target.index,
        status=status,
        evidence=tuple(text for text in evidence if text),
        trouble=trouble,
    )


def _busy(outcome: CudaOutcome) -> str:
    """Why the device could not be tested although nothing is wrong; "" if it could."""
    if outcome.code == UNAVAILABLE and outcome.compute_mode in EXCLUSIVE:
        return "not tried: another process uses it exclusively (compute mode Exclusive_Process)"
    if outcome.code == OUT_OF_MEMORY:
        return "not tried: programs that run on it have taken its memory"
    return ""


def _trouble(outcome: CudaOutcome, where: str) -> CheckTrouble:
    expected = "a vector addition with the right sums"
    if outcome.held or outcome.hung:
        held = "; the driver does not even let go of the process" if outcome.held else ""
        return CheckTrouble(
            what=f"{outcome.step_words} did not come back within {outcome.deadline:g} s{held}",
            expected=expected,
            remedy="look for `NVRM` and `Xid` in the kernel log (`dmesg`); reset the GPU or reboot the node",
        )
    if outcome.signal:
        return CheckTrouble(
            what=f"the driver killed the test in {outcome.step_words} ({outcome.signal})",
            expected=expected,
            remedy="check that kernel module and libraries are of one version and complete; look in `dmesg`",
        )
    if outcome.step == "compare":
        return CheckTrouble(
            what=f"the GPU computes wrong: {outcome.text}",
            expected=expected,
            remedy="take the GPU out of service, reset it and run a diagnosis; if it comes again, have it replaced",
        )
    if outcome.step == "load":
        return CheckTrouble(
            what=f"libcuda.so.1 can't be loaded: {outcome.text}",
            expected="the CUDA driver library of the installed driver",
            remedy="install the whole driver (on Debian and Ubuntu: the package libcuda1 or libnvidia-compute)",
        )
    if outcome.code == UNAVAILABLE and outcome.compute_mode == PROHIBITED:
        return CheckTrouble(
            what="its compute mode is Prohibited: CUDA is switched off on it",
            expected=expected,
            remedy="run `nvidia-smi -c 0` for this GPU on the node",
        )
    meaning, remedy = CODES.get(outcome.code, ("CUDA fails", "look for `NVRM` and `Xid` in the kernel log (`dmesg`)"))
    detail = f": {where}" if where else f": {outcome.text}" if outcome.text else f" in {outcome.step_words}"
    return CheckTrouble(what=f"{meaning}{detail}", expected=expected, remedy=remedy)
