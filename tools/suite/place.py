"""Where a run of the suite keeps the tests' files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from kgpu.lab import processes

PREFIX: Final = "suite-"
OWNER: Final = "owner"
# What a run keeps at a time is less than half of this.
_ROOM: Final = 10 * 2**30


def make(*, free: int | None = None) -> Path:
    """A new folder; where there is plenty of memory, and root's right to mount, a file system in memory.

    A run makes and removes hundreds of thousands of files. On ext4 each costs up to half a millisecond of processor
    time, because a number that has just become free is not used again for minutes and has to be searched past; in
    memory it costs four microseconds. ``free``: bytes of memory to be had, by default what the kernel says.

    It is no folder of ``/dev/shm``: what is below ``/dev`` may be no host path of kgpu's chart.
    """
    clear()
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    if (_available() if free is None else free) > _ROOM:
        # Where it is refused the folder is one of the disk.
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"mode=0700,size={_ROOM}", "kgpu-suite", str(made)],
            check=False, capture_output=True,
        )  # fmt: skip
    (made / OWNER).write_bytes(msgspec.json.encode(processes.record(os.getpid())))
    return made


def remove(folder: Path) -> None:
    """The folder and its file system."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)
        with suppress(OSError):
            folder.rmdir()


def clear() -> None:
    """Remove what runs left that were killed: some of it is memory that nobody gets back."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = processes.holder(left / OWNER)
        if owner is not None and not processes.alive(owner):
            remove(left)


def _available() -> int:
    """Bytes of memory that programs can have, by ``/proc/meminfo``; 0 where it does not say."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    return 0
