"""Processes of this pid namespace that were started under a name, and telling them something by a signal.

A name is that of the program's file, whatever its folder; of a script that Python runs, the script's. In a pod whose
containers share their processes these are the pod's own. Where the host's are seen, those of other containers are left
alone. What such a process has started is not told: it would end by a signal that only the program itself expects.
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
    depth: int  # of pid namespaces below the one that is looked at
    words: tuple[str, ...]

    def is_called(self, name: str) -> bool:
        files = [os.path.basename(word) for word in self.words[:2]]
        return files[:1] == [name] or (files[1:] == [name] and files[0].startswith(_INTERPRETER))


def named(name: str, proc: Path = PROC) -> tuple[int, ...]:
    """Their pids, lowest first, without this process. A process that ends meanwhile is none."""
    known = {process.pid: process for process in map(_read, proc.glob("[0-9]*")) if process is not None}
    own = known.get(os.getpid())
    depth = own.depth if own is not None else 1
    wanted = os.path.basename(name)
    found = {pid for pid, one in known.items() if one.depth == depth and one is not own and one.is_called(wanted)}
    return tuple(sorted(pid for pid in found if known[pid].parent not in found))


def tell(pids: Sequence[int], number: int, name: str, proc: Path = PROC) -> tuple[int, ...]:
    """Send the signal to those that are still called so. Returns whom. Raises OSError where that is not allowed."""
    signalled = []
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # From here on the number can't become another process's.
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
