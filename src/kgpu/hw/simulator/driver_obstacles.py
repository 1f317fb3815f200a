"""What of a simulated machine keeps a driver's container from its end, in the words of the real ones. It only reads.

A real container finds its headers in the repositories of the system that its image is made for, the node's kernel takes
what is signed, and the module starts the GPUs that it knows. Here the machine's files say all of that: its release, the
lists of its packages, the variable of its firmware, and the devices on its bus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.formats.gpu_generations import GpuGeneration, generation_of
from kgpu.formats.os_release import parse_os_release
from kgpu.formats.support import parse

HEADERS, SIGN, LOAD = "headers", "sign", "load"
_NVIDIA: Final = "10de"
_GPUS: Final = ("0300", "0302")
_SECURE_BOOT: Final = "sys/firmware/efi/efivars/SecureBoot-*"
_ATTRIBUTES: Final = 4
"""Bytes before the value of a variable of the firmware."""
_OPEN, _CLOSED = "open", "proprietary"
_NO_GSP: Final = (
    "NVRM: installed in this system is not supported by open nvidia.ko because it does not include the required GPU "
    "System Processor (GSP)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDriver:
    """The driver in an image. ``precompiled``: its modules are built already, and the system's maker has signed them.

    ``module_type``: auto, open or proprietary. ``system`` is the one that the image is made for, "" if not known.
    """

    version: str
    precompiled: bool = False
    module_type: str = "auto"
    system: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverObstacle:
    """Where it ends, what the container says then, and what the machine's kernel has said."""

    phase: str
    words: str
    kernel: tuple[str, ...] = ()


def obstacle(machine: Path, wanted: ImageDriver, phase: str) -> DriverObstacle | None:
    """What is in the way in a phase, None for nothing. What can't be read is in nobody's way."""
    look = {HEADERS: _headers, SIGN: _signature, LOAD: _gpus}.get(phase)
    try:
        return look(machine, wanted) if look is not None else None
    except OSError:
        return None


def _headers(machine: Path, wanted: ImageDriver) -> DriverObstacle | None:
    kernel = _line(machine / "proc/sys/kernel/osrelease")
    lists = sorted((machine / "var/lib/apt/lists").glob("*_Packages"))
    if wanted.precompiled or not kernel:
        return None
    if not _is_strange(machine, wanted.system):
        if not lists or (machine / "lib/modules" / kernel / "build").exists():
            return None
        package = f"Package: linux-headers-{kernel}"
        if any(package in path.read_text(errors="replace").splitlines() for path in lists):
            return None
    words = f"E: Unable to locate package linux-headers-{kernel}\nCould not resolve Linux kernel version"
    return DriverObstacle(phase=HEADERS, words=words)


def _is_strange(machine: Path, system: str) -> bool:
    """Whether the machine runs another system than the image's, whose repositories do not have its kernel."""
    path = machine / "etc/os-release"
    release = parse_os_release(path.read_text(errors="replace")) if path.is_file() else {}
    name, version = release.get("ID", ""), release.get("VERSION_ID", "")
    return bool(system and name and version) and system not in (
        f"{name}{version}",
        f"{name}{version.partition('.')[0]}",
    )


def _signature(machine: Path, wanted: ImageDriver) -> DriverObstacle | None:
    if wanted.precompiled or not any(_is_on(path) for path in machine.glob(_SECURE_BOOT)):
        return None
    return DriverObstacle(
        phase=SIGN, words="modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
        kernel=("Loading of module with unavailable key is rejected",),
    )  # fmt: skip


def _is_on(variable: Path) -> bool:
    return variable.read_bytes()[_ATTRIBUTES:] == b"\1"


def _gpus(machine: Path, wanted: ImageDriver) -> DriverObstacle | None:
    branch = parse(wanted.version)[:1]
    for address, device in _cards(machine):
        row = generation_of(device)
        if row is None or not branch or not (why := _unfit(row, branch[0], wanted)):
            continue
        head = f"NVRM: The NVIDIA GPU {address} (PCI ID: {_NVIDIA}:{device})"
        words = "modprobe: ERROR: could not insert 'nvidia': No such device"
        return DriverObstacle(phase=LOAD, words=words, kernel=(head, *why))
    return None


def _unfit(row: GpuGeneration, branch: int, wanted: ImageDriver) -> tuple[str, ...]:
    """What the module says of a GPU that it does not drive, () for one that it does."""
    if branch < row.first or (row.last and branch > row.last):
        return (
            "NVRM: installed in this system is not supported by the",
            f"NVRM: NVIDIA {wanted.version} driver release.",
        )
    if wanted.module_type == _OPEN and not row.open_module:
        return (_NO_GSP,)
    if wanted.module_type == _CLOSED and not row.closed_module:
        return ("NVRM: installed in this system requires use of the NVIDIA open kernel modules.",)
    return ()


def _cards(machine: Path) -> Iterator[tuple[str, str]]:
    """Address and device id, in hex without 0x, of each GPU on the bus."""
    for function in sorted((machine / "sys/bus/pci/devices").iterdir()):
        vendor, device, kind = (_line(function / name).removeprefix("0x") for name in ("vendor", "device", "class"))
        if vendor == _NVIDIA and kind.startswith(_GPUS):
            yield function.name, device


def _line(path: Path) -> str:
    return path.read_text(errors="replace").strip() if path.is_file() else ""
