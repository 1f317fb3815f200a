"""The exporter's plan, pure: an inventory, readings and who holds what in; families of samples out.

Promises: a value that is missing, failed or is no number loses its own series only, and is counted; a lost GPU loses
its own series, and ``kgpu_gpu_up`` says so; no two series of a metric have the same labels; output has a stable order,
so that two scrapes of the same state are the same text.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.exporter import self_metrics
from kgpu.exporter.counters import CountedMetric
from kgpu.exporter.facts import readable
from kgpu.exporter.fields import FieldScope, render_value
from kgpu.exporter.holders import holders
from kgpu.exporter.labels import Pairs, Texts
from kgpu.exporter.model import (
    ComputedSample,
    Family,
    MetricKind,
    PlanInput,
    Planned,
    SeriesSample,
    Unit,
    Value,
    VendorFamilies,
)
from kgpu.exporter.settings import ExporterSettings
from kgpu.exporter.targets import SeriesTarget, Variant, series_labels, targets

UNKNOWN_XID: Final = "Unknown Error"
ABSENT: Final = "absent"
UNREADABLE: Final = "unreadable"
NOT_A_NUMBER: Final = "not-a-number"
BLANK: Final = "blank"
_XID: Final = "last_xid"
_NOTHING: Final[Mapping[str, Value]] = {}
NO_VENDOR_FAMILIES: Final = VendorFamilies()
_NO_FAILURES: Final[Mapping[str, str]] = {}
_SHARED: Final = ("utilization_percent", "memory_used_mib")
"""Readings that processes have too: on a shared device each pod's series has its own."""


@dataclass(slots=True)
class MissingValues:
    """Counts of values without a series in one tick, by (metric, reason)."""

    errors: Tally[tuple[str, str]] = field(default_factory=Tally)
    absent: Tally[tuple[str, str]] = field(default_factory=Tally)


def plan(
    look: PlanInput,
    settings: ExporterSettings,
    memory: PlanMemory | None = None,
    vendor: VendorFamilies = NO_VENDOR_FAMILIES,
) -> Planned:
    """Plan the content of one scrape. ``memory`` kept between calls saves making the same labels again.

    The ``vendor``'s families are the first that the limit of series leaves out.
    """
    memory = memory if memory is not None else PlanMemory()
    texts = memory.texts
    rows = memory.rows(look, settings)
    missing = MissingValues(errors=Tally(vendor.errors))
    families = [
        _family(counter, memory.by_scope[counter.spelled.field.scope], look, missing)
        for counter in settings.counters
        if counter.kind is not MetricKind.LABEL
    ]
    families += vendor.families
    about: list[Family] = []
    if settings.own_metrics:
        about = self_metrics.device_families([row.target for row in rows], look, settings, texts)
        about.append(self_metrics.absent_family(missing.absent, texts))
    # Metrics about missing values are never left out, and do not count.
    wanted = sum(len(family.samples) for family in families)
    kept, series, advice = _limited(families, settings.series_limit)
    if settings.own_metrics:
        about.append(self_metrics.series_family(series, wanted - series, texts))
    kept += about
    sets = tuple(pairs for row in rows for pairs in row.sets)
    return Planned(families=tuple(kept), errors=missing.errors, series=series, label_sets=sets, advice=advice)


class TargetRow:
    """One target with its readings, and the labels of its variants as text."""

    __slots__ = ("_texts", "fixed", "now", "parent", "sets", "target", "variants")

    def __init__(self, target: SeriesTarget, texts: Texts) -> None:
        self.target = target
        self.fixed: Pairs | None = None
        self.sets: tuple[Pairs, ...] = ()
        self.variants: list[tuple[Variant, str]] = []
        self._texts = texts

    def read(self, look: PlanInput, label_fields: Iterable[CountedMetric]) -> None:
        """Take the values of one tick."""
        self.now = _of(look, self.target.unit)
        self.parent = self.now if self.target.unit.gpu_instance is None else _of(look, Unit(self.target.unit.uuid))
        fixed = _fixed(label_fields, self.now.now, self.parent.now)
        if fixed != self.fixed:
            self.fixed = fixed
            variants = self.target.variants
            self.sets = tuple(series_labels(self.target, fixed, variant) for variant in variants)
            self.variants = [
                (variant, self._texts.text(pairs)) for variant, pairs in zip(variants, self.sets, strict=True)
            ]

    def text(self, variant: Variant, ready: str, more: Pairs) -> str:
        """The labels of one series as text; ``ready`` is the variant's without ``more``."""
        return self._texts.text(series_labels(self.target, self.fixed or (), variant, more)) if more else ready


