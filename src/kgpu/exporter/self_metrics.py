"""Metrics about the exporter itself and its devices, under ``kgpu_``: what is up, what is missing, and why.

``ExporterFigures`` holds the counters that last from one scrape to the next.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.exporter.facts import readable
from kgpu.exporter.holders import Holder
from kgpu.exporter.labels import Pairs, Texts, device_labels, joined
from kgpu.exporter.model import Family, MetricKind, PlanInput, Planned, SeriesSample, Users
from kgpu.exporter.settings import ExporterSettings, Pods
from kgpu.exporter.targets import SeriesTarget, holder_labels, own_labels
from kgpu.hw.verdicts import GpuVerdict

MIB: Final = 1 << 20
MOST_REASONS: Final = 1_000
UP: Final = "kgpu_gpu_up"
INFO: Final = "kgpu_gpu_pod_info"
SHARE: Final = "kgpu_pod_gpu_memory_used_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigState:
    """A configuration source that is followed; ``current``: its present content is in force."""

    source: str
    current: bool
    problems: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterStatus:
    """The state of the exporter itself. ``read_at`` is in seconds since 1970, None when nothing was read yet."""

    version: str
    answers: bool
    read_at: float | None
    read_seconds: float
    scrapes: int
    counters: tuple[ConfigState, ...] = ()
    web: ConfigState | None = None


def number(value: float) -> str:
    """The shortest exact text of a number."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def device_families(
    wanted: Iterable[SeriesTarget], look: PlanInput, settings: ExporterSettings, texts: Texts
) -> list[Family]:
    """Which GPUs answer, which containers use what, and how much of it.

    The containers on a GPU that can't be read are always listed here: it has no series that would name them.
    """
    up: dict[str, str] = {}
    users: dict[str, str] = {}
    memory: dict[str, str] = {}
    for target in wanted:
        if target.gpu is None:
            continue
        reads = readable(target.gpu, look)
        if target.unit.gpu_instance is None:
            up[texts.text(target.labels)] = str(int(reads))
        for holder in target.holders:
            who: Pairs = (*target.labels, *holder_labels(holder, look, settings))
            if settings.pods is Pods.JOIN or not reads:
                users[texts.text(joined(who, own_labels(holder, look, settings)))] = "1"
            used = look.shares.get((target.unit, holder.key), {}).get("memory_used_mib")
            if used is not None:
                # Once for a container, however many shares or claims it has the device by.
                alone = holder_labels(Holder(*holder.key), look, settings)
                memory[texts.text((*target.labels, *alone))] = number(float(int(used * MIB)))
    known = "0" if look.holdings is None else "1"
    return [
        _family(UP, "1 when the GPU can be read, 0 when it is lost or its driver hangs.", up),
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


def verdict_families(
    verdicts: Iterable[GpuVerdict], look: PlanInput, settings: ExporterSettings, texts: Texts
) -> list[Family]:
    """The health role's verdicts; no samples where none runs."""
    gpus = {gpu.uuid: gpu for gpu in look.inventory.accelerators}
    healthy: dict[str, str] = {}
    verdict: dict[str, str] = {}
    for judged in verdicts:
        gpu = gpus.get(judged.uuid)
        if gpu is None or not settings.devices.gpu(gpu.index):
            continue
        labels = device_labels(settings.style, gpu)
        healthy[texts.text(labels)] = str(int(judged.healthy))
        if judged.reason:
            verdict[texts.text((*labels, ("action", judged.action), ("reason", judged.reason)))] = "1"
    return [
        _family("kgpu_gpu_healthy", "1 when the health role lets the GPU get new work.", healthy),
        _family("kgpu_gpu_verdict", "What the health role has concluded, and what should be done.", verdict),
    ]


def users_families(users: Users, texts: Texts) -> list[Family]:
    """Which parts of who uses what are unknown, and how many users are known but not shown."""
    unknown = {texts.text((("part", part), ("reason", reason))): "1" for part, reason in sorted(users.failures.items())}
    missing = {
        texts.text((("what", what), ("reason", reason))): str(count)
        for (what, reason), count in sorted(users.missing.items())
    }
    return [
        _family("kgpu_exporter_users_unknown", "1 for each part of who uses what that can't be had.", unknown),
        _family("kgpu_exporter_users_missing", "What is held or used and not shown, by the reason.", missing),
    ]


def status_families(status: ExporterStatus, texts: Texts) -> list[Family]:
    """Metrics of the state of the exporter itself."""
    current = {texts.text((("source", source.source),)): str(int(source.current)) for source in status.counters}
    problems = {texts.text((("source", source.source),)): str(source.problems) for source in status.counters}
    web = {texts.text((("source", status.web.source),)): str(int(status.web.current))} if status.web else {}
    read = {"": number(round(status.read_at, 3))} if status.read_at is not None else {}
    return [
        _family("kgpu_exporter_build_info", "The exporter's version.",
                {texts.text((("version", status.version),)): "1"}),
        _family("kgpu_exporter_driver_up", "1 when the driver answers.", {"": str(int(status.answers))}),
        _family("kgpu_exporter_last_reading_timestamp_seconds", "When the values were read.", read),
        _family("kgpu_exporter_reading_seconds", "How long the last reading took.",
                {"": number(round(status.read_seconds, 6))}),
        Family("kgpu_exporter_scrapes_total", MetricKind.COUNTER, "Scrapes so far.",
               (SeriesSample("", str(status.scrapes)),)),
        _family("kgpu_exporter_counters_current", "1 when the metrics are those of the source as it is.", current),
        _family("kgpu_exporter_counters_problems", "Lines of the source that are not exported.", problems),
        _family("kgpu_exporter_web_config_current", "1 when the web config file in force is what the file says now.",
                web),
    ]  # fmt: skip


class ExporterFigures:
    """Counters since the exporter started."""

    def __init__(self) -> None:
        self._errors: Tally[tuple[str, str]] = Tally()

    def count(self, planned: Planned) -> None:
        """Add one tick's failures. Reasons come from outside, so their number is bounded."""
        for (field, reason), count in planned.errors.items():
            known = (field, reason) in self._errors or len(self._errors) < MOST_REASONS
            self._errors[field, reason if known else ""] += count

    def families(self, texts: Texts) -> tuple[Family, ...]:
        """The counters as families."""
        rows = {
            texts.text((("field", field), ("reason", reason))): str(count)
            for (field, reason), count in sorted(self._errors.items())
        }
        help_text = "Values that could not be read; the field's series were left out at that moment."
        return (Family("kgpu_exporter_field_errors_total", MetricKind.COUNTER, help_text, _samples(rows)),)


def _family(name: str, text: str, rows: Mapping[str, str]) -> Family:
    return Family(name, MetricKind.GAUGE, text, _samples(rows))


def _samples(rows: Mapping[str, str]) -> tuple[SeriesSample, ...]:
    return tuple(SeriesSample(labels, value) for labels, value in rows.items())
