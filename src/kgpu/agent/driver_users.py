"""Which of this process and its children have the driver open: whoever resets a GPU needs to know that none has.

Read from /proc. A child that was killed and hangs in the kernel counts: the driver may hold it for good.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NODES: Final = "/dev/nvidia"
LIBRARIES: Final = ("libnvidia-ml.so", "libcuda.so")
_HANGS: Final = "D"
_GONE: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverUser:
    """A process that has the driver open, or (``hangs``) that the kernel does not let go of."""

    pid: int
    name: str
    hangs: bool = False

    def __str__(self) -> str:
        held = "is held in the kernel by the driver" if self.hangs else "still has the driver open"
        return f"process {self.pid} ({self.name}) {held}"


@dataclass(frozen=True, slots=True)
class _ProcessRow:
    name: str
    state: str
    parent: int


def driver_users(proc: Path = Path("/proc"), pid: int | None = None) -> tuple[DriverUser, ...]:
    """Those among the process (by default this one) and all its descendants."""
    own = os.getpid() if pid is None else pid
    rows = _processes(proc)
    found: list[DriverUser] = []
    for number in _family(own, rows):
        row = rows[number]
        hangs = number != own and row.state == _HANGS
        # To read the memory map of a process that hangs may hang, too.
        if row.state not in _GONE and (_has_node(proc / str(number)) or hangs or _has_library(proc / str(number))):
            found.append(DriverUser(pid=number, name=row.name, hangs=hangs))
    return tuple(found)


def _processes(proc: Path) -> dict[int, _ProcessRow]:
    rows: dict[int, _ProcessRow] = {}
    for entry in os.listdir(proc):
        if entry.isascii() and entry.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                head, _, tail = (proc / entry / "stat").read_text(errors="replace").rpartition(")")
                words = tail.split()
                rows[int(entry)] = _ProcessRow(head.partition("(")[2], words[0], int(words[1]))
    return rows


def _family(own: int, rows: dict[int, _ProcessRow]) -> list[int]:
    family, added = [own] if own in rows else [], {own}
    while added:
        added = {number for number, row in rows.items() if row.parent in added and number not in family}
        family += sorted(added)
    return family


def _has_node(process: Path) -> bool:
    with contextlib.suppress(OSError):
        for entry in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):
                if NODES in os.readlink(process / "fd" / entry):
                    return True
    return False


def _has_library(process: Path) -> bool:
    with contextlib.suppress(OSError):
        text = (process / "maps").read_text(errors="replace")
        return any(library in text for library in LIBRARIES)
    return False
