"""What the validator says: results of checks, of single devices, and the whole report. Plain data.

A check fails as a whole only for what concerns the node; what concerns one GPU fails that GPU alone, and the check is
``ready`` for the others.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from kgpu.base.errors import UserError


class Check(enum.StrEnum):
    """The checks, in the order in which a node becomes ready; values as the replaced program's components."""

    DRIVER = "driver"
    TOOLKIT = "toolkit"
    CUDA = "cuda"
    PLUGIN = "plugin"


class Status(enum.StrEnum):
    """How a check or a device came out. WAITING: not known yet, something else has to come first."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    WAITING = "waiting"


class CheckTrouble(msgspec.Struct, frozen=True, kw_only=True, rename={"remedy": "todo"}):
    """What failed, what was expected, what to do. ``problem`` is what the driver's reader calls it, "" for nothing."""

    what: str
    expected: str = ""
    remedy: str = ""
    problem: str = ""

    def one_line(self) -> str:
        """For conditions, Events and log lines."""
        parts = (
            self.what,
            f"expected {self.expected}" if self.expected else "",
            self.remedy and f"to do: {self.remedy}",
        )
        return " ".join("; ".join(part for part in parts if part).split())

    @classmethod
    def of(cls, error: UserError) -> CheckTrouble:
        """The same three parts."""
        return cls(what=error.what, expected=error.expected, remedy=error.remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """One device in one check. ``uuid`` is a GPU's or a MIG device's, ``gpu`` the physical GPU's; ``name`` for people.

    SKIPPED means that nothing says it is broken, but it could not be tried (others use it exclusively).
    """

    uuid: str
    gpu: str
    name: str
    status: Status
    evidence: tuple[str, ...] = ()
    trouble: CheckTrouble | None = None

    @property
    def good(self) -> bool:
        """True when nothing says that work on it would fail."""
        return self.status in {Status.PASSED, Status.SKIPPED}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check. ``trouble`` concerns the node as a whole; troubles of devices are theirs. ``notes`` are remarks."""

    check: Check
    status: Status
    evidence: tuple[str, ...] = ()
    trouble: CheckTrouble | None = None
    devices: tuple[DeviceResult, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """True when others may build on it: passed, skipped, or only some of the devices are not there yet."""
        if self.status in {Status.PASSED, Status.SKIPPED}:
            return True
        return self.trouble is None and any(device.good for device in self.devices)

    @property
    def failed_devices(self) -> tuple[DeviceResult, ...]:
        """Those that did not pass."""
        return tuple(device for device in self.devices if device.status is Status.FAILED)

    def reason(self) -> str:
        """Why it is not passed, on one line; "" when it is."""
        if self.trouble is not None:
            return self.trouble.one_line()
        return "; ".join(
            f"{device.name}: {device.trouble.one_line()}" for device in self.failed_devices if device.trouble
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where the driver is, for those who read ``driver-ready``; keys and meaning as the replaced program's file.

    ``*_here`` are paths inside a container, the others on the host.
    """

    host_driver: bool = True
    driver: str = "/"
    driver_here: str = "/"
    dev: str = "/"
    dev_here: str = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeValidation:
    """Everything known of this node. ``boot`` is the kernel's boot id: results do not outlive a boot.

    ``times`` are seconds since the epoch of each check's last success.
    """

    results: tuple[CheckResult, ...] = ()
    driver_version: str = ""
    boot: str = ""
    roots: Roots = field(default_factory=Roots)
    pci_devices: int = -1
    times: tuple[tuple[str, float], ...] = ()

    def result(self, check: Check) -> CheckResult | None:
        """The check's result, None when it was not made."""
        return next((result for result in self.results if result.check is check), None)

    @property
    def passed(self) -> bool:
        """True when every check that was made passed or had a reason to be skipped, and there was one."""
        return bool(self.results) and all(result.status in {Status.PASSED, Status.SKIPPED} for result in self.results)

    @property
    def nothing_checked(self) -> bool:
        """True when every check was left out, so that nothing is known of this node."""
        return bool(self.results) and all(result.status is Status.SKIPPED for result in self.results)


def of_devices(
    check: Check, devices: tuple[DeviceResult, ...], *, evidence: tuple[str, ...] = (), notes: tuple[str, ...] = ()
) -> CheckResult:
    """The check's result where only devices can fail."""
    failed = any(device.status is Status.FAILED for device in devices)
    waiting = any(device.status is Status.WAITING for device in devices)
    status = Status.FAILED if failed else Status.WAITING if waiting else Status.PASSED
    return CheckResult(check=check, status=status, evidence=evidence, devices=devices, notes=notes)


def failed(check: Check, trouble: CheckTrouble, *, evidence: tuple[str, ...] = ()) -> CheckResult:
    """A check that the whole node fails."""
    return CheckResult(check=check, status=Status.FAILED, trouble=trouble, evidence=evidence)


def waiting(check: Check, trouble: CheckTrouble, *, evidence: tuple[str, ...] = ()) -> CheckResult:
    """A check that something else has to come before."""
    return CheckResult(check=check, status=Status.WAITING, trouble=trouble, evidence=evidence)


def skipped(check: Check, why: str) -> CheckResult:
    """A check that there is a reason not to make."""
    return CheckResult(check=check, status=Status.SKIPPED, evidence=(why,))
