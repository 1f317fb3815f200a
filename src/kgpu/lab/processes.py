"""Processes of a lab: found again after a restart, never mistaken for others, measured and ended.

A process is recorded as its pid and its start time, so that a pid that the system gave to somebody else is never
signalled.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.boot import BOOT_ID, boot_id
from kgpu.base.typed import decode

_START_TIME_FIELD: Final = 19  # of /proc/PID/stat, counted from the state letter: starttime in clock ticks


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process of this machine: ``start`` is its start in clock ticks since boot, ``boot`` the boot's id.

    Start times of another boot mean nothing.
    """

    pid: int
    start: int
    boot: str = ""


def parse_start_time(stat: str) -> int:
    """The start time from the text of ``/proc/PID/stat``; the command in it may hold spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[_START_TIME_FIELD])


def record(pid: int) -> ProcessRecord:
    """The record of a living process; OSError when there is none."""
    return ProcessRecord(pid=pid, start=parse_start_time(Path(f"/proc/{pid}/stat").read_text()), boot=boot_id(BOOT_ID))


@contextlib.contextmanager
def holding(path: Path) -> Iterator[int]:
    """Hold the lock file, which says who does; its descriptor. Raises BlockingIOError when somebody else holds it."""
    with path.open("a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(msgspec.json.encode(record(os.getpid())))
        lock.flush()
        try:
            yield lock.fileno()
        finally:
            lock.truncate(0)  # this process may live on


def holder(path: Path) -> ProcessRecord | None:
    """The process that the lock file records, which holds or has held it; None when it records none."""
    try:
        return decode(path.read_bytes(), ProcessRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def alive(process: ProcessRecord) -> bool:
    """True when this very process still exists and is no zombie."""
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return False
    if process.boot != boot_id(BOOT_ID) or parse_start_time(stat) != process.start:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def signal_process(process: ProcessRecord, number: int) -> bool:
    """Send a signal to this very process, by descriptor so that the pid can't be reused in between. False when gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def parse_memory(smaps_rollup: str) -> dict[str, int]:
    """``rss_kib`` and ``pss_kib`` from the text of ``/proc/PID/smaps_rollup``."""
    sizes = {}
    for key in ("Rss", "Pss"):
        hit = re.search(rf"^{key}:\s+(\d+) kB", smaps_rollup, re.MULTILINE)
        if hit:
            sizes[f"{key.lower()}_kib"] = int(hit.group(1))
    return sizes


def memory(pid: int) -> dict[str, int]:
    """A process's memory, empty when it is gone."""
    try:
        return parse_memory(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return {}


def children(pid: int) -> list[int]:
    """The process's children, none when it is gone."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
