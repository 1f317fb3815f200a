"""Where a run of the suite keeps the tests' files."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from kgpu.lab import processes

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - folders of our own are made in it
PREFIX: Final = "suite-"
OWNER: Final = "owner"
# What a run keeps at a time is less than half of this.
_ROOM: Final = 10 * 2**30


def make(memory: Path = MEMORY, *, free: int | None = None) -> Path:
    """A new folder, in memory where there is plenty.

    A run makes and removes hundreds of thousands of files. On ext4 each costs up to half a millisecond of processor
    time, because a number that has just become free is not used again for minutes and has to be searched past; in
    memory it costs four microseconds. ``free``: bytes of memory to be had, by default what the kernel says.
    """
    clear(memory)
    place = memory if _fits(memory, _available() if free is None else free) else None
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    (made / OWNER).write_bytes(msgspec.json.encode(processes.record(os.getpid())))
    return made


def clear(memory: Path = MEMORY) -> None:
    """Remove what runs left that were killed: it would be memory that nobody gets back."""
    for left in memory.glob(f"{PREFIX}*"):
        owner = processes.holder(left / OWNER)
        if owner is not None and not processes.alive(owner):
            shutil.rmtree(left, ignore_errors=True)


def _fits(memory: Path, free: int) -> bool:
    with suppress(OSError):
        there = os.statvfs(memory)
        runs = not there.f_flag & os.ST_NOEXEC and os.access(memory, os.W_OK)
        return runs and min(there.f_bavail * there.f_frsize, free) > _ROOM
    return False


def _available() -> int:
    """Bytes of memory that programs can have, by ``/proc/meminfo``; 0 where it does not say."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    return 0
