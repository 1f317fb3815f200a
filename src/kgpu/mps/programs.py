"""How the driver's own programs are run: where they are, in which root, with which libraries and folders.

A daemon and its clients need one ``/dev/shm``, the tmpfs below the MPS root. Where this process has another, or the
driver has a root of its own, the program gets a mount namespace in which both are in their place. A simulated driver
root has no system around it and needs neither: its programs run outside of it.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats.mps_folders import shm_folder
from kgpu.formats.names import ENV_HW_STATE
from kgpu.formats.simulated import state_file
from kgpu.host.chroot import in_root
from kgpu.host.driver.layouts import BINARY_DIRS
from kgpu.host.root import Tree
from kgpu.hw import roots

CONTROL: Final = "nvidia-cuda-mps-control"
SERVER: Final = "nvidia-cuda-mps-server"
SMI: Final = "nvidia-smi"
SHM: Final = "/dev/shm"  # noqa: S108 - where POSIX shared memory is
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Namespace, mounts, root, program. MS_BIND 0x1000, MS_REC 0x4000, MS_SLAVE 0x80000, CLONE_NEWNS 0x20000.
_ENTER: Final = """
import ctypes, os, sys
root, mps, shm, *words = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def done(code, what):
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)
def mount(source, target, flags):
    done(libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None), target)
try:
    inside = root.rstrip("/")
    done(libc.unshare(0x20000), "a mount namespace of its own")
    mount("none", "/", 0x84000)
    if inside:
        os.makedirs(inside + mps, exist_ok=True)
        mount(mps, inside + mps, 0x5000)
        os.makedirs(inside + "/dev/shm", exist_ok=True)
    mount(shm, inside + "/dev/shm", 0x1000)
    os.chroot(root)
    os.chdir("/")
    os.execv(words[0], words)
except OSError as error:
    print(error, file=sys.stderr)
    sys.exit(126)
"""


class DriverPrograms:
    """The programs of the driver under ``root``, as this process sees it."""

    def __init__(self, root: str = "/") -> None:
        self.root = root or "/"
        self.simulated = state_file(self.root) is not None

    def find(self, name: str) -> str:
        """A program's path inside the root. Raises HostError."""
        tree = Tree.at(self.root)
        for folder in BINARY_DIRS:
            program = tree.resolve(f"{folder}/{name}")
            if program is not None and tree.is_file(program):
                return program
        raise HostError(
            f"there is no {name} in {self.root}",
            "the driver's own programs, those for computing included",
            "install them; a driver package without compute utilities has none (Debian: nvidia-cuda-mps)",
        )

    def environment(self) -> dict[str, str]:
        """What every program of the driver gets. Nothing of this process's own goes in."""
        own = {"PATH": _PATH, "LC_ALL": "C"}
        library = roots.find_library(self.root)
        if self.simulated:
            state = state_file(self.root) or ""
            return {**own, ENV_HW_STATE: state, "LD_LIBRARY_PATH": os.path.dirname(library or "")}
        if library and self.root != "/":
            own["LD_LIBRARY_PATH"] = os.path.dirname(library[len(self.root.rstrip("/")) :])
        return own

    def plain(self, name: str, *words: str) -> list[str]:
        """The command that runs a program in its root. Raises HostError."""
        if self.simulated:
            return [self.root.rstrip("/") + self.find(name), *words]
        return in_root(self.root, [self.find(name), *words])

    def sharing(self, mps_root: str, name: str, *words: str) -> list[str]:
        """The same for one that needs the MPS root's folders and shared memory. Raises HostError."""
        shm = shm_folder(mps_root)
        if self.simulated or (self.root == "/" and _same_folder(shm, SHM)):
            return self.plain(name, *words)
        return [sys.executable, "-I", "-S", "-c", _ENTER, self.root, mps_root, shm, self.find(name), *words]


def _same_folder(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
