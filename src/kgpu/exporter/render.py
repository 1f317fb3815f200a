"""Families of samples as text: Prometheus' format 0.0.4 and OpenMetrics 1.0.

It is the exporter's hot path, so samples arrive with their labels as finished text (``labels.py``). No timestamps:
Prometheus takes the time of the scrape. OpenMetrics allows a counter only under a name that ends in ``_total``, which
the usual names do not; they are written there with type ``unknown`` so that a metric has one name in both formats.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from kgpu.exporter.model import Family, MetricKind
from kgpu.formats.names import METRICS_TYPE

TOTAL: Final = "_total"
_HELP: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_QUOTED: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_PLAIN_KINDS: Final = {MetricKind.GAUGE: "gauge", MetricKind.COUNTER: "counter"}


class ExpositionFormat(enum.StrEnum):
    """The formats of a scrape; the value is the content type."""

    TEXT = METRICS_TYPE
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def escape(value: str) -> str:
    """A label's value, for both formats. What UTF-8 can't carry becomes a question mark."""
    if value.isascii():
        return value.translate(_QUOTED)
    return value.encode("utf-8", "replace").decode().translate(_QUOTED)


def render(families: Iterable[Family], form: ExpositionFormat = ExpositionFormat.TEXT) -> str:
    """The whole text. Families without samples are left out."""
    if form is ExpositionFormat.OPENMETRICS:
        return _openmetrics(families)
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {family.help.translate(_HELP)}")
            lines.append(f"# TYPE {family.name} {_PLAIN_KINDS.get(family.kind, 'untyped')}")
            _samples(lines, family)
    return "\n".join([*lines, ""])


def negotiate(accept: str) -> ExpositionFormat:
    """The format that a scraper's ``Accept`` header prefers, plain text without a preference."""
    best: tuple[float, ExpositionFormat] = (0.0, ExpositionFormat.TEXT)
    for part in accept[:4096].split(","):
        media, *parameters = (word.strip().lower() for word in part.split(";"))
        weight = 1.0
        version = ""
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                weight = _weight(value)
            elif key.strip() == "version":
                version = value.strip().strip('"')
        if media == "application/openmetrics-text" and version in {"", "1.0.0", "0.0.1"} and weight > best[0]:
            best = (weight, ExpositionFormat.OPENMETRICS)
        elif media in {"text/plain", "text/*", "*/*"} and weight > best[0]:
            best = (weight, ExpositionFormat.TEXT)
    return best[1]


def _openmetrics(families: Iterable[Family]) -> str:
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        name, kind = family.name, _PLAIN_KINDS.get(family.kind, "unknown")
        if family.kind is MetricKind.COUNTER:
            name, kind = (name[: -len(TOTAL)], kind) if name.endswith(TOTAL) else (name, "unknown")
        lines.append(f"# TYPE {name} {kind}")
        lines.append(f"# HELP {name} {family.help.translate(_QUOTED)}")
        _samples(lines, family)
    return "\n".join([*lines, "# EOF", ""])


def _samples(lines: list[str], family: Family) -> None:
    name = family.name
    lines += [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in family.samples]


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
