"""What a node's package manager could install for its kernel, and how much room its disks have.

The lists are those that apt keeps below ``/var/lib/apt/lists``, as text. Where there are none that can be read, nobody
knows: other package managers keep theirs packed.
"""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path
from typing import Final

from kgpu.base.errors import UserError
from kgpu.doctor.host_facts import DiskSpace
from kgpu.formats.names import KUBELET_ROOT
from kgpu.host.engines.paths import MountedPaths

LISTS: Final = "/var/lib/apt/lists/*_Packages"
DISKS: Final = (KUBELET_ROOT, "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker")
MAX_LISTS: Final = 64
MAX_LIST: Final = 256 * 1024 * 1024
"""Bytes of one list; Ubuntu's longest has about 80 MiB."""
_KERNEL: Final = re.compile(r"[\w.+~-]{1,128}", re.ASCII)


def has_headers(paths: MountedPaths, kernel: str) -> bool | None:
    """Whether the package ``linux-headers-KERNEL`` is in a list; None without lists. Raises OSError."""
    lists = paths.glob(LISTS)[:MAX_LISTS]
    if not lists or not _KERNEL.fullmatch(kernel):
        return None
    line = f"Package: linux-headers-{kernel}\n".encode()
    return any(_has_line(paths.local(path), line) for path in lists)


def _has_line(path: Path, line: bytes) -> bool:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not 0 < size <= MAX_LIST:
            return False
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            return data[: len(line)] == line or data.find(b"\n" + line) >= 0


def disks(paths: MountedPaths) -> dict[str, DiskSpace]:
    """The room of the file systems that pods and images take theirs from; what can't be looked at is left out."""
    found = {}
    for folder in DISKS:
        try:
            if paths.exists(folder):
                about = os.statvfs(paths.local(folder))
                found[folder] = DiskSpace(size=about.f_frsize * about.f_blocks, free=about.f_frsize * about.f_bavail)
        except (OSError, UserError):
            continue
    return found
