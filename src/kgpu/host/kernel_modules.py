"""Kernel modules from ``/sys/module``: which are loaded, who needs them, and taking them out.

Reading is by files alone, so that it works on a simulated root too; only ``remove`` asks the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.host.root import read_some

MODULES: Final = "module"
"""The folder in ``/sys``."""
# delete_module(2) has no wrapper in current C libraries; numbers of the kernel's tables of system calls.
_DELETE_MODULE: Final[Mapping[str, int]] = {"x86_64": 176, "aarch64": 106, "arm64": 106}
_FILE_BYTES: Final = 64
_USES_DRM: Final = ("modeset", "fbdev")


class ModuleInUseError(HostError):
    """The kernel does not let a module go, as a process or another module uses it. ``module`` is its name."""

    def __init__(self, module: str) -> None:
        super().__init__(f"the kernel module {module} is in use", "nobody who uses it", "end what uses it")
        self.module = module


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """One loaded module. ``users`` is its reference count, -1 where that can't be read (built in, or just going);
    ``needed_by`` are modules that hold it.
    """

    users: int
    needed_by: frozenset[str] = frozenset()


def loaded(sys: Path, names: Collection[str]) -> dict[str, LoadedModule]:
    """Those of ``names`` that are loaded, by name; ``sys`` is the machine's ``/sys``.

    What is built into the kernel has a folder too, and no ``refcnt``: it is not counted.
    """
    found = {}
    for name in names:
        folder = sys / MODULES / name
        if (folder / "refcnt").is_file():
            found[name] = LoadedModule(users=_number(folder / "refcnt"), needed_by=_holders(folder / "holders"))
    return found


def unload_order(modules: Mapping[str, LoadedModule], preferred: Collection[str] = ()) -> tuple[str, ...]:
    """All of ``modules`` so that each comes after those that hold it; among equals in the order of ``preferred``.

    Modules that hold one another, which the kernel does not allow, come in that order as well.
    """
    rank = {name: number for number, name in enumerate(preferred)}
    left = sorted(modules, key=lambda name: (rank.get(name, len(rank)), name))
    order: list[str] = []
    while left:
        free = next((name for name in left if modules[name].needed_by.isdisjoint(left)), left[0])
        order.append(free)
        left.remove(free)
    return tuple(order)


def drm_user(sys: Path) -> str:
    """The kernel module that has NVIDIA's GPUs open for displays, "" if it does not."""
    folder = sys / MODULES / "nvidia_drm/parameters"
    used = [name for name in _USES_DRM if read_some(folder / name, 8).strip() == b"Y"]
    return f"nvidia_drm with {' and '.join(used)}" if used else ""


def remove(name: str) -> None:
    """Unload a module of this machine's kernel; nothing happens where it is not loaded.

    Raises ModuleInUseError while it is in use, HostError for anything else that the kernel says.
    """
    number = _DELETE_MODULE.get(platform.machine())
    if number is None:
        raise HostError(
            f"kernel modules can't be unloaded on {platform.machine()}", " or ".join(sorted(_DELETE_MODULE)),
            "unload them by hand: rmmod",
        )  # fmt: skip
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), name.encode(), ctypes.c_uint(os.O_NONBLOCK)) == 0:
        return
    code = ctypes.get_errno()
    if code == errno.ENOENT:
        return
    if code in {errno.EWOULDBLOCK, errno.EBUSY}:
        raise ModuleInUseError(name)
    raise HostError(
        f"the kernel module {name} can't be unloaded: {os.strerror(code)}",
        "root with the capability SYS_MODULE",
        "run the pod privileged, or unload it by hand: rmmod",
    )


def _number(path: Path) -> int:
    text = read_some(path, _FILE_BYTES).strip()
    return int(text) if text.isdigit() and len(text) < 12 else -1


def _holders(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()