class PlanMemory:
    """A cache of what stays the same from tick to tick while devices, users and settings do: rows, labels as text."""

    def __init__(self) -> None:
        self.texts = Texts()
        self._made_from: tuple[object, ...] = ()
        self._rows: list[TargetRow] = []
        self.by_scope: dict[FieldScope, list[TargetRow]] = {}

    def rows(self, look: PlanInput, settings: ExporterSettings) -> list[TargetRow]:
        """The rows with the values of one tick."""
        others = [unit for unit in look.now.values if unit.link is not None or unit.cpu is not None]
        made_from = (look.inventory, look.holdings, look.claimed, look.pods, look.jobs, settings, others)
        if made_from != self._made_from:
            held = holders(look.inventory, look.holdings or (), look.claimed, settings.resources)
            self._rows = [TargetRow(target, self.texts) for target in targets(look, held, settings)]
            self.by_scope = {scope: [row for row in self._rows if scope in row.target.scopes] for scope in FieldScope}
            self._made_from = made_from
        label_fields = [counter for counter in settings.counters if counter.kind is MetricKind.LABEL]
        for row in self._rows:
            row.read(look, label_fields)
        return self._rows


@dataclass(frozen=True, slots=True)
class UnitValues:
    """One unit's readings now and before, with the seconds between (0 when there is nothing before)."""

    now: Mapping[str, Value]
    failures: Mapping[str, str]
    before: Mapping[str, Value]
    seconds: float


def _of(look: PlanInput, unit: Unit) -> UnitValues:
    before = look.before
    return UnitValues(
        look.now.values.get(unit, _NOTHING),
        look.now.failures.get(unit, _NO_FAILURES),
        before.values.get(unit, _NOTHING) if before else _NOTHING,
        look.now.at - before.at if before else 0.0,
    )


def _fixed(label_fields: Iterable[CountedMetric], *places: Mapping[str, Value]) -> Pairs:
    """Label fields of a target, by name; an instance has its GPU's where it has none of its own."""
    labels: list[tuple[str, str]] = []
    for counter in label_fields:
        readings = [source.reading for source in counter.spelled.field.sources]
        value = next((values[name] for values in places for name in readings if name in values), None)
        if value is not None:
            labels.append((counter.name, value if isinstance(value, str) else f"{value:.15g}"))
    return tuple(sorted(labels))


def _family(counter: CountedMetric, rows: Iterable[TargetRow], look: PlanInput, missing: MissingValues) -> Family:
    spelled = counter.spelled
    scope = spelled.field.scope
    reading = "" if spelled.field.computed else spelled.field.sources[0].reading
    own_values = bool(look.shares) and reading in _SHARED
    xid = reading == _XID
    samples: dict[str, str] = {}
    if spelled.field.computed:
        _made(spelled.field.name, rows, look, samples)
        return Family(counter.name, counter.kind, counter.help, _samples(samples))
    for row in rows:
        # Only with ``mig_copies`` does an instance have fields of the whole GPU.
        values = row.parent if scope is FieldScope.GPU else row.now
        value = _value(counter, values, missing, row.target, look)
        if value is None:
            continue
        own = own_values and row.target.own_values
        if not xid and not own:
            for _, ready in row.variants:
                samples.setdefault(ready, value)
            continue
        more: Pairs = (("err_code", value), ("err_msg", look.xid_texts.get(int(value), UNKNOWN_XID))) if xid else ()
        for variant, ready in row.variants:
            share = _share(counter, variant, row.target, look) if own else None
            samples.setdefault(row.text(variant, ready, more), value if share is None else share)
    return Family(counter.name, counter.kind, counter.help, _samples(samples))


