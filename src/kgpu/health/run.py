"""The health role's loop over injected ports: events, kernel log and readings in; verdicts, condition, Events out.

Promises: what speaks against a GPU is written down before it is acted on, so that a kill at any moment loses and
repeats nothing; nothing that hangs or fails (disk, API server, kernel log, driver) keeps the others waiting, and each
is told; the verdict file is written anew several times before it would count as stale. Times are counted from the boot,
so that a clock that is set forward or back changes no verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.boot import boot_id, uptime
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError, HwError, KubeError, UserError
from kgpu.base.service import StateSink, ignore_state, running
from kgpu.base.threads import beside
from kgpu.base.waits import woken
from kgpu.formats.gpu_report import GpuReport
from kgpu.health.config import HealthConfig
from kgpu.health.history import HealthHistory, Remembered
from kgpu.health.keeper import HealthKeeper
from kgpu.health.keys import KEYS
from kgpu.health.klog import LogEvent, parse_record_event
from kgpu.health.kmsg import KernelLog, age
from kgpu.health.model import RememberedGpu
from kgpu.health.node import NodeHealth
from kgpu.health.publish import ReportWriter, gpu_verdict, report_of
from kgpu.health.readings import by_gpu
from kgpu.hw.follow import follow_events
from kgpu.hw.port import DriverReleasedError, HardwareEvent, Reader
from kgpu.hw.verdicts import GpuVerdict, VerdictFile

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
"""Seconds between two readings of everything when nothing happens."""
PAUSE_SECONDS: Final = 0.2
"""The least seconds between two looks."""
HEARTBEAT_SECONDS: Final = 300.0
ORDER_SECONDS: Final = 0.5
CLOCK_SECONDS: Final = 5.0
"""A wall clock that differs by more seconds than this was set."""
MAX_WAITING: Final = 4096
RETRY: Final = BackoffPolicy(first=1.0, cap=60.0, factor=2.0, jitter=0.3, healthy_after=60.0)

Input: TypeAlias = "HardwareEvent | LogEvent"


class OrderNews(Protocol):
    """The operator's orders for this node's GPUs; ``changed`` waits for another than that of revision ``after``."""

    async def changed(self, after: int) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthContext:
    """Everything that the health role gets from outside.

    ``kernel_log()`` opens the kernel log and raises HostError where there is none; None: it is not to be read.
    ``config()`` is what is in force now. ``orders``: whoever carries them out waits for a verdict, so a change of them
    asks for a look; None: there are none. ``history`` None: nothing is remembered. ``on_state(ready, reason)`` hears
    how the role is; ``wall`` is seconds since 1970.
    """

    reader: Reader
    verdicts: VerdictFile
    report: AdviceSink
    kernel_log: Callable[[], KernelLog] | None = None
    history: HealthHistory | None = None
    reports: ReportWriter | None = None
    orders: OrderNews | None = None
    config: Callable[[], HealthConfig] = HealthConfig
    node: str = ""
    clock: Clock = field(default_factory=SystemClock)
    wall: Callable[[], float] = time.time
    uptime: Callable[[], float] = uptime
    boot: str = field(default_factory=boot_id)
    look_seconds: float = LOOK_SECONDS
    on_state: StateSink = ignore_state


async def run(ctx: HealthContext) -> None:
    """Judge until cancelled."""
    await HealthWatch(ctx).run()


class HealthWatch:
    """One node's health. ``rows`` is what the verdict file says."""

    def __init__(self, ctx: HealthContext) -> None:
        self._ctx = ctx
        self._node = NodeHealth(ctx.config())
        self._waiting: deque[tuple[float, Input]] = deque()
        self._taken = asyncio.Event()
        self._dropped = 0
        self._sequence = -1
        self._wake = asyncio.Event()
        self._keeper = HealthKeeper(
            ctx.history, self._node, boot=ctx.boot, clock=ctx.clock, report=ctx.report, problems=self,
            recalled=self._wake.set,
        )  # fmt: skip
        self._began = 0.0  # when the boot was
        self._shown: GpuReport | None = None
        self._shown_changed = asyncio.Event()
        self._problems: dict[str, str] = {}
        self._released = ""
        self.rows: tuple[GpuVerdict, ...] = ()

    async def run(self) -> None:
        """Judge, save and report until cancelled."""
        await self._remember()
        events = follow_events(self._ctx.reader, self._hear, clock=self._ctx.clock)
        beside_it = running(
            events=events, kernel_log=self._follow_log(), orders=self._follow_orders(), node=self._tell_node(),
            operations=self._follow_operations(),
        )  # fmt: skip
        try:
            async with beside_it as tasks:
                await self._keep_looking(tasks)
        finally:
            await self._finish()

    async def _keep_looking(self, beside_it: Iterable[asyncio.Task[None]]) -> None:
        while True:
            self._wake.clear()
            await self.look()
            settle = self._node.config.settle + 0.1
            pause = min(self._ctx.look_seconds, settle) if self._is_fresh() else self._ctx.look_seconds
            await woken(self._wake, pause, clock=self._ctx.clock, beside=beside_it)
            await self._ctx.clock.sleep(PAUSE_SECONDS)

    def _is_fresh(self) -> bool:
        """Whether an Xid is so new that the driver may still say something about it."""
        since = self._now() - self._node.config.settle - 1.0
        return any(event.last >= since for memory in self._node.memories.values() for event in memory.events)

    # --- one look ---

    async def look(self) -> None:
        """Read the driver, judge, save, report."""
        node, now = self._node, self._now
        node.config = self._ctx.config()
        fault = None
        self._released = ""
        try:
            inventory = await self._ctx.reader.inventory()
            values = by_gpu(await self._readings())
        except DriverReleasedError as released:  # the verdicts stay as they are, and the log is still read
            self._released = released.what
        except HwError as error:
            self.trouble("driver", error, tell=False)
            fault = error.fault
        else:
            self.well("driver")
            node.inventory(inventory, values, now())
        self._take_in()
        verdicts = node.judge(now())
        pci = {gpu.uuid: gpu.pci_bus_id for gpu in node.gpus.values()}
        self.rows = tuple(
            gpu_verdict(
                replace(verdict, since=self._shown_time(verdict.since)),
                node.memories[name],
                pci=pci.get(name, ""),
            )
            for name, verdict in verdicts.items()
        )
        advice = self._take_notes()
        await self._save(force=bool(self._keeper.unsaved))
        await self._write()
        for record in advice:
            self._ctx.report(record)
        unreadable = self._problems.get("driver", "")
        rows = tuple(zip(self.rows, verdicts.values(), strict=True))
        self._show(report_of(rows, unreadable=unreadable, fault=fault, boot=self._ctx.boot))
        self._ctx.on_state(*self._state())

    def _take_in(self) -> None:
        """Apply the waiting events and log lines."""
        while self._waiting:
            at, news = self._waiting.popleft()
            if isinstance(news, HardwareEvent):
                self._node.event(news, at)
            else:
                self._node.line(news, at)
        self._taken.set()
        if self._dropped:
            self._ctx.report(_overrun(self._dropped))
            self._dropped = 0

    def _take_notes(self) -> list[Advice]:
        """Return the advice to report; new notes wait for the next save."""
        notes, advice = self._node.take()
        self._keeper.unsaved += [replace(note, at=self._shown_time(note.at)) for note in notes]
        return advice

    async def _finish(self) -> None:
        """Write down all that was heard: the kernel log's lines up to ``_sequence`` are not read again."""
        self._take_in()
        for advice in self._take_notes():
            self._ctx.report(advice)
        await self._keeper.finish(began=self._began, sequence=lambda: self._sequence)

    async def _save(self, *, force: bool) -> None:
        await self._keeper.save(began=self._began, sequence=lambda: self._sequence, force=force)

    async def _readings(self) -> Any:
        try:
            return await self._ctx.reader.readings(KEYS)
        except DriverReleasedError:
            raise
        except HwError:
            return ()  # the inventory has the findings that matter

    async def _write(self) -> None:
        problems = tuple(f"{what}: {why}" for what, why in self._problems.items() if what != "verdicts")
        try:
            await beside(self._ctx.verdicts.write, self.rows, node=self._ctx.node, problems=problems)
        except HostError as error:
            self.trouble("verdicts", error)
        else:
            self.well("verdicts")

    def _state(self) -> tuple[bool, str]:
        bad = sum(row.withdraws for row in self.rows)
        said = f"{bad} of {len(self.rows)} GPUs unhealthy" if bad else f"{len(self.rows)} GPUs"
        problems = "; ".join(
            [*(f"{what}: {why}" for what, why in self._problems.items()), *filter(None, (self._released,))]
        )
        if "driver" in self._problems and not self._node.gpus:
            return False, problems
        return True, f"{said}; {problems}" if problems else said

    # --- inputs ---

    def _hear(self, event: HardwareEvent) -> None:
        if len(self._waiting) < 2 * MAX_WAITING:
            self._waiting.append((self._now(), event))
        else:
            self._dropped += 1
        self._wake.set()

    async def _follow_log(self) -> None:
        backoff = Backoff(RETRY)
        opened = self._ctx.kernel_log
        while opened is not None:
            try:
                async for batch in opened().follow(self._sequence):
                    self.well("kernel log")
                    backoff.reset()
                    lines = [(self._now() - age(record), parse_record_event(record)) for record in batch.records]
                    while self._waiting and len(self._waiting) + len(lines) > MAX_WAITING:
                        self._taken.clear()
                        self._wake.set()
                        await self._taken.wait()
                    # Without an await between them: what is saved has both or neither.
                    self._waiting.extend((at, line) for at, line in lines if line is not None)
                    self._sequence = batch.sequence
                    if batch.missed:
                        self._ctx.report(_missed(batch.missed))
                    if any(line is not None for _, line in lines):
                        self._wake.set()
            except HostError as error:
                self.trouble("kernel log", error)
            await self._ctx.clock.sleep(backoff.next_delay())
        await asyncio.Event().wait()

    async def _follow_orders(self) -> None:
        history = self._ctx.history
        if history is None:
            await asyncio.Event().wait()
            return
        mark: int | None = None
        while True:
            now = history.order_mark()
            if now != mark and self._keeper.loaded:  # what was remembered must not undo them
                with contextlib.suppress(HostError):
                    for number, order in await beside(history.orders):
                        if number not in self._keeper.done:
                            ahead = self._ctx.wall() - self._now()
                            given = min(order.at - ahead, self._now())
                            self._node.order(
                                replace(order, at=given, until=order.until - ahead if order.until else 0.0)
                            )
                            self._keeper.done.append(number)
                            self._wake.set()
                    mark = now
            await self._ctx.clock.sleep(ORDER_SECONDS)

    async def _follow_operations(self) -> None:
        orders, revision = self._ctx.orders, 0
        while orders is not None:
            revision = await orders.changed(revision)
            self._wake.set()
        await asyncio.Event().wait()

    # --- time ---

    def _now(self) -> float:
        """Seconds since 1970, by the clock as it was when the boot was first seen."""
        return self._began + self._ctx.uptime()

    def _shown_time(self, at: float) -> float:
        """The wall-clock time to show for a time of the loop's, corrected where the clock was set since then."""
        ahead = self._ctx.wall() - self._now()
        return float(round(at + ahead)) if at and abs(ahead) > CLOCK_SECONDS else at

    # --- memory ---

    async def _remember(self) -> None:
        remembered = await self._keeper.load() or Remembered()
        self._node.memories = dict(remembered.memories)
        if remembered.boot == self._ctx.boot != "" and remembered.began:
            self._began, self._sequence = remembered.began, remembered.sequence
            self._node.booted_at = self._began
        else:
            # A clock that is not set yet at the start of the machine may be years back.
            latest = max((_latest(memory) for memory in remembered.memories.values()), default=0.0)
            self._began = max(self._ctx.wall() - self._ctx.uptime(), latest + 1.0)
            self._node.boot(self._began)

    # --- what is told ---

    def _show(self, shown: GpuReport) -> None:
        if shown != self._shown:
            self._shown = shown
            self._shown_changed.set()

    async def _tell_node(self) -> None:
        """Keep the Node's condition up to date."""
        backoff = Backoff(RETRY)
        writer = self._ctx.reports
        if writer is None:
            await asyncio.Event().wait()
            return
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._shown_changed.wait()
            self._shown_changed.clear()
            shown = self._shown
            if shown is None:
                continue
            try:
                await writer.write(shown)
            except KubeError as error:
                self.trouble("condition", error, tell=False)
                await self._ctx.clock.sleep(backoff.next_delay())
                self._shown_changed.set()
            else:
                self.well("condition")
                backoff.reset()
                await self._ctx.clock.sleep(PAUSE_SECONDS)

    def trouble(self, what: str, error: UserError, *, tell: bool = True) -> None:
        """Report that something fails, once until it works again."""
        if self._problems.get(what) != error.what:
            log.warning("%s: %s", what, error.one_line())
            if tell:
                self._ctx.report(Advice.from_error(error, reason=_REASONS[what]))
        self._problems[what] = error.what

    def well(self, what: str) -> None:
        """Report that it works."""
        self._problems.pop(what, None)


def _latest(memory: RememberedGpu) -> float:
    """The latest time in a memory."""
    return max(memory.read_at, memory.accepted_at, memory.booted_at, *(one.last for one in memory.events), 0.0)


_REASONS: Final[Mapping[str, str]] = {
    "kernel log": "KernelLogUnreadable",
    "history": "HealthHistoryUnusable",
    "verdicts": "VerdictsNotWritten",
}


def _missed(number: int) -> Advice:
    return Advice(
        subject="",
        what=f"{number} lines of the kernel log were overwritten before they could be read",
        why="more was logged at once than the kernel keeps",
        severity=Severity.WARNING,
        remedy="make its buffer larger (log_buf_len=16M on the kernel's command line); see what floods it with `dmesg`",
        reason="KernelLogOverrun",
    )


def _overrun(number: int) -> Advice:
    return Advice(
        subject="",
        what=f"{number} events of the driver were dropped",
        why="more came at once than are kept until the GPUs have been read",
        severity=Severity.WARNING,
        remedy="look at the kernel log, which has the same Xids: `dmesg | kgpu xid`",
        reason="DriverEventsOverrun",
    )
