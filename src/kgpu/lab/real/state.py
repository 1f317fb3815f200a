"""The lab's state file: what exists, so that ``down`` removes exactly that and nothing else.

A process is recorded as its pid and its start time, so that a pid that the system gave to somebody else is never
signalled. What is about to be created is recorded before it is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic

_START_TIME_FIELD: Final = 19  # of /proc/PID/stat, counted from the state letter: starttime in clock ticks


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process of this machine: ``start`` is its start in clock ticks since boot, ``boot`` the boot's id."""

    pid: int
    start: int
    boot: str = ""


class LabState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that ``down`` and ``status`` need to know. ``mountpoints`` are folders made on the host."""

    name: str
    profile: str
    gpus: int | None
    agent: bool
    network_index: int
    bin_dir: str
    keeper: ProcessRecord | None = None
    mountpoints: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    complete: bool = False


def boot_id() -> str:
    """The boot's id; start times of another boot mean nothing."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def parse_start_time(stat: str) -> int:
    """The start time from the text of ``/proc/PID/stat``; the command in it may hold spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[_START_TIME_FIELD])


def record(pid: int) -> ProcessRecord:
    """The record of a living process; OSError when there is none."""
    return ProcessRecord(pid=pid, start=parse_start_time(Path(f"/proc/{pid}/stat").read_text()), boot=boot_id())


def alive(process: ProcessRecord) -> bool:
    """True when this very process still exists and is no zombie."""
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return False
    if process.boot != boot_id() or parse_start_time(stat) != process.start:
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
        import signal

        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def save(path: Path, state: LabState) -> None:
    """Write the state file atomically."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n", mode=0o600)


def load(path: Path) -> LabState | None:
    """The state, or None when there is no such lab. Raises LabError when the file can't be understood."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LabError(
            f"{path}: {error.strerror}", "a readable state file", "run as the user who made the lab"
        ) from error
    try:
        return msgspec.json.decode(raw, type=LabState)
    except msgspec.MsgspecError as error:
        raise LabError(
            f"{path} is not a lab's state file: {error}",
            "the file as kgpu wrote it",
            "if the lab's processes are gone (a reboot ends them), remove the folder that holds it",
        ) from error
