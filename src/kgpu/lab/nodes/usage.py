"""The CPU and memory that the containers and agents of nodes use: what a kubelet has at ``/metrics/resource``.

Read from ``/proc`` when somebody asks; nothing is sampled otherwise. Memory is what the processes have for themselves
and their part of what they share (Pss). The time of processes that have ended counts with the parent that waited.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgpu.lab.nodes import container_processes

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_UTIME: Final = 11  # of /proc/PID/stat, counted from the state letter; then stime, cutime and cstime


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU time since the start in seconds, and memory in bytes."""

    cpu: float = 0.0
    memory: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpu + other.cpu, self.memory + other.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningContainer:
    """One running container; without a ``folder`` it has no processes. ``started``: seconds since 1970."""

    namespace: str
    pod: str
    name: str
    started: float
    folder: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProcesses:
    """What runs for one node; ``agent`` is the pid of its agent, 0 if that is no process of its own."""

    name: str
    agent: int
    containers: Sequence[RunningContainer]


def of_container(folder: Path) -> Usage:
    """What the container's processes use; of its shim only the time of those that it has waited for."""
    state = container_processes.read_state(folder)
    shim = state.shim if state is not None else 0
    return sum((_of_process(pid, shim=pid == shim) for pid in container_processes.processes_of(folder)), Usage())


def of_tree(pid: int) -> Usage:
    """What a process and its descendants use."""
    return sum((_of_process(one) for one in (*container_processes.descendants(pid), pid)), Usage())


def _of_process(pid: int, *, shim: bool = False) -> Usage:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        own, ended = (sum(map(int, fields[at : at + 2])) for at in (_UTIME, _UTIME + 2))
    except (OSError, ValueError):
        return Usage()
    return Usage(ended / _TICKS) if shim else Usage((own + ended) / _TICKS, _memory(pid))


def _memory(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, StopIteration):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        line = next(line for line in text.splitlines() if line.startswith("Pss:"))
        return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def document(nodes: Iterable[NodeProcesses]) -> bytes:
    """The use of every node and of its containers, as JSON: ``cpu`` in seconds, ``memory`` in bytes."""
    return json.dumps({"nodes": {node.name: _of_node(node) for node in nodes}}).encode()


def _of_node(node: NodeProcesses) -> dict[str, Any]:
    at, whole, rows = time.time(), of_tree(node.agent) if node.agent else Usage(), []
    for container in node.containers:
        used = of_container(container.folder) if container.folder is not None else Usage()
        whole += used
        rows.append(
            {
                "namespace": container.namespace, "pod": container.pod, "name": container.name,
                "started": container.started, "cpu": used.cpu, "memory": used.memory,
            }
        )  # fmt: skip
    return {"time": at, "cpu": whole.cpu, "memory": whole.memory, "containers": rows}
