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
from kgpu.hw.verdicts import GpuVerdict, VerdictSource
from kgpu.top.model import GpuHealth, GpuInstance, GpuNode, GpuProcess, NodeRoutes, ShownGpu
from kgpu.top.read import with_total
from kgpu.top.tables import VALUES

_SILENT: Final = frozenset({Problem.LOST, Problem.HUNG, Problem.CRASHED, Problem.MISSING})
KEYS: Final = frozenset(key for key, _ in VALUES.values())
"""The readings that are shown; others cost time and are not asked for."""
_UNASKED: Final = frozenset({"none", "unknown"})
_NOTHING_TO_DO: Final = "ignore"
MOST_COMMAND: Final = 4096


class HostSource:
    """A ``Source`` of one node. ``proc`` is where the processes' own files are.

    ``verdicts`` are those of the health role, None where there is none: then only the driver's own word is shown.
    """

    def __init__(
        self, reader: Reader, *, name: str = "", proc: str = "/proc", verdicts: VerdictSource | None = None
    ) -> None:
        self._reader = reader
        self._verdicts = verdicts
        self._name = one_line(name or socket.gethostname())
        self._proc = Path(proc)

    async def targets(self) -> tuple[NodeRoutes, ...]:
        return (NodeRoutes(node=self._name),)

    async def look(self, target: NodeRoutes) -> GpuNode:
        """Raises HwError."""
        inventory = await self._reader.inventory()
        readings = await self._reader.readings(KEYS)
        processes = await self._reader.processes()
        return self.node_of(inventory, readings, processes, target.node)

    async def close(self) -> None:
        await self._reader.close()

    def node_of(
        self, inventory: Inventory, readings: tuple[Reading, ...], processes: tuple[Seen, ...], name: str
    ) -> GpuNode:
        """Build the node from what the driver returned."""
        values = {(reading.uuid, reading.gpu_instance): reading.numbers for reading in readings if reading.link is None}
        by_gpu: dict[str, list[GpuProcess]] = {}
        for process in processes:
            by_gpu.setdefault(process.uuid, []).append(self._process(process))
        verdicts = self._verdicts.read() if self._verdicts is not None else None
        judged = verdicts.by_uuid if verdicts is not None else {}
        gpus = [
            _gpu(accelerator, values, tuple(by_gpu.get(accelerator.uuid, ())), judged.get(accelerator.uuid))
            for accelerator in inventory.accelerators
        ]
        return GpuNode(
            name=name, hostname=name, driver_version=inventory.driver_version, gpus=tuple(gpus), at=time.time(),
            through="this node's driver",
        )  # fmt: skip

    def _process(self, seen: Seen) -> GpuProcess:
        folder = self._proc / str(seen.pid)
        return GpuProcess(
            pid=seen.pid, command=_command(folder), user=_owner(folder), kind=seen.kind.value,
            memory_mib=seen.memory_mib, sm_percent=seen.sm_percent, gpu_instance=seen.gpu_instance,
        )  # fmt: skip


def _gpu(
    gpu: Accelerator,
    values: dict[tuple[str, int | None], dict[str, float]],
    processes: tuple[GpuProcess, ...],
    verdict: GpuVerdict | None,
) -> ShownGpu:
    profiles = {partition.gpu_instance: partition.profile for partition in gpu.partitions} if gpu.mig_enabled else {}
    parts = tuple(
        GpuInstance(gpu_instance=number, profile=profile, values=with_total(values.get((gpu.uuid, number), {})))
        for number, profile in sorted(profiles.items())
    )
    health, reason, action = _judged(gpu, verdict)
    return ShownGpu(
        index=gpu.index, uuid=gpu.uuid, name=one_line(gpu.name), values=with_total(values.get((gpu.uuid, None), {})),
        health=health, reason=one_line(reason), action=one_line(action, 60), parts=parts,
        processes=tuple(sorted(processes, key=lambda process: (-(process.memory_mib or 0), process.pid))),
    )  # fmt: skip


def _judged(gpu: Accelerator, verdict: GpuVerdict | None) -> tuple[GpuHealth, str, str]:
    """Health, reason and action: of a GPU that does not answer, else by health's verdict, else by the driver."""
    worst = next((finding for finding in gpu.findings if finding.problem in _SILENT), None)
    if worst is not None:
        # It may only be slow, or hang for a moment: health waits a while before it calls that a fault.
        well = verdict is not None and verdict.action == _NOTHING_TO_DO and not verdict.muted
        slow = well and worst.problem is Problem.HUNG
        return GpuHealth.WARN if slow else GpuHealth.LOST, worst.sentence, worst.remedy
    if verdict is not None and (verdict.withdraws or verdict.action != _NOTHING_TO_DO):
        return GpuHealth.BAD if verdict.withdraws else GpuHealth.WARN, verdict.what, verdict.action
    bad = next(iter(gpu.findings), None)
    if bad is not None:
        return GpuHealth.WARN if gpu.usable else GpuHealth.BAD, bad.sentence, bad.remedy
    if gpu.recovery_action not in _UNASKED and verdict is None:
        return GpuHealth.BAD, f"the driver asks for: {gpu.recovery_action}", gpu.recovery_action
    return (GpuHealth.OK if gpu.usable else GpuHealth.BAD), "", ""


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
