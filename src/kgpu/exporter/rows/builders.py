"""Functions that build the field table's rows; each fills in the arguments that rows of one kind share."""

from __future__ import annotations

from typing import Any, Final

from kgpu.exporter.fields import PREFIX, FieldScope, MetricField, Modern, ReadingSource
from kgpu.exporter.model import MetricKind

MIB: Final = float(1 << 20)
SENSOR_TOP: Final = 200.0
"""Degrees above this are a sensor that does not answer (DCGM's rule)."""


def gauge(number: int, name: str, text: str, unit: str, *sources: ReadingSource, **more: Any) -> MetricField:
    """A gauge; names without a prefix of their own are ``DCGM_FI_DEV_``."""
    return _row(MetricKind.GAUGE, number, name, (text, unit), *sources, **more)


def counter(number: int, name: str, text: str, unit: str, *sources: ReadingSource, **more: Any) -> MetricField:
    """A counter."""
    return _row(MetricKind.COUNTER, number, name, (text, unit), *sources, **more)


def label(number: int, name: str, text: str, *sources: ReadingSource, **more: Any) -> MetricField:
    """A field whose value becomes a label."""
    return _row(MetricKind.LABEL, number, name, (text, ""), *sources, **more)


def celsius(number: int, name: str, text: str, source: ReadingSource, **more: Any) -> MetricField:
    """A temperature in degrees Celsius, without the readings of sensors that do not answer."""
    return gauge(number, name, text, "celsius", source, top=SENSOR_TOP, **more)


def watts(number: int, name: str, text: str, source: ReadingSource, **more: Any) -> MetricField:
    """Power in watts, with decimals."""
    return gauge(number, name, text, "W", source, decimals=True, **more)


def percent(number: int, name: str, text: str, source: ReadingSource, ratio: str = "", **more: Any) -> MetricField:
    """Percent; generation c has it as ``ratio``, 0 to 1."""
    modern = named(ratio, "ratio", 0.01, decimals=True) if ratio else None
    return gauge(number, name, text, "%", source, modern=modern, **more)


def mib(number: int, name: str, text: str, source: ReadingSource, size: str = "", **more: Any) -> MetricField:
    """Whole MiB; generation c has it as ``size``, in bytes."""
    return gauge(number, name, text, "MiB", source, modern=named(size, "bytes", MIB) if size else None, **more)


def ratio(number: int, name: str, text: str, gpm: int, **more: Any) -> MetricField:
    """Part of the time or of the peak, 0 to 1, from a GPM metric in percent: the reading ``gpm_<number>``."""
    more = {"scope": FieldScope.INSTANCE, "decimals": True, **more}
    return gauge(number, name, text, "ratio", ReadingSource(f"gpm_{gpm}", f"GPM {gpm}", 0.01), **more)


def named(name: str, unit: str = "", factor: float = 1.0, *, decimals: bool = False) -> Modern:
    """Generation c's spelling, without a prefix of its own ``DCGM_FI_DEV_``."""
    return Modern(name=_full(name), unit=unit, factor=factor, decimals=decimals)


def _full(name: str) -> str:
    return name if name.startswith("DCGM_") or name.islower() else PREFIX + name


def _row(
    kind: MetricKind, number: int, name: str, words: tuple[str, str], *sources: ReadingSource, **more: Any
) -> MetricField:
    aliases = tuple(_full(alias) for alias in more.pop("aliases", ()))
    return MetricField(
        id=number, name=_full(name), kind=kind, help=words[0], unit=words[1], sources=sources, aliases=aliases, **more
    )
