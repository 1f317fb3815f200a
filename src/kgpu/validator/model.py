"""The validator's results: of checks, of single devices, and the whole report. Plain data.

A check fails as a whole only for problems of the node; a problem of one GPU fails that GPU alone, and the check is
``ready`` for the others.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from kgpu.formats.validation_report import CheckTrouble


class Check(enum.StrEnum):
    """The checks, in the order in which a node becomes ready; the values are the replaced program's components."""

    DRIVER = "driver"
    TOOLKIT = "toolkit"
    CUDA = "cuda"
    PLUGIN = "plugin"


class Status(enum.StrEnum):
    """The outcome of a check or a device. WAITING means not known yet, as something else has to come first."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """One device in one check. ``uuid`` is the GPU's or MIG device's, ``gpu`` the physical GPU's; ``name`` is for
    people. ``index`` is the driver's number of a GPU, None of others and in a report of an older kgpu.

    SKIPPED means that it could not be tested (others use it exclusively), but nothing suggests that it is broken.
    """

    uuid: str
    gpu: str
    name: str
    status: Status
    index: int | None = None
    evidence: tuple[str, ...] = ()
    trouble: CheckTrouble | None = None

    @property
    def good(self) -> bool:
        """True if nothing suggests that work on it would fail."""
        return self.status in {Status.PASSED, Status.SKIPPED}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check. ``trouble`` is the node's as a whole; devices have their own. ``notes`` are remarks. ``allocatable``
    is how many devices the plugin check has seen on the Node, None in others and in a report of an older kgpu.
    """

    check: Check
    status: Status
    evidence: tuple[str, ...] = ()
    trouble: CheckTrouble | None = None
    devices: tuple[DeviceResult, ...] = ()
    notes: tuple[str, ...] = ()
    allocatable: int | None = None

    @property
    def ready(self) -> bool:
        """True if other checks may build on it: passed, skipped, or at least one device is good."""
        if self.status in {Status.PASSED, Status.SKIPPED}:
            return True
        return self.trouble is None and any(device.good for device in self.devices)

    @property
    def failed_devices(self) -> tuple[DeviceResult, ...]:
        """The devices that failed."""
        return tuple(device for device in self.devices if device.status is Status.FAILED)

    def reason(self) -> str:
        """Why it has not passed, on one line; "" if it has."""
        if self.trouble is not None:
            return self.trouble.one_line()
        return "; ".join(
            f"{device.name}: {device.trouble.one_line()}" for device in self.failed_devices if device.trouble
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The driver's place for readers of ``driver-ready``, with the meaning of the replaced program's file.

    ``*_here`` are paths inside the container, the others on the host.
    """

    host_driver: bool = True
    driver: str = "/"
    driver_here: str = "/"
    dev: str = "/"
    dev_here: str = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeValidation:
    """Everything known about this node. ``boot`` is the kernel's boot ID: results do not outlive a boot.

    ``times`` is when each check last became good, in seconds since the epoch. ``asked_modules`` and ``loaded_modules``
    are kernel modules beside the driver's own (``kgpu.validator.modules``).
    """

    results: tuple[CheckResult, ...] = ()
    driver_version: str = ""
    boot: str = ""
    roots: Roots = field(default_factory=Roots)
    pci_devices: int = -1
    times: tuple[tuple[str, float], ...] = ()
    asked_modules: tuple[str, ...] = ()
    loaded_modules: tuple[str, ...] = ()

    def result(self, check: Check) -> CheckResult | None:
        """The check's result, None if it was not made."""
        return next((result for result in self.results if result.check is check), None)

    @property
    def passed(self) -> bool:
        """True if there was a check, and every one passed or was skipped."""
        return bool(self.results) and all(result.status in {Status.PASSED, Status.SKIPPED} for result in self.results)

    @property
    def nothing_checked(self) -> bool:
        """True if every check was skipped, so that nothing is known about this node."""
        return bool(self.results) and all(result.status is Status.SKIPPED for result in self.results)


def of_devices(
    check: Check, devices: tuple[DeviceResult, ...], *, evidence: tuple[str, ...] = (), notes: tuple[str, ...] = ()
) -> CheckResult:
    """The check's result from its devices' results."""
    failed = any(device.status is Status.FAILED for device in devices)
    waiting = any(device.status is Status.WAITING for device in devices)
    status = Status.FAILED if failed else Status.WAITING if waiting else Status.PASSED
    return CheckResult(check=check, status=status, evidence=evidence, devices=devices, notes=notes)


def failed(check: Check, trouble: CheckTrouble, *, evidence: tuple[str, ...] = ()) -> CheckResult:
    """The result of a check that the whole node fails."""
    return CheckResult(check=check, status=Status.FAILED, trouble=trouble, evidence=evidence)


def waiting(check: Check, trouble: CheckTrouble, *, evidence: tuple[str, ...] = ()) -> CheckResult:
    """The result of a check that has to wait for something."""
    return CheckResult(check=check, status=Status.WAITING, trouble=trouble, evidence=evidence)


def skipped(check: Check, why: str) -> CheckResult:
    """The result of a check that is skipped for a reason."""
    return CheckResult(check=check, status=Status.SKIPPED, evidence=(why,))
