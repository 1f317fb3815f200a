"""What each container's processes use of each device: memory and busy time, summed. Pure.

A process has one row per kind of use; its memory counts once. Processes that can't be shown are counted by reason: in
no pod, in a container whose name is not known, in a pod that does not hold the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from kgpu.exporter.holders import Unshown
from kgpu.exporter.model import PodKey, Unit
from kgpu.hw.port import Process

MEMORY: Final = "memory_used_mib"
BUSY: Final = "utilization_percent"
NO_POD: Final = "in-no-pod"
NO_NAME: Final = "container-not-known"
GONE: Final = "ended"
OWN: Final = "kgpu's own"
NOT_HELD: Final = "device-not-held"


class ProcessHolder(NamedTuple):
    """The container of a process, or why it is not known."""

    key: PodKey | None
    reason: str = ""


class Shares(NamedTuple):
    """Values by unit and container, and processes that are not shown."""

    values: dict[tuple[Unit, PodKey], dict[str, float]]
    unshown: tuple[Unshown, ...]


def shares(
    processes: Iterable[Process], place: Callable[[int], ProcessHolder], held: Mapping[Unit, Collection[PodKey]] | None
) -> Shares:
    """Sum usage by unit and container. ``held`` are the containers that hold a unit, None when that is not known."""
    memory: dict[tuple[Unit, int], float] = {}
    busy: dict[tuple[Unit, int], float] = {}
    used: dict[tuple[Unit, int], None] = {}
    for row in processes:
        at = (Unit(row.uuid, row.gpu_instance), row.pid)
        used[at] = None
        if row.memory_mib is not None:
            memory[at] = max(memory.get(at, 0.0), row.memory_mib)
        if row.sm_percent is not None:
            busy[at] = max(busy.get(at, 0.0), row.sm_percent)
    placed = {pid: place(pid) for pid in dict.fromkeys(pid for _, pid in used)}
    values: dict[tuple[Unit, PodKey], dict[str, float]] = {}
    unshown: list[Unshown] = []
    for at in used:
        unit, pid = at
        key, reason = placed[pid]
        if key is None:
            if reason not in (GONE, OWN):
                unshown.append(Unshown("process", reason, ("", "", ""), str(pid)))
            continue
        if held is not None and key not in held.get(unit, ()):
            unshown.append(Unshown("process", NOT_HELD, key, str(pid)))
        usage = values.setdefault((unit, key), {})
        for name, by_process, most in ((MEMORY, memory, None), (BUSY, busy, 100.0)):
            if at in by_process:
                total = usage.get(name, 0.0) + by_process[at]
                usage[name] = total if most is None else min(most, total)
    return Shares(values, tuple(unshown))
