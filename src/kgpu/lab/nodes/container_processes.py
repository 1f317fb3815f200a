"""Finds and ends the processes of containers by the containers' folders, whether or not their shims still live.

While the shim lives, all processes of its container are its descendants. A killed shim leaves orphans; they are
recognised by the container's id in their environment, by the session that the container was started in, or by the
folder on the command line (a shim that has not begun yet). So are the commands that ``kubectl exec`` started in the
container, which are the host's children. No other process is ever included: a session counts only with the boot, the
mount namespace and the start time that were recorded.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgpu.base.boot import BOOT_ID, boot_id
from kgpu.formats.names import ENV_LAB_CONTAINER
from kgpu.lab.processes import parse_start_time

CONFIG: Final = "config.json"
STATE: Final = "state.json"
EXIT: Final = "exit.json"
EXEC: Final = "exec"
"""There is such a file once a command beside the container's own was started in it."""
_ROUNDS: Final = 20  # a process may start another one while it is being found
_SESSION_FIELD: Final = 3  # of /proc/PID/stat, counted from the state letter


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimState:
    """What a shim recorded of a started container: its first process and itself; ``started`` in seconds since 1970.

    ``ticks`` is the first process's start since boot; ``mounts`` its mount namespace. Older folders have neither.
    """

    pid: int
    shim: int
    started: float
    ticks: int = 0
    boot: str = ""
    mounts: str = ""


def read_state(folder: Path) -> ShimState | None:
    """What the shim recorded when it started the command; None when there is nothing, or nothing readable."""
    state = read_json(folder / STATE)
    if state is None:
        return None
    try:
        return ShimState(
            pid=int(state["pid"]), shim=int(state["shim"]), started=float(state["started"]),
            ticks=int(state.get("ticks") or 0), boot=str(state.get("boot") or ""),
            mounts=str(state.get("mounts") or ""),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def processes_of(*folders: Path) -> list[int]:
    """Every process of these containers that still runs, a shim's pid after those of its container."""
    pids: list[int] = []
    lost: list[tuple[Path, ShimState | None]] = []
    for folder in folders:
        state = read_state(folder)
        alive = state is not None and is_alive(state.shim) and is_shim(state.shim, folder)
        if alive and state is not None:
            pids += [*descendants(state.shim), state.shim]
        # A shim writes how it ended once everything that it started has ended.
        if had_commands(folder) or (not alive and (folder / CONFIG).exists() and not (folder / EXIT).exists()):
            lost.append((folder, state))
    known = set(pids)
    return [*(pid for pid in (_orphans(lost) if lost else ()) if pid not in known), *pids]


def had_commands(folder: Path) -> bool:
    """Whether a command beside the container's own was started in it."""
    return (folder / EXEC).exists()


def signal_session(leader: int, number: int) -> None:
    """Send a signal to every process of the session that ``leader``, a child of this process, began."""
    for pid in _own_processes():
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            if int(text.rpartition(")")[2].split()[_SESSION_FIELD]) == leader:
                os.kill(pid, number)


def end(*folders: Path) -> None:
    """End every process of these containers."""
    for _ in range(_ROUNDS):
        pids = processes_of(*folders)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def end_all(*nodes: Path) -> None:
    """End every container process of the nodes' folders, whoever started it."""
    end(*(config.parent for node in nodes for config in node.glob(f"c/*/{CONFIG}")))


def cut_power(node: Path) -> None:
    """End every container process of the node's folder as a power cut does: nobody is left to tell how one ended."""
    folders = [config.parent for config in node.glob(f"c/*/{CONFIG}")]
    for folder in folders:
        state = read_state(folder)
        if state is not None and is_alive(state.shim) and is_shim(state.shim, folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(state.shim, signal.SIGSTOP)
    end(*folders)


def _orphans(lost: Sequence[tuple[Path, ShimState | None]]) -> list[int]:
    """The processes of all containers that have lost their shims, in one pass over ``/proc``."""
    ids = {str((read_json(folder / CONFIG) or {}).get("id") or "") for folder, _ in lost} - {""}
    markers = {f"{ENV_LAB_CONTAINER}={container_id}".encode() for container_id in ids}
    configs = {os.fsencode(folder / CONFIG) for folder, _ in lost}
    boot = boot_id(BOOT_ID)
    sessions = {state.pid: state for _, state in lost if state is not None and state.ticks and state.boot == boot}
    return [
        pid
        for pid in _own_processes()
        if not configs.isdisjoint(_words(pid, "cmdline"))
        or not markers.isdisjoint(_words(pid, "environ"))
        or _in_session(pid, sessions)
    ]


def _own_processes() -> Iterator[int]:
    user, this = os.geteuid(), os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == this:
            continue
        with contextlib.suppress(OSError):
            if user == 0 or os.stat(f"/proc/{name}").st_uid == user:
                yield int(name)


def _words(pid: int, name: str) -> list[bytes]:
    """The NUL-separated words of the file; none for a process that has ended or may not be read."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:
        return []


def _in_session(pid: int, sessions: Mapping[int, ShimState]) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()
        state = sessions.get(int(fields[_SESSION_FIELD]))
        if state is None or fields[0] in {"Z", "X"}:
            return False
        mounts = os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return False
    since = parse_start_time(text)
    # The session's number is the pid of the process that began it; one that was reused has another start time.
    own = since == state.ticks if pid == state.pid else since >= state.ticks
    return own and state.mounts in {"", mounts}


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def is_shim(pid: int, folder: Path) -> bool:
    """Whether it is that container's shim: the pid may be another process's by now."""
    return os.fsencode(folder / CONFIG) in _words(pid, "cmdline")


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object of a file; None when there is none."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def descendants(pid: int) -> list[int]:
    """All processes that this one and its descendants have started, children before parents."""
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [descendant for word in words for descendant in (*descendants(int(word)), int(word))]
