"""Which processes have device nodes open, by ``/proc/PID/fd``.

A node is recognised by its numbers, because a container has a copy of its own; a plain file that stands in for a node,
as on a simulated machine without permission to make nodes, by the file itself. Only links whose name begins as the
nodes' do are looked at closer: asking about a file on a dead file server would never return.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from kgpu.base.errors import HostError
from kgpu.base.printable import one_line
from kgpu.formats.names import ENV_LAB_CONTAINER
from kgpu.host.cgroups import container_place
from kgpu.host.root import read_some

PROC: Final = Path("/proc")
_GPU_MAJOR: Final = 195
_FILE_BYTES: Final = 1 << 16
_PROGRAM: Final = 32
"""Characters of a program's name; the kernel has 15."""

NodeKey: TypeAlias = tuple[str, int, int]
"""``("device", major, minor)``, or ``("file", device, inode)`` for a stand-in."""


def device_key(major: int, minor: int) -> NodeKey:
    """The key of a device node with these numbers."""
    return ("device", major, minor)


def key_of(path: Path | str) -> NodeKey | None:
    """The key of what is at a path; None if nothing is there or it can't be read."""
    try:
        return _key(os.stat(path))
    except (OSError, ValueError):
        return None


def _key(status: os.stat_result) -> NodeKey:
    if stat.S_ISCHR(status.st_mode):
        return device_key(os.major(status.st_rdev), os.minor(status.st_rdev))
    return ("file", status.st_dev, status.st_ino)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHolder:
    """A process with the names of the nodes that it has open. ``pod`` is its pod's uid and ``container`` its
    container's id, "" for one outside of pods or where that can't be read.
    """

    pid: int
    program: str
    nodes: frozenset[str]
    pod: str = ""
    container: str = ""

    def __str__(self) -> str:
        place = f" of pod {self.pod}" if self.pod else f" of container {self.container}" if self.container else ""
        return f"{self.program} (pid {self.pid}){place}"


def holders(
    nodes: Mapping[NodeKey, str], *, proc: Path = PROC, user_of: NodeKey | None = None
) -> tuple[DeviceHolder, ...]:
    """The processes that have any of the ``nodes`` (names by key) open, by pid. Raises HostError.

    With ``user_of`` only the processes count that have that file open, too: those of one simulated machine, which
    share its driver's state. Other users' processes can't be its, so that they need not be readable.
    """
    found = []
    for pid in _pids(proc):
        try:
            keys = frozenset(_open_keys(proc / str(pid) / "fd", nodes, user_of))
        except PermissionError as error:
            if user_of is not None:
                continue
            raise HostError(
                f"what process {pid} has open can't be read", "root with the capability SYS_PTRACE, and hostPID",
                "look at what admission has changed in the pod",
            ) from error  # fmt: skip
        except OSError:  # it has ended
            continue
        names = frozenset(nodes[key] for key in keys & nodes.keys())
        if names and (user_of is None or user_of in keys):
            found.append(_holder(proc / str(pid), pid, names))
    return tuple(found)


def gpu_holders(gpus: Mapping[int, str], root: str, state: str = "") -> tuple[DeviceHolder, ...]:
    """The processes that have any of these GPUs, names by minor, open. Raises HostError.

    ``root`` is the driver's and ``state`` the file of a simulated one, "" for a real driver. The control node and that
    of unified memory are open in every program on any GPU, and say nothing of these.
    """
    nodes: dict[NodeKey, str] = {}
    for minor, name in gpus.items():
        key = key_of(f"{root}/dev/nvidia{minor}") if state else device_key(_GPU_MAJOR, minor)
        if key is not None:
            nodes[key] = name
    return holders(nodes, user_of=key_of(state) if state else None)


def programs(proc: Path = PROC) -> frozenset[str]:
    """The names of all processes, as the kernel cuts them."""
    return frozenset(_program(proc / str(pid)) for pid in _pids(proc))


def _pids(proc: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError as error:
        raise HostError(f"{proc} can't be read: {error.strerror}", "the host's processes", "mount it") from error


def _open_keys(folder: Path, nodes: Mapping[NodeKey, str], user_of: NodeKey | None) -> Iterator[NodeKey]:
    """The keys of what a process has open, of files whose name may be a node's. Raises OSError."""
    starts = ("nvidia", "state") if user_of is not None else ("nvidia",)
    for descriptor in os.listdir(folder):
        path = f"{folder}/{descriptor}"
        try:
            if os.path.basename(os.readlink(path)).startswith(starts):
                key = _key(os.stat(path))
                if key in nodes or key == user_of:
                    yield key
        except OSError:  # closed meanwhile
            continue


def _holder(folder: Path, pid: int, names: frozenset[str]) -> DeviceHolder:
    place = container_place(_text(folder / "cgroup"))
    pod, container = place if place is not None else ("", _marked(folder))
    return DeviceHolder(pid=pid, program=_program(folder) or "a program", nodes=names, pod=pod, container=container)


def _marked(folder: Path) -> str:
    """The id of the simulated node's container that the process is in, "" for none."""
    start = f"{ENV_LAB_CONTAINER}="
    words = _text(folder / "environ").split("\0")
    return one_line(next((word.removeprefix(start) for word in words if word.startswith(start)), ""), 64)


def _program(folder: Path) -> str:
    return one_line(_text(folder / "comm"), _PROGRAM)


def _text(path: Path) -> str:
    return read_some(path, _FILE_BYTES).decode("utf-8", "replace")
