"""Metrics about the exporter's own work and its devices, under ``kgpu_``: what is up, what is missing, and why.

``Figures`` counts what has to survive from one scrape to the next.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import Final

from kgpu.exporter.labels import Pairs, Texts, joined
from kgpu.exporter.model import Family, Kind, Look, Planned, Sample
from kgpu.exporter.settings import Pods, Settings
from kgpu.exporter.targets import Target, holder_labels, own_labels

MIB: Final = 1 << 20
MOST_REASONS: Final = 1_000
UP: Final = "kgpu_gpu_up"
INFO: Final = "kgpu_gpu_pod_info"
SHARE: Final = "kgpu_pod_gpu_memory_used_bytes"


def number(value: float) -> str:
    """A number as short as it is exact."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def device_families(wanted: Iterable[Target], look: Look, settings: Settings, texts: Texts) -> list[Family]:
    """Which GPUs answer, which containers use what, and how much of it."""
    up: dict[str, str] = {}
    users: dict[str, str] = {}
    memory: dict[str, str] = {}
    for target in wanted:
        if target.gpu is None:
            continue
        if target.unit.gpu_instance is None:
            good = target.gpu.usable and target.unit in look.now.values
            up[texts.text(target.labels)] = str(int(good))
        for holder in target.holders:
            who: Pairs = (*target.labels, *holder_labels(holder, look, settings))
            if settings.pods is Pods.JOIN:
                users[texts.text(joined(who, own_labels(holder, look, settings)))] = "1"
            used = look.shares.get((target.unit, holder.key), {}).get("memory_used_mib")
            if used is not None:
                memory[texts.text(who)] = number(float(int(used * MIB)))
    known = "0" if look.holdings is None else "1"
    return [
        _family(UP, "1 when the GPU answers and nothing found says that work on it would fail.", up),
        _family("kgpu_exporter_pods_known", "1 when the kubelet tells who holds which device.",
                {texts.text(settings.style.host()): known} if settings.kubernetes else {}),
        _family(INFO, "A container that holds a device; join it with other metrics.", users),
        _family(SHARE, "Memory of a device that a container's processes hold (in bytes).", memory),
    ]  # fmt: skip


def absent_family(absent: Mapping[tuple[str, str], int], texts: Texts) -> Family:
    """Fields that were asked for and that devices do not have."""
    rows = {texts.text((("field", field), ("reason", reason))): str(count) for (field, reason), count in absent.items()}
    return _family("kgpu_exporter_field_absent", "Devices without a field that is asked for.", rows)


def series_family(series: int, dropped: int, texts: Texts) -> Family:
    """How many series the scrape has, and how many the limit left out."""
    rows = {texts.text((("state", "exported"),)): str(series), texts.text((("state", "dropped"),)): str(dropped)}
    return _family("kgpu_exporter_series", "Series of this scrape, and those that the limit left out.", rows)


class Figures:
    """Counters of one exporter's life."""

    def __init__(self) -> None:
        self._errors: Tally[tuple[str, str]] = Tally()

    def count(self, planned: Planned) -> None:
        """Add one tick's failures. Reasons come from outside, so their number is bounded."""
        for (field, reason), count in planned.errors.items():
            known = (field, reason) in self._errors or len(self._errors) < MOST_REASONS
            self._errors[field, reason if known else ""] += count

    def families(self, texts: Texts) -> tuple[Family, ...]:
        """What was counted."""
        rows = {
            texts.text((("field", field), ("reason", reason))): str(count)
            for (field, reason), count in sorted(self._errors.items())
        }
        help_text = "Values that could not be read; the field's series were left out at that moment."
        return (Family("kgpu_exporter_field_errors_total", Kind.COUNTER, help_text, _samples(rows)),)


def _family(name: str, text: str, rows: Mapping[str, str]) -> Family:
    return Family(name, Kind.GAUGE, text, _samples(rows))


def _samples(rows: Mapping[str, str]) -> tuple[Sample, ...]:
    return tuple(Sample(labels, value) for labels, value in rows.items())
