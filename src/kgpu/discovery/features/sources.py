"""Reads the facts from /sys, /proc and os-release below a root. What can't be read is left out.

With several roots, PCI devices are read from each that has its own PCI bus (the host's, and that of a simulated driver
root); everything else comes from the first. A container with only parts of the host's root has no ``/proc`` there, and
uses its own, which is the same kernel's.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.discovery.features.model import CpuFacts, FeatureFacts, PciFunction
from kgpu.formats.os_release import parse_os_release
from kgpu.host import pci

MAX_TEXT: Final = 1 << 20
_CPUS: Final = "sys/devices/system/cpu"
_OS_RELEASE: Final = ("etc/os-release", "usr/lib/os-release")
_KERNEL_CONFIGS: Final = (
    "usr/lib/modules/{0}/config", "usr/lib/ostree-boot/config-{0}", "boot/config-{0}",
)  # fmt: skip
_MAX_LINKS: Final = 8


def read_facts(roots: Sequence[Path]) -> FeatureFacts:
    """Read all facts, which takes tens of milliseconds. Raises HostError for a PCI bus that may not be entered."""
    root = roots[0]
    proc = proc_of(root)
    kernel = text(proc / "sys/kernel/osrelease")
    network = list(_folders(root / "sys/class/net"))
    return FeatureFacts(
        pci=tuple(device for folder in _pci_folders(roots) for device in _pci(folder)),
        kernel=kernel,
        kernel_options=_kernel_options(root, proc, kernel),
        selinux=text(root / "sys/fs/selinux/enforce").startswith("1"),
        os_release=_os_release(root),
        cpu=_cpu(root, proc),
        modules=frozenset(line.split(" ", 1)[0] for line in text(proc / "modules").splitlines()),
        numa_nodes=_count(text(root / "sys/devices/system/node/online")),
        swap=len(text(proc / "swaps").splitlines()) > 1,
        solid_state=any(text(disk / "queue/rotational") == "0" for disk in _folders(root / "sys/block")),
        sriov_capable=any(_number(folder / "device/sriov_totalvfs") > 0 for folder in network),
        sriov_configured=any(_number(folder / "device/sriov_numvfs") > 0 for folder in network),
    )


def proc_of(root: Path) -> Path:
    """The folder of the kernel's files: below the root, or this process's own for a root with sysfs but
    without /proc.
    """
    below = root / "proc"
    return below if below.exists() or not (root / "sys/devices").is_dir() else Path("/proc")


def pci_names(roots: Sequence[Path]) -> frozenset[str]:
    """The paths of all PCI functions, read cheaply: if they change, the facts are read again."""
    try:
        folders = _pci_folders(roots)
    except HostError:  # reported when the devices are read
        return frozenset()
    return frozenset(str(device) for folder in folders for device in _folders(folder))


def text(path: Path) -> str:
    """The file's text without surrounding white space, "" if it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TEXT).strip()
    except (OSError, ValueError):
        return ""


def parse_cpuinfo(content: str) -> dict[str, str]:
    """The lines of the first processor in ``/proc/cpuinfo``."""
    first = content.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _pci_folders(roots: Sequence[Path]) -> list[Path]:
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


def _pci(folder: Path) -> Iterator[PciFunction]:
    try:
        found = list(pci.functions(folder))
    except OSError:
        return
    for one in found:
        if len(one.pci_class) >= 4 and len(one.vendor) == 4:
            sriov = (one.number("sriov_totalvfs") or 0) > 0
            yield PciFunction(pci_class=one.pci_class[:4], vendor=one.vendor, sriov=sriov)


def _os_release(root: Path) -> dict[str, str]:
    return next((parse_os_release(found) for name in _OS_RELEASE if (found := _text_inside(root, name))), {})


def _text_inside(root: Path, name: str) -> str:
    """The text of a file below the root; an absolute link refers to the root's own tree."""
    path = root / name
    for _ in range(_MAX_LINKS):
        try:
            target = os.readlink(path)
        except OSError:
            return text(path)
        path = root / target.lstrip("/") if target.startswith("/") else path.parent / target
    return ""


def _cpu(root: Path, proc: Path) -> CpuFacts:
    info = parse_cpuinfo(text(proc / "cpuinfo"))
    pstate = root / _CPUS / "intel_pstate"
    status = text(pstate / "status")
    values = {"status": status, "turbo": {"0": "true", "1": "false"}.get(text(pstate / "no_turbo"), "")}
    if status == "active":
        governors = {text(folder / "cpufreq/scaling_governor") for folder in _cpu_folders(root)}
        values["scaling_governor"] = governors.pop() if len(governors) == 1 else ""
    cstates = text(root / "sys/module/intel_idle/parameters/max_cstate")
    idle = text(root / _CPUS / "cpuidle/current_driver") == "intel_idle"
    return CpuFacts(
        vendor=info.get("vendor_id", "") or info.get("CPU implementer", ""),
        family=info.get("cpu family", ""),
        model=info.get("model", ""),
        flags=frozenset((info.get("flags", "") or info.get("Features", "")).split()),
        multithreading=_multithreading(root),
        pstate={} if status in {"", "off"} else {name: value for name, value in values.items() if value},
        cstate=int(cstates) > 0 if idle and cstates.isdecimal() else None,
    )


def _multithreading(root: Path) -> bool | None:
    siblings = [text(one / "topology/thread_siblings_list") for one in _cpu_folders(root)]
    return any(_count(one) > 1 for one in siblings) if any(siblings) else None


def _cpu_folders(root: Path) -> list[Path]:
    return [one for one in _folders(root / _CPUS) if one.name.startswith("cpu") and one.name[3:].isdecimal()]


def _kernel_options(root: Path, proc: Path, kernel: str) -> frozenset[str]:
    """The names of kernel options that are built in or modules."""
    if not kernel or "/" in kernel:
        return frozenset()
    for path in (proc / "config.gz", *(root / name.format(kernel) for name in _KERNEL_CONFIGS)):
        content = _config_text(path)
        if content:
            pairs = (line.removeprefix("CONFIG_").partition("=") for line in content.splitlines())
            return frozenset(option for option, _, value in pairs if value in {"y", "m"})
    return frozenset()


def _config_text(path: Path) -> str:
    if path.suffix != ".gz":
        return text(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TEXT)
    except (OSError, EOFError, ValueError):
        return ""


def _folders(folder: Path) -> Iterable[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except OSError:
        return []


def _number(path: Path) -> int:
    found = text(path)
    return int(found) if found.isdecimal() else 0


def _count(ranges: str) -> int:
    """How many numbers a list such as ``0-3,8`` has; 0 for invalid lists."""
    total = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return 0
        total += int(last or first) - int(first) + 1
    return total