def _value(
    counter: CountedMetric, values: UnitValues, missing: MissingValues, target: SeriesTarget, look: PlanInput
) -> str | None:
    """The metric's text, or None with the reason counted."""
    reason = ABSENT
    for source in counter.spelled.field.sources:
        failed = values.failures.get(source.reading)
        if failed is not None:
            reason = failed[:64] or "failed"
            continue
        value = values.now.get(source.reading)
        if value is None:
            continue
        try:
            if source.rate:
                value = _rate(float(value), values.before.get(source.reading), values.seconds)
            text = render_value(counter.spelled, value, source.factor)
        except (TypeError, ValueError, OverflowError):
            reason = NOT_A_NUMBER
            continue
        if text is not None:
            return text
        reason = BLANK
    if reason == ABSENT:
        # A GPU that is down has no values, and there is no Xid before the first one.
        gpu = target.gpu
        has = gpu is None or gpu.usable or readable(gpu, look)
        if values.now and counter.spelled.field.scope is not FieldScope.EITHER and has:
            # Of a GPU that does not answer facts are known, but not which fields it has.
            silent = gpu is not None and Unit(gpu.uuid) not in look.now.answered
            if silent:
                missing.errors[counter.name, UNREADABLE] += 1
            else:
                missing.absent[counter.name, ABSENT] += 1
    elif reason == BLANK:
        missing.absent[counter.name, BLANK] += 1
    else:
        missing.errors[counter.name, reason] += 1
    return None


def _rate(value: float, before: Value | None, seconds: float) -> float:
    """Change per second; 0 for the first value, and after a reset of the counter."""
    if not isinstance(before, int | float) or seconds <= 0:
        return 0.0
    return max(0.0, value - before) / seconds


def _share(counter: CountedMetric, variant: Variant, target: SeriesTarget, look: PlanInput) -> str | None:
    """The value of one container's processes; 0 for an idle one, None for the device's own series."""
    source = counter.spelled.field.sources[0]
    if variant.holder is None:
        return None
    value = look.shares.get((target.unit, variant.holder.key), {}).get(source.reading, 0.0)
    return render_value(counter.spelled, value, source.factor)


def _made(name: str, rows: Iterable[TargetRow], look: PlanInput, samples: dict[str, str]) -> None:
    by_unit: dict[Unit, list[ComputedSample]] = {}
    for made in look.computed.get(name, ()):
        by_unit.setdefault(made.unit, []).append(made)
    for row in rows:
        for made in by_unit.get(row.target.unit, ()):
            for variant, ready in row.variants:
                samples.setdefault(row.text(variant, ready, made.labels), self_metrics.number(made.value))


def _samples(samples: Mapping[str, str]) -> tuple[SeriesSample, ...]:
    return tuple(map(SeriesSample._make, samples.items()))


def _limited(families: list[Family], limit: int) -> tuple[list[Family], int, tuple[Advice, ...]]:
    """The families that fit the limit, whole ones only, and their series; a warning names those left out."""
    kept: list[Family] = []
    out: list[str] = []
    series = 0
    for family in families:
        if series + len(family.samples) > limit:
            out.append(family.name)
            continue
        kept.append(family)
        series += len(family.samples)
    if not out:
        return kept, series, ()
    advice = Advice(
        subject="",
        what=f"{len(out)} metrics are left out",
        why=f"one scrape would have more than {limit} series",
        evidence=(f"left out: {', '.join(out)[:400]}",),
        severity=Severity.WARNING,
        remedy="take fields out of the counters file, show pods by --pods join, or raise --series-limit",
        reason="SeriesLimit",
    )
    return kept, series, (advice,)
