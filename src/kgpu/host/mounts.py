"""Mounts of this process's own mount namespace: those at and below a folder, and taking them away."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError

MOUNTINFO: Final = Path("/proc/self/mountinfo")
_OCTAL: Final = re.compile(r"\\([0-7]{3})", re.ASCII)
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_ROUNDS: Final = 64
"""A folder may be mounted over again and again; more layers than this are not taken away."""


def below(folder: str, text: str) -> tuple[str, ...]:
    """The mount points at or below ``folder`` in the text of ``mountinfo``, the last mounted first.

    A point with several mounts is there once for each. Octal escapes are resolved (proc_pid_mountinfo(5)).
    """
    inside = folder.rstrip("/") + "/"
    points = []
    for line in text.split("\n"):
        fields = line.split(" ")
        if len(fields) > 4 and f"{(point := _plain(fields[4])).rstrip('/')}/".startswith(inside):
            points.append(point)
    return tuple(reversed(points))


def _plain(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def unmount_below(folder: str, mountinfo: Path = MOUNTINFO) -> int:
    """Unmount everything at and below ``folder``; how many mounts that were. Raises HostError.

    Mounts that are still in use go away from the tree at once and for good once nobody uses them (MNT_DETACH), so that
    a program with a library open goes on.
    """
    libc, count = ctypes.CDLL(None, use_errno=True), 0
    for _ in range(_ROUNDS):
        points = below(folder, _read(mountinfo))
        if not points:
            return count
        for point in points:
            if libc.umount2(os.fsencode(point), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
                count += 1
                continue
            code = ctypes.get_errno()
            if code not in {errno.EINVAL, errno.ENOENT}:  # gone with the one above it
                raise HostError(
                    f"{point} can't be unmounted: {os.strerror(code)}", "root with the capability SYS_ADMIN",
                    "run the pod privileged, or unmount it by hand: umount -l",
                )  # fmt: skip
    raise HostError(f"{folder} is mounted over more than {_ROUNDS} times", "one mount", "umount -R by hand")


def _read(mountinfo: Path) -> str:
    try:
        return mountinfo.read_text(errors="surrogateescape")
    except OSError as error:
        raise HostError(f"{mountinfo} can't be read: {error.strerror}", "/proc", "mount it") from error
