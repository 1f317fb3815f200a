"""The loop: what is to be shared, from configuration and hardware, and the daemons for it.

Promises: a daemon that need not change is not touched; a daemon that fails takes no other along; when the loop ends,
nothing of MPS is left on the node but what could not be undone, which is noted for the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.advice import AdviceSink
from kgpu.base.boot import boot_id
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError, HwError, UserError, first_of_several
from kgpu.base.service import Complaint, StandingAdvice, StateSink, end, first_end, ignore_state, running
from kgpu.base.threads import beside
from kgpu.base.waits import first_of
from kgpu.formats.config_choice import REFUSED, ConfigText
from kgpu.hw.follow import follow_events
from kgpu.hw.port import DriverReleasedError, HardwareEvent, Inventory, Reader
from kgpu.mps import folders
from kgpu.mps.daemon import ControlDaemon
from kgpu.mps.driver import MpsDriver
from kgpu.mps.model import IMPOSSIBLE, DaemonSpec, MpsOrder, MpsPlan
from kgpu.mps.plan import plan, stays
from kgpu.mps.record import NodeRecord

REREAD_SECONDS: Final = 10.0
LOOK_PAUSE_SECONDS: Final = 0.25
"""The least time between readings that events ask for."""


class MpsConfigSource(Protocol):
    """The text of the device plugin's configuration, level-triggered."""

    async def next(self, after: ConfigText | None) -> ConfigText:
        """The configuration in force if it differs from ``after`` (None: in any case), else wait until it does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsContext:
    """Everything that comes from outside.

    ``order(config, inventory)`` is what the device plugin offers as shared by MPS; it raises UserError for a
    configuration that can't be used. ``record`` is the file of what has to be given back. ``shared_memory``: daemons
    and clients need a tmpfs of their own, as with a real driver. ``on_state(ready, reason, why)`` hears whether all
    that is to be shared is served; ``why`` is ``MpsImpossible``, ``MpsDaemonFailed`` or ``REFUSED``.
    """

    reader: Reader
    config: MpsConfigSource
    order: Callable[[ConfigText, Inventory], MpsOrder]
    driver: MpsDriver
    record: Path
    report: AdviceSink
    shared_memory: bool = True
    clock: Clock = field(default_factory=SystemClock)
    on_state: StateSink = ignore_state
    reread_seconds: float = REREAD_SECONDS
    boot: str = field(default_factory=boot_id)


async def run(ctx: MpsContext) -> None:
    """Serve until cancelled; then end the daemons."""
    await _Mps(ctx).run()


@dataclass(slots=True)
class _KeptDaemon:
    daemon: ControlDaemon
    task: asyncio.Task[None]


class _Mps:
    def __init__(self, ctx: MpsContext) -> None:
        self._ctx = ctx
        self._record: NodeRecord | None = None
        self._daemons: dict[str, _KeptDaemon] = {}
        self._config: ConfigText | None = None
        self._applied: ConfigText | None = None
        self._plan = MpsPlan()
        self._problem: tuple[UserError, str] | None = None
        self._look = asyncio.Event()
        self._standing = StandingAdvice()
        self._complaints: dict[str, Complaint] = {}
        self._ready_at: str = ""
        self._busy = False

    async def run(self) -> None:
        ctx = self._ctx
        self._record = await beside(
            NodeRecord, ctx.record, ctx.driver, boot=ctx.boot, report=ctx.report
        )  # fmt: skip
        self._config = await ctx.config.next(None)
        events = follow_events(ctx.reader, self._hear, clock=ctx.clock, missed=self._look.set)
        try:
            async with running(mps_events=events, mps_config=self._follow_config(), mps_loop=self._loop()) as tasks:
                await first_end(tasks)
        finally:
            await self._sync(MpsPlan(root=self._plan.root), restore=True)

    def _hear(self, event: HardwareEvent) -> None:
        del event
        self._look.set()

    async def _follow_config(self) -> None:
        while True:
            self._config = await self._ctx.config.next(self._config)
            self._look.set()

    async def _loop(self) -> None:
        while True:
            await self._once()
            await first_of(self._look.wait(), self._ctx.clock.sleep(self._ctx.reread_seconds))
            await self._ctx.clock.sleep(LOOK_PAUSE_SECONDS)

    async def _once(self) -> None:
        """Read the hardware and bring about what the configuration asks for."""
        self._look.clear()
        config = self._config
        assert config is not None
        try:
            inventory = await self._ctx.reader.inventory()
        except DriverReleasedError as released:
            # Whoever has ordered that needs the driver for itself: a server would hold it. Clients are gone by then.
            await self._sync(MpsPlan(root=self._plan.root), restore=False)
            self._fail(released, "")
            return
        except HwError as problem:  # what serves goes on: a driver that can't be asked may serve its clients
            self._fail(problem, "")
            return
        try:
            order = self._ctx.order(config, inventory)
        except UserError as problem:
            self._fail(problem, REFUSED)
            return
        self._problem = None
        made = plan(order)
        for advice in self._standing.news(made.advice):
            self._ctx.report(advice)
        await self._sync(self._settled(made, config, inventory), restore=True)
        self._applied = config

    def _settled(self, made: MpsPlan, config: ConfigText, inventory: Inventory) -> MpsPlan:
        """The plan, with daemons that go on although the hardware is otherwise than when they were started."""
        if config != self._applied or made.root != self._plan.root:
            return made
        wanted = {spec.resource: spec for spec in made.daemons}
        present = {gpu.uuid for gpu in inventory.accelerators if gpu.usable}
        for resource, kept in self._daemons.items():
            if stays(kept.daemon.spec, wanted.get(resource), present):
                wanted[resource] = kept.daemon.spec
        return MpsPlan(root=made.root, daemons=tuple(wanted[name] for name in sorted(wanted)), refused=made.refused)

    def _fail(self, problem: UserError, why: str) -> None:
        self._problem = (problem, why)
        self._changed()

    # --- daemons ---

    async def _sync(self, wanted: MpsPlan, *, restore: bool) -> None:
        specs = {spec.resource: spec for spec in wanted.daemons}
        assert self._record is not None
        roots = {self._plan.root, *(left.root for left in self._record.daemons)} - {""}
        self._plan, self._busy = wanted, True
        gone = [name for name, kept in self._daemons.items() if specs.get(name) != kept.daemon.spec]
        await asyncio.gather(*(self._end(name, restore=restore) for name in gone))
        await self._end_others(specs.values(), restore=restore)
        for root in roots - {spec.root for spec in specs.values()}:
            await self._tried(f"remove {root}", beside(folders.remove_root, root))
        shm = beside(folders.prepare_shm, wanted.root, mounted=self._ctx.shared_memory) if specs else None
        if shm is not None and await self._tried("shared memory", shm):
            for name in specs.keys() - self._daemons.keys():
                self._begin(specs[name])
        self._busy = False
        self._changed()

    def _make(self, spec: DaemonSpec) -> ControlDaemon:
        ctx = self._ctx
        assert self._record is not None
        return ControlDaemon(
            spec, driver=ctx.driver, record=self._record, report=ctx.report, clock=ctx.clock, changed=self._changed
        )

    def _begin(self, spec: DaemonSpec) -> None:
        daemon = self._make(spec)
        self._daemons[spec.resource] = _KeptDaemon(
            daemon, asyncio.create_task(daemon.run(), name=f"mps {spec.resource}")
        )

    async def _end(self, name: str, *, restore: bool) -> None:
        kept = self._daemons.pop(name)
        await end(kept.task)
        await self._stopped(kept.daemon, restore=restore)

    async def _end_others(self, specs: Iterable[DaemonSpec], *, restore: bool) -> None:
        """Take away what an earlier run has left and nobody wants now: daemons, then compute modes."""
        assert self._record is not None
        ours = {(spec.root, spec.resource) for spec in specs}
        ours |= {(kept.daemon.spec.root, kept.daemon.spec.resource) for kept in self._daemons.values()}
        for left in self._record.daemons:
            if (left.root, left.resource) not in ours:
                await self._stopped(self._make(left), restore=restore)
        used = {gpu for spec in specs for gpu in spec.gpus}
        if restore and (unused := self._record.modes.keys() - used):
            await self._tried("modes", beside(self._record.restore, sorted(unused)))

    async def _stopped(self, daemon: ControlDaemon, *, restore: bool) -> None:
        await self._tried(f"stop {daemon.spec.resource}", daemon.stop(restore=restore))

    async def _tried(self, what: str, work: Awaitable[None]) -> bool:
        """Do it; a failure is told once, and tried again at the next reading. True if it was done."""
        complaint = self._complaints.setdefault(what, Complaint(self._ctx.report, reason="MpsFailed"))
        try:
            await work
        except HostError as problem:
            complaint.of(problem)
            self._problem = (problem, "MpsDaemonFailed")
            return False
        complaint.over()
        return True

    # --- what is told ---

    def _changed(self) -> None:
        root, daemons = self._plan.root, [kept.daemon for kept in self._daemons.values()]
        ready = bool(daemons) and len(daemons) == len(self._plan.daemons) and all(one.serves for one in daemons)
        wanted = root if ready else ""
        if wanted != self._ready_at:
            with contextlib.suppress(HostError):  # the folder is gone, and the file with it
                folders.mark_ready(wanted or self._ready_at, ready=ready)
            self._ready_at = wanted
        self._ctx.on_state(*self._state(daemons, ready=ready))

    def _state(self, daemons: list[ControlDaemon], *, ready: bool) -> tuple[bool, UserError | str, str]:
        if self._problem is not None:
            return False, *self._problem
        if self._busy:
            return False, "changes its MPS control daemons", ""
        if self._plan.refused:
            return False, first_of_several([refusal.error for refusal in self._plan.refused]), IMPOSSIBLE
        failed = next((daemon for daemon in daemons if daemon.problem is not None), None)
        if failed is not None and failed.problem is not None:
            return False, failed.problem, "MpsDaemonFailed"
        if not self._plan.daemons:
            return True, "no GPU is shared by MPS", ""
        names = ", ".join(sorted(spec.resource for spec in self._plan.daemons))
        return (True, f"serves {names}", "") if ready else (False, f"waits for the MPS control daemon of {names}", "")
