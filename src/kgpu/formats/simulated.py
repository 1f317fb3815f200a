"""Which folder is a driver root that ``kgpu lab hw create`` made: judged before anybody takes its driver for simulated.

A file ``state`` is not enough: it is mounted writable into every container with a GPU, and a host may have one of its
own. Imported by the hardware child, so it stays clear of dataclasses and pathlib.
"""

from __future__ import annotations

import os
import stat
import sys

MAGIC = 0x4B4750555354_0001  # "KGPUST", 1: the first eight bytes of the state file
_HEAD = 16  # bytes: the magic number, the layout's version, the file's size
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def state_file(root: str) -> str | None:
    """The state file of a simulated driver root, None for every other folder.

    Three things must hold. The file is a regular one, no link, of root's or of our own user. Its head has the magic
    number and its own size. And the root's ``/sys`` is made of plain files: so no host's own root passes, and no
    driver container's, whatever lies there.
    """
    path = os.path.join(root, "state")
    return path if _has_head(path) and _has_plain_sys(root) else None


def _has_head(path: str) -> bool:
    try:
        descriptor = os.open(path, _OPEN)
    except (OSError, ValueError):
        return False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            return False
        head = os.pread(descriptor, _HEAD, 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    magic, size = int.from_bytes(head[:8], sys.byteorder), int.from_bytes(head[12:], sys.byteorder)
    return len(head) == _HEAD and magic == MAGIC and size == status.st_size


def _has_plain_sys(root: str) -> bool:
    """The kernel's own /sys is a file system of its own, and an unmounted one is empty."""
    try:
        places = [os.lstat(os.path.join(root, *parts)) for parts in ((), ("sys",), ("sys", "bus"))]
    except OSError:
        return False
    return all(stat.S_ISDIR(place.st_mode) and place.st_dev == places[0].st_dev for place in places[1:])
