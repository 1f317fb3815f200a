"""Families by a vendor's table, from one tick's readings. Pure but for cached label texts.

A GPU that is parted has a set of labels for each partition. Promises: a reading that is absent or failed costs its own
series only; no two series of a metric have the same labels.
"""

from __future__ import annotations

import functools
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.exporter.holders import Holder, holders
from kgpu.exporter.labels import Pairs, Texts
from kgpu.exporter.model import Family, MetricKind, PlanInput, PodFacts, SeriesSample, Unit, Value, VendorFamilies
from kgpu.exporter.self_metrics import number
from kgpu.exporter.settings import ExporterSettings, Pods
from kgpu.exporter.vendors.rows import PLACES, Of, VendorRow
from kgpu.hw.port import Accelerator

_NO_POD: Final = PodFacts()
_NOTHING: Final[Mapping[str, Value]] = {}
_NOBODY: Final[tuple[Holder | None, ...]] = (None,)
Made = Mapping[str, tuple[str, Sequence[SeriesSample]]]
"""Metrics that no reading gives: name to help and samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """What one GPU's or partition's labels are made from. ``number`` counts partitions as GPUs; ``said`` are its
    readings that are texts.
    """

    gpu: Accelerator
    number: int
    part: int
    driver: str
    hostname: str
    holder: Holder | None
    said: Mapping[str, str] = field(default_factory=dict)
    pod: PodFacts = _NO_POD
    job: str = ""

    @property
    def uuid(self) -> str:
        """The partition's, or that of the GPU."""
        return _uuid(self.gpu, self.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPart:
    """A GPU, or a partition of one, with its users and the labels of its series as text, a set for each user.

    ``number`` counts partitions as GPUs.
    """

    gpu: Accelerator
    part: int
    number: int
    users: tuple[Holder, ...]
    texts: tuple[str, ...]

    @property
    def uuid(self) -> str:
        """The partition's, or that of the GPU."""
        return _uuid(self.gpu, self.part)


def _uuid(gpu: Accelerator, part: int) -> str:
    return gpu.partitions[part].uuid if gpu.partitions else gpu.uuid


class FamilyTable:
    """Makes the families of one table; keeps label texts while what they are made from stays the same."""

    def __init__(self, rows: Sequence[VendorRow]) -> None:
        self._rows = rows
        self.texts = Texts()
        self._made_from: tuple[object, ...] = ()
        self._parts: tuple[LabelledPart, ...] = ()

    def parts(
        self, look: PlanInput, settings: ExporterSettings, labels: Callable[[Labelled], Pairs], by: object = None
    ) -> tuple[LabelledPart, ...]:
        """Every GPU and partition that is exported. ``by`` is what ``labels`` goes by besides."""
        said = tuple(_said(look, gpu) for gpu in look.inventory.accelerators)
        made_from = (look.inventory, look.holdings, look.claimed, look.pods, look.jobs, settings, by, said)
        if made_from != self._made_from:
            self._parts = tuple(_parts(look, settings, labels, self.texts))
            self._made_from = made_from
        return self._parts

    def plan(
        self,
        look: PlanInput,
        parts: Sequence[LabelledPart],
        *,
        made: Made | None = None,
        wants: Callable[[str], bool] = lambda field: True,  # noqa: ARG005
        prefix: str = "",
    ) -> VendorFamilies:
        """The families of one tick, those that are ``made`` first. ``wants`` is asked by a metric's field."""
        errors: Tally[tuple[str, str]] = Tally()
        found = {name: (text, list(samples)) for name, (text, samples) in (made or {}).items() if wants(name.upper())}
        for row in self._rows:
            if wants(row.field):
                _, samples = found.setdefault(row.name, (row.help + (f" ({row.unit})." if row.unit else "."), []))
                for part in parts:
                    samples += _samples(part, row, look, errors)
        return VendorFamilies(
            tuple(
                Family(prefix + name, MetricKind.GAUGE, text, tuple(samples))
                for name, (text, samples) in found.items()
                if samples
            ),
            errors,
        )


def _said(look: PlanInput, gpu: Accelerator) -> dict[str, str]:
    values = look.now.values.get(Unit(gpu.uuid), _NOTHING)
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _parts(
    look: PlanInput, settings: ExporterSettings, labels: Callable[[Labelled], Pairs], texts: Texts
) -> Iterator[LabelledPart]:
    held = holders(look.inventory, look.holdings or (), look.claimed, settings.resources)
    count = 0
    for gpu in look.inventory.accelerators:
        said = _said(look, gpu)
        for part in range(len(gpu.partitions) or 1):
            if settings.devices.gpu(gpu.index):
                users = _users(gpu, part, held) if settings.kubernetes and settings.pods is Pods.EACH else _NOBODY
                sets = (
                    labels(
                        Labelled(
                            gpu=gpu, number=count, part=part, driver=look.inventory.driver_version, said=said,
                            hostname=settings.style.hostname, holder=holder,
                            pod=look.pods.get((holder.namespace, holder.pod), _NO_POD) if holder else _NO_POD,
                            job=",".join(look.jobs.get(Unit(gpu.uuid), ())),
                        )
                    )
                    for holder in users
                )  # fmt: skip
                yield LabelledPart(
                    gpu=gpu, part=part, number=count, users=tuple(holder for holder in users if holder),
                    texts=tuple(dict.fromkeys(map(texts.text, sets))),
                )  # fmt: skip
            count += 1


def _users(gpu: Accelerator, part: int, held: Mapping[Unit, tuple[Holder, ...]]) -> tuple[Holder | None, ...]:
    """Who has it, one row for each container. The first partition has the GPU's own id."""
    units = [Unit(gpu.uuid, part)] if gpu.partitions else []
    if part == 0:
        units.append(Unit(gpu.uuid))
    users = {holder.key: holder for unit in units for holder in held.get(unit, ())}
    return tuple(users.values()) or _NOBODY


def _samples(
    part: LabelledPart, row: VendorRow, look: PlanInput, errors: Tally[tuple[str, str]]
) -> Iterator[SeriesSample]:
    """One row's samples of one GPU or partition."""
    parted = bool(part.gpu.partitions)
    if (row.of is Of.WHOLE and parted) or (row.of is not Of.PART and part.part):
        return
    unit = Unit(part.gpu.uuid)
    failed = look.now.failures.get(unit, {}).get(row.key)
    if failed is not None:
        errors[row.name, failed[:64]] += 1
    values = look.now.values.get(unit, _NOTHING)
    before = look.before.values.get(unit, _NOTHING) if look.before else _NOTHING
    for key, more in _keys(row, part.part):
        value = _value(row, key, values, before) if key in values else None
        if value is not None:
            for text in part.texts:
                yield SeriesSample(text + more, value)


@functools.cache
def _keys(row: VendorRow, part: int) -> tuple[tuple[str, str], ...]:
    """The readings that a row may have, each with what comes after the labels that all series of a GPU have."""
    more = "".join(f',{name}="{text}"' for name, text in row.labels)
    if not row.index:
        return ((row.key, more),)
    ahead = (part,) if row.of is Of.PART else ()
    return tuple((row.key.format(*ahead, place), f'{more},{row.index}="{place}"') for place in range(PLACES))


def _value(row: VendorRow, key: str, values: Mapping[str, Value], before: Mapping[str, Value]) -> str | None:
    """The value as text; None for one that the GPU does not have."""
    value = _number(values, key)
    if value is None:
        return None
    if row.less:
        less = _number(values, row.less)
        return None if less is None else number(max(0.0, value - less))
    if row.part_of:
        return _percentage(value, _number(before, key), _number(values, row.part_of), _number(before, row.part_of))
    return number(round(value * row.factor, 6))


def _percentage(now: float, then: float | None, whole: float | None, whole_then: float | None) -> str | None:
    """How much of the whole's change the change is; None without a change to compare with, or after a reset."""
    if then is None or whole is None or whole_then is None or whole <= whole_then or now < then:
        return None
    return number(round(min(100.0, 100 * (now - then) / (whole - whole_then)), 3))


def _number(values: Mapping[str, Value], key: str) -> float | None:
    value = values.get(key)
    return None if value is None or isinstance(value, str) else float(value)
