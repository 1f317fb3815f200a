"""The kernel log of a simulated node: ``dev/kmsg`` under its root, a file of records as ``/dev/kmsg`` gives them.

What the driver would print is written there when an Xid is injected, and ``say`` writes any other line. Sequence
numbers have no gaps. The file stays small: a large one begins anew with its last record.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from kgpu.base.errors import HwError

PATH: Final = "dev/kmsg"
LIMIT: Final = 1 << 20
_WARNING: Final = 4
PROGRAM: Final = 13
"""The priority of a program's notice: its facility is not the kernel's."""
_TAIL: Final = 8192


def say(root: Path | str, *messages: str, priority: int = _WARNING) -> None:
    """Write records, of the kernel if ``priority`` does not say otherwise.

    Raises HwError when the root does not let it.
    """
    try:
        with open(Path(root, PATH), "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last, text = _last(file.fileno())
            if os.fstat(file.fileno()).st_size > LIMIT:
                file.truncate(0)
                file.write(text)
            for number, message in enumerate(messages, last + 1):
                line = message.replace("\n", " ")
                file.write(f"{priority},{number},{time.monotonic_ns() // 1000},-;{line}\n".encode())
    except OSError as error:
        raise _unwritable(root, error) from error


def _unwritable(root: Path | str, error: OSError) -> HwError:
    return HwError(
        f"the simulated kernel log {Path(root, PATH)} can't be written: {error.strerror or error}",
        "a simulated root that this user owns",
        "check its owner",
    )


def begin(root: Path | str) -> None:
    """The log of a kernel that has just started; nothing where the machine has no log. Raises HwError."""
    try:
        with open(Path(root, PATH), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.truncate(0)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(root, error) from error


def xid(root: Path | str, bus_id: str, code: int, text: str, *, gi: int | None = None, ci: int | None = None) -> None:
    """The line with which the driver tells of an Xid; ``bus_id`` is ``0000:07:00.0``."""
    slice_ = ("" if gi is None else f" GPU-I:{gi:02d}") + ("" if ci is None else f" GPU-CI:{ci:02d}")
    place = f"PCI:{bus_id.partition('.')[0]}{slice_}"
    say(root, f"NVRM: Xid ({place}): {code}, pid='<unknown>', name=<unknown>, {text}")


def _last(fd: int) -> tuple[int, bytes]:
    """The last record's number and line; -1 when there is none."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, _TAIL, max(0, size - _TAIL))
    lines = [line for line in tail.splitlines(keepends=True) if line.count(b",") >= 3 and line.endswith(b"\n")]
    for line in reversed(lines):
        number = line.split(b",", 2)[1]
        if number.isdigit():
            return int(number), line
    return -1, b""
