"""From one tick to the next: readings in, families out, with the state between them.

The state is the previous reading (for rates), Xids and clock events, the series budget, label sets as text, and
advice already reported. Promises: ``families`` works whatever happened to the readings; without a driver it still
shows the last known GPUs, that they do not answer, and their Xids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kgpu.base.advice import Advice
from kgpu.base.service import StandingAdvice
from kgpu.exporter import computed, self_metrics
from kgpu.exporter.budget import SeriesBudget
from kgpu.exporter.counters import CountedMetric
from kgpu.exporter.facts import answered, failures, gather
from kgpu.exporter.model import Family, MetricKind, PlanInput, Tick, Unit, Users, VendorFamilies
from kgpu.exporter.plan import PlanMemory, plan
from kgpu.exporter.self_metrics import ConfigState, ExporterFigures, ExporterStatus
from kgpu.exporter.settings import ExporterSettings
from kgpu.exporter.windows import CLOCK_COUNT, CLOCK_TOTAL, ClockWindow, Xids
from kgpu.formats.names import NVIDIA
from kgpu.hw.port import EventKind, HardwareEvent, Inventory, Reading
from kgpu.hw.verdicts import GpuVerdict

CLOCK_REASONS = "clock_event_reasons"
COMPUTED_FROM = {CLOCK_COUNT: CLOCK_REASONS, CLOCK_TOTAL: CLOCK_REASONS, computed.P2P: computed.P2P_READING}
"""The reading that a computed metric is made from, where no row has it."""
LAST_XID = "last_xid"
NOTHING = Inventory(vendor=NVIDIA, driver_version="")


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """One tick's families and new advice."""

    families: tuple[Family, ...]
    advice: tuple[Advice, ...]


class VendorPage(Protocol):
    """What the page has besides on nodes with one vendor's GPUs."""

    @property
    def port(self) -> int | None:
        """Where the vendor's own configuration wants the page; None: it does not say."""
        ...

    def too_late(self) -> Advice:
        """That another port is listened on already."""
        ...

    def on_change(self, changed: Callable[[], object]) -> None:
        """Call this when the families would be others."""
        ...

    def plan(self, look: PlanInput, settings: ExporterSettings, verdicts: Iterable[GpuVerdict]) -> VendorFamilies:
        """The families of one tick."""
        ...

    def followed(self) -> tuple[ConfigState, ...]:
        """The state of the vendor's configuration."""
        ...

    async def run(self) -> None:
        """Follow that configuration until cancelled."""
        ...


class Ticks:
    """One exporter's state. ``at`` is in seconds of a monotonic clock."""

    def __init__(
        self,
        settings: ExporterSettings,
        *,
        xid_window: float = 300.0,
        clock_window: float = 300.0,
        xid_text: Callable[[int], str] | None = None,
    ) -> None:
        self._settings = settings
        self.keys = _keys(settings.counters)
        """The readings that the metrics need."""
        self._memory = PlanMemory()
        self._figures = ExporterFigures()
        self._budget = SeriesBudget(settings.series_limit)
        self._xids = Xids(xid_window)
        self._clocks = ClockWindow(clock_window)
        self._xid_text = xid_text
        self._standing = StandingAdvice()
        self._before: Tick | None = None
        self._now = Tick()
        self._verdicts: tuple[GpuVerdict, ...] = ()
        self.page: VendorPage | None = None
        """What the GPUs' vendor has besides."""
        self.inventory = NOTHING
        self.answers = False

    def use(self, counters: tuple[CountedMetric, ...]) -> None:
        """Export these metrics from now on; the state stays."""
        self._settings = replace(self._settings, counters=counters)
        self.keys = _keys(counters)

    def hear(self, at: float, event: HardwareEvent) -> bool:
        """Take one event of the driver; True for one that changes the metrics."""
        if event.kind is not EventKind.XID or event.uuid is None:
            return False
        self._xids.add(at, Unit(event.uuid, event.gpu_instance), event.code)
        return True

    def judged(self, verdicts: Iterable[GpuVerdict] | None) -> None:
        """Take the health role's verdicts and counts of Xids; None when there are no verdicts any more."""
        self._verdicts = tuple(verdicts or ())
        counts = {
            (Unit(verdict.uuid, row.gpu_instance), str(row.code)): row.count
            for verdict in self._verdicts
            for row in verdict.xids
        }
        self._xids.recall(None if verdicts is None else counts)

    def read(self, at: float, inventory: Inventory, readings: Sequence[Reading]) -> None:
        """Take one reading of everything."""
        now = Tick(
            at=at,
            values=gather(inventory, readings),
            failures=failures(inventory, readings),
            answered=answered(readings),
        )
        self._before = self._now if self.answers else None
        self._now, self.inventory, self.answers = now, inventory, True
        for unit, values in now.values.items():
            reasons = values.get(CLOCK_REASONS)
            if isinstance(reasons, int | float):
                self._clocks.add(at, unit, int(reasons))

    def silent(self, at: float) -> None:
        """Nothing could be read: drop the previous readings."""
        self._now, self._before, self.answers = Tick(at=at), None, False

    def families(self, at: float, users: Users, *, status: ExporterStatus | None = None) -> TickOutcome:
        """Make the families of the next scrapes."""
        look = PlanInput(
            inventory=self.inventory,
            now=self._with_xids(),
            before=self._before,
            answers=self.answers,
            holdings=users.holdings,
            pods=users.pods,
            claimed=users.claimed,
            shares=users.shares,
            jobs=users.jobs,
            computed={
                **self._xids.samples(at, self._units()),
                **self._clocks.samples(at),
                computed.HEALTH: computed.health(self._verdicts),
                computed.P2P: computed.p2p(self.inventory, self._now.values),
            },
            xid_texts={code: self._xid_text(code) for code in self._xids.last.values()} if self._xid_text else {},
        )
        settings = replace(self._settings, without=self._budget.without)
        own = self.page.plan(look, settings, self._verdicts) if self.page is not None else VendorFamilies()
        planned = plan(look, settings, self._memory, own)
        self._figures.count(planned)
        metrics = sum(counter.kind is not MetricKind.LABEL for counter in settings.counters) + len(own.families)
        withheld = self._budget.observe(at, planned.label_sets, metrics)
        families = list(planned.families)
        if settings.own_metrics:
            texts = self._memory.texts
            families += self._figures.families(texts)
            families += self_metrics.verdict_families(self._verdicts, look, settings, texts)
            families += self_metrics.users_families(users, texts)
            families += self_metrics.status_families(status, texts) if status is not None else ()
        return TickOutcome(tuple(families), (*self._standing.news(planned.advice), *withheld))

    def _units(self) -> list[Unit]:
        """The units that an Xid can be of: each GPU and each of its instances."""
        units: dict[Unit, None] = {}
        for gpu in self.inventory.accelerators:
            units[Unit(gpu.uuid)] = None
            if gpu.mig_enabled:
                units |= dict.fromkeys(Unit(gpu.uuid, part.gpu_instance) for part in gpu.partitions)
        return list(units)

    def _with_xids(self) -> Tick:
        if not self._xids.last:
            return self._now
        values = dict(self._now.values)
        for unit, code in self._xids.last.items():
            values[unit] = {**values.get(unit, {}), LAST_XID: code}
        return replace(self._now, values=values)


def _keys(counters: Iterable[CountedMetric]) -> frozenset[str]:
    fields = [counter.spelled.field for counter in counters]
    keys = {source.reading for field in fields for source in field.sources}
    return frozenset(keys | {COMPUTED_FROM[field.name] for field in fields if field.name in COMPUTED_FROM})
