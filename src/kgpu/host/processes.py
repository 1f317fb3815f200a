"""Finds processes of this PID namespace by their program's name, and signals them.

The name is that of the program's file, in any folder, or of the script that Python runs. In a pod whose containers
share their processes these are the pod's own. If the host's processes are visible, those of other containers are left
alone. Child processes of the same name are not signalled: a signal that only the main process expects would end them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_INTERPRETER: Final = "python"


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    depth: int  # of PID namespaces, counted from the one that /proc shows
    words: tuple[str, ...]

    def is_called(self, name: str) -> bool:
        files = [os.path.basename(word) for word in self.words[:2]]
        return files[:1] == [name] or (files[1:] == [name] and files[0].startswith(_INTERPRETER))


def named(name: str, proc: Path = PROC) -> tuple[int, ...]:
    """The PIDs of processes of this name, lowest first, without this process and those that end meanwhile."""
    known = {process.pid: process for process in map(_read, proc.glob("[0-9]*")) if process is not None}
    own = known.get(os.getpid())
    depth = own.depth if own is not None else 1
    wanted = os.path.basename(name)
    found = {pid for pid, one in known.items() if one.depth == depth and one is not own and one.is_called(wanted)}
    return tuple(sorted(pid for pid in found if known[pid].parent not in found))


def tell(pids: Sequence[int], number: int, name: str, proc: Path = PROC) -> tuple[int, ...]:
    """Signal those that still have this name. Returns their PIDs. Raises OSError if that is not permitted."""
    signalled = []
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # The handle stays with this process even if its PID is reused.
            process = _read(proc / str(pid))
            if process is not None and process.is_called(os.path.basename(name)):
                signal.pidfd_send_signal(handle, number)
                signalled.append(pid)
        except ProcessLookupError:
            continue
        finally:
            os.close(handle)
    return tuple(signalled)


def _read(folder: Path) -> _Process | None:
    try:
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        command = (folder / "cmdline").read_bytes()
        return _Process(
            pid=int(folder.name),
            parent=int(status["PPid"]),
            depth=len(status["NSpid"].split()),
            words=tuple(os.fsdecode(word) for word in command.rstrip(b"\0").split(b"\0") if command),
        )
    except (OSError, ValueError, KeyError):
        return None
