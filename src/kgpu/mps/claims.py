"""The control daemons of claims: as many as claims ask for, each kept up as long as its claim is there.

A daemon has the folder ``<root>/<claim's uid>/<number>``; the shared memory of a claim's daemons and clients is its
own, ``<root>/<uid>/shm``. Daemons go on when this process ends, and are taken over by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.base.advice import AdviceSink
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError
from kgpu.base.service import Complaint, end
from kgpu.base.threads import beside
from kgpu.mps import folders
from kgpu.mps.daemon import ControlDaemon
from kgpu.mps.driver import MpsDriver
from kgpu.mps.model import DaemonSpec
from kgpu.mps.plan import socket_problem
from kgpu.mps.record import NodeRecord
from kgpu.mps.smi import GONE, SmiError

_SHORTER: Final = "choose a shorter --kubelet-plugins-directory-path"


@dataclass(slots=True)
class _ClaimDaemon:
    daemon: ControlDaemon
    task: asyncio.Task[None]


@dataclass(slots=True, kw_only=True)
class ClaimControlDaemons:
    """One node's. ``record`` is the file of what has to be given back; ``shared_memory``: as in ``MpsContext``.

    Specs of one claim have one root, which is the claim's.
    """

    driver: MpsDriver
    record: Path
    boot: str
    report: AdviceSink
    shared_memory: bool = True
    clock: Clock = field(default_factory=SystemClock)
    _noted: NodeRecord | None = None
    _kept: dict[str, _ClaimDaemon] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def begin(self, wanted: Iterable[DaemonSpec]) -> None:
        """Take up daemons of an earlier process, and end those that nobody wants. What fails is told."""
        self._noted = await beside(NodeRecord, self.record, self.driver, boot=self.boot, report=self.report)
        specs = {spec.folder: spec for spec in wanted}
        for left in self._noted.daemons:
            if left.folder not in specs:
                await self._tried(left, self.down([left]))
        for spec in specs.values():
            await self._tried(spec, self._begin(spec))

    async def up(self, specs: Sequence[DaemonSpec]) -> None:
        """Return once all serve with their limits in force. Raises HostError for the first that does not."""
        for spec in specs:
            problem = socket_problem(f"{spec.subject} gets no MPS control daemon: ", spec, _SHORTER)
            if problem is not None:
                raise HostError(problem.what, problem.expected, problem.remedy)
            kept = self._kept.get(spec.folder)
            if kept is None or kept.daemon.spec != spec:
                await self._stop(spec)
                await self._begin(spec)
        for spec in specs:
            await self._serves(self._kept[spec.folder].daemon)

    async def down(self, specs: Sequence[DaemonSpec]) -> None:
        """End them, with their folders, and give their GPUs their former compute mode. Raises HostError."""
        for spec in specs:
            await self._stop(spec)
        for spec in specs:
            await self._give_back(spec)
        for root in {spec.root for spec in specs}:
            await beside(folders.remove_root, root)

    async def close(self) -> None:
        """Watch them no longer; they go on."""
        kept, self._kept = list(self._kept.values()), {}
        await end(*(one.task for one in kept))

    async def _begin(self, spec: DaemonSpec) -> None:
        await beside(folders.prepare_shm, spec.root, mounted=self.shared_memory)
        daemon = self._made(spec)
        self._kept[spec.folder] = _ClaimDaemon(daemon, asyncio.create_task(daemon.run(), name=f"mps {spec.subject}"))

    async def _stop(self, spec: DaemonSpec) -> None:
        """By the object that may still be bringing it up in a thread."""
        kept = self._kept.pop(spec.folder, None)
        if kept is not None:
            await end(kept.task)
        daemon = kept.daemon if kept is not None else self._made(spec)
        await daemon.stop(restore=False)

    def _made(self, spec: DaemonSpec) -> ControlDaemon:
        assert self._noted is not None, "daemons are taken up first"
        return ControlDaemon(
            spec, driver=self.driver, record=self._noted, report=self.report, clock=self.clock, changed=self._news.set
        )

    async def _serves(self, daemon: ControlDaemon) -> None:
        while not daemon.serves:
            if daemon.problem is not None:
                raise daemon.problem
            self._news.clear()
            await self._news.wait()

    async def _give_back(self, spec: DaemonSpec) -> None:
        """A GPU that the driver does not know has lost its mode, or gets it back when it is there again."""
        assert self._noted is not None
        for gpu in spec.gpus:
            try:
                await beside(self._noted.restore, (gpu,))
            except SmiError as problem:
                if problem.code not in GONE:
                    raise

    async def _tried(self, spec: DaemonSpec, work: Awaitable[None]) -> None:
        complaint = Complaint(self.report, reason="MpsFailed", subject=spec.subject)
        try:
            await work
        except HostError as problem:
            complaint.of(problem)
