"""Families under the names of AMD's exporter, from one tick's readings. Pure but for cached label texts.

A GPU that is parted has a set of labels for each partition, and ``gpu_id`` counts partitions as GPUs, as ROCm does.
Promises: a reading that is absent or failed costs its own series only; no two series of a metric have the same labels.
"""

from __future__ import annotations

import functools
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.exporter.amd.labels import Labelled, labels
from kgpu.exporter.amd.rows import HEALTH, MADE, NODES, PLACES, ROWS, Of, RocmRow
from kgpu.exporter.amd.settings import RocmConfig
from kgpu.exporter.holders import Holder, holders
from kgpu.exporter.labels import Texts
from kgpu.exporter.model import Family, MetricKind, PlanInput, PodFacts, SeriesSample, Unit, Value, VendorFamilies
from kgpu.exporter.self_metrics import number
from kgpu.exporter.settings import ExporterSettings, Pods
from kgpu.hw.port import Accelerator

_NO_POD: Final = PodFacts()
_NOTHING: Final[Mapping[str, Value]] = {}
_NOBODY: Final[tuple[Holder | None, ...]] = (None,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocmPart:
    """A GPU, or a partition of one, with the labels of its series as text, a set for each user."""

    gpu: Accelerator
    part: int
    texts: tuple[str, ...]


class RocmFamilies:
    """Makes the families; keeps label texts while devices, users and settings stay the same."""

    def __init__(self) -> None:
        self._texts = Texts()
        self._made_from: tuple[object, ...] = ()
        self._parts: tuple[RocmPart, ...] = ()

    def plan(
        self, look: PlanInput, settings: ExporterSettings, config: RocmConfig, healthy: Mapping[str, bool]
    ) -> VendorFamilies:
        """The families of one tick. ``healthy`` are the health role's verdicts by uuid, empty without that role."""
        parts = self._kept(look, settings, config)
        errors: Tally[tuple[str, str]] = Tally()
        found: dict[str, tuple[str, list[SeriesSample]]] = {}
        for name, samples in (
            (NODES, _nodes(look, settings, self._texts)),
            (HEALTH, [sample for part in parts for sample in _health(part, healthy)]),
        ):
            if config.wants(name.upper()):
                found[name] = (MADE[name], samples)
        for row in ROWS:
            if config.wants(row.field):
                _, samples = found.setdefault(row.name, (row.help + (f" ({row.unit})." if row.unit else "."), []))
                for part in parts:
                    samples += _samples(part, row, look, errors)
        families = (
            Family(config.prefix + name, MetricKind.GAUGE, text, tuple(samples))
            for name, (text, samples) in found.items()
        )
        return VendorFamilies(tuple(family for family in families if family.samples), errors)

    def _kept(self, look: PlanInput, settings: ExporterSettings, config: RocmConfig) -> tuple[RocmPart, ...]:
        bios = tuple(_bios(look, gpu) for gpu in look.inventory.accelerators)
        made_from = (look.inventory, look.holdings, look.claimed, look.pods, look.jobs, settings, config, bios)
        if made_from != self._made_from:
            self._parts = tuple(_parts(look, settings, config, self._texts))
            self._made_from = made_from
        return self._parts


def _bios(look: PlanInput, gpu: Accelerator) -> str:
    return str(look.now.values.get(Unit(gpu.uuid), _NOTHING).get("vbios_version", ""))


def _parts(look: PlanInput, settings: ExporterSettings, config: RocmConfig, texts: Texts) -> Iterator[RocmPart]:
    held = holders(look.inventory, look.holdings or (), look.claimed, settings.resources)
    count = 0
    for gpu in look.inventory.accelerators:
        for part in range(len(gpu.partitions) or 1):
            if settings.devices.gpu(gpu.index):
                users = _users(gpu, part, held) if settings.kubernetes and settings.pods is Pods.EACH else _NOBODY
                sets = (
                    labels(
                        Labelled(
                            gpu=gpu, number=count, part=part, driver=look.inventory.driver_version,
                            vbios=_bios(look, gpu), hostname=settings.style.hostname, holder=holder,
                            pod=look.pods.get((holder.namespace, holder.pod), _NO_POD) if holder else _NO_POD,
                            job=",".join(look.jobs.get(Unit(gpu.uuid), ())),
                        ),
                        config,
                    )
                    for holder in users
                )  # fmt: skip
                yield RocmPart(gpu=gpu, part=part, texts=tuple(dict.fromkeys(map(texts.text, sets))))
            count += 1


def _users(gpu: Accelerator, part: int, held: Mapping[Unit, tuple[Holder, ...]]) -> tuple[Holder | None, ...]:
    """Who has it, one row for each container. The first partition has the GPU's own id."""
    units = [Unit(gpu.uuid, part)] if gpu.partitions else []
    if part == 0:
        units.append(Unit(gpu.uuid))
    users = {holder.key: holder for unit in units for holder in held.get(unit, ())}
    return tuple(users.values()) or _NOBODY


def _nodes(look: PlanInput, settings: ExporterSettings, texts: Texts) -> list[SeriesSample]:
    if not look.answers:
        return []
    count = sum(len(gpu.partitions) or 1 for gpu in look.inventory.accelerators)
    return [SeriesSample(texts.text((("hostname", settings.style.hostname),)), str(count))]


def _health(part: RocmPart, healthy: Mapping[str, bool]) -> Iterator[SeriesSample]:
    verdict = healthy.get(part.gpu.uuid)
    if verdict is not None:
        for text in part.texts:
            yield SeriesSample(text, str(int(verdict)))


def _samples(part: RocmPart, row: RocmRow, look: PlanInput, errors: Tally[tuple[str, str]]) -> Iterator[SeriesSample]:
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
def _keys(row: RocmRow, part: int) -> tuple[tuple[str, str], ...]:
    """The readings that a row may have, each with what comes after the labels that all series of a GPU have."""
    more = "".join(f',{name}="{text}"' for name, text in row.labels)
    if not row.index:
        return ((row.key, more),)
    ahead = (part,) if row.of is Of.PART else ()
    return tuple((row.key.format(*ahead, place), f'{more},{row.index}="{place}"') for place in range(PLACES))


def _value(row: RocmRow, key: str, values: Mapping[str, Value], before: Mapping[str, Value]) -> str | None:
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
