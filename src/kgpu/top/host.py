"""The driver of this node as a source: GPUs, MIG instances and processes, without a cluster."""

from __future__ import annotations

import os
import pwd
import socket
import time
from pathlib import Path
from typing import Final

from kgpu.base.printable import one_line
from kgpu.hw.port import Accelerator, Inventory, Problem, Reader, Reading
from kgpu.hw.port import Process as Seen
from kgpu.top.model import Gpu, Health, Node, Part, Process, Target
from kgpu.top.read import with_total

_SILENT: Final = frozenset({Problem.LOST, Problem.HUNG, Problem.CRASHED, Problem.MISSING})
MOST_COMMAND: Final = 4096


class Host:
    """A ``Source`` of one node. ``proc`` is where the processes' own files are."""

    def __init__(self, reader: Reader, *, name: str = "", proc: str = "/proc") -> None:
        self._reader = reader
        self._name = one_line(name or socket.gethostname())
        self._proc = Path(proc)

    async def targets(self) -> tuple[Target, ...]:
        return (Target(node=self._name),)

    async def look(self, target: Target) -> Node:
        """Raises HwError."""
        inventory = await self._reader.inventory()
        readings = await self._reader.readings()
        processes = await self._reader.processes()
        return self.made(inventory, readings, processes, target.node)

    async def close(self) -> None:
        await self._reader.close()

    def made(self, inventory: Inventory, readings: tuple[Reading, ...], processes: tuple[Seen, ...], name: str) -> Node:
        """The node from what the driver said."""
        values = {(one.uuid, one.gpu_instance): one.numbers for one in readings if one.link is None}
        seen: dict[str, list[Process]] = {}
        for process in processes:
            seen.setdefault(process.uuid, []).append(self._process(process))
        gpus = [_gpu(one, values, tuple(seen.get(one.uuid, ()))) for one in inventory.accelerators]
        return Node(
            name=name, hostname=name, driver_version=inventory.driver_version, gpus=tuple(gpus), at=time.time(),
            through="this node's driver",
        )  # fmt: skip

    def _process(self, seen: Seen) -> Process:
        folder = self._proc / str(seen.pid)
        return Process(
            pid=seen.pid, command=_command(folder), user=_owner(folder), kind=seen.kind.value,
            memory_mib=seen.memory_mib, sm_percent=seen.sm_percent, gpu_instance=seen.gpu_instance,
        )  # fmt: skip


def _gpu(
    gpu: Accelerator, values: dict[tuple[str, int | None], dict[str, float]], processes: tuple[Process, ...]
) -> Gpu:
    profiles = {one.gpu_instance: one.profile for one in gpu.partitions} if gpu.mig_enabled else {}
    parts = tuple(
        Part(gpu_instance=number, profile=profile, values=with_total(values.get((gpu.uuid, number), {})))
        for number, profile in sorted(profiles.items())
    )
    worst = next((one for one in gpu.findings if one.problem in _SILENT), None)
    bad = worst or next(iter(gpu.findings), None)
    health = Health.LOST if worst else Health.BAD if not gpu.usable else Health.WARN if bad else Health.OK
    return Gpu(
        index=gpu.index, uuid=gpu.uuid, name=one_line(gpu.name), values=with_total(values.get((gpu.uuid, None), {})),
        health=health, reason=one_line(bad.what) if bad else "", action=one_line(bad.todo, 60) if bad else "",
        parts=parts, processes=tuple(sorted(processes, key=lambda one: (-(one.memory_mib or 0), one.pid))),
    )  # fmt: skip


def _command(folder: Path) -> str:
    try:
        with open(folder / "cmdline", "rb") as file:
            words = file.read(MOST_COMMAND).decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return ""
    return one_line(" ".join([os.path.basename(words[0]), *words[1:]]))


def _owner(folder: Path) -> str:
    try:
        uid = folder.stat().st_uid
    except OSError:
        return ""
    try:
        return one_line(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)
