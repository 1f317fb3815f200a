"""Pure: an answer of Prometheus' HTTP API to a range query, read strictly: whoever answers may be another program.

Promises: what is no such answer is a ``PrometheusError`` in three parts; a value that can't be a counter's (NaN, below
0, too large, no number) is left out and counted, and changes nothing else.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from kgpu.base import typed
from kgpu.base.errors import UserError
from kgpu.base.printable import one_line

LARGEST: Final = 1e12
"""Of any figure: thirty thousand years in seconds."""
EXPECTED: Final = "the HTTP API of a Prometheus, or of what answers as it does (Thanos, Mimir, VictoriaMetrics)"
_REMEDY: Final = "give the address that has /api/v1/query_range below it, with its path, such as http://HOST:9090"


class PrometheusError(UserError):
    """A Prometheus can't be reached, refuses, or answers as none does."""


class TooMuchAskedError(PrometheusError):
    """It can't answer so much at once; less may do."""


class RangeSeries(NamedTuple):
    """A series: its labels, and its values by the moment in milliseconds since 1970."""

    labels: dict[str, str]
    points: list[tuple[int, float]]


class RangeAnswer(NamedTuple):
    """What was asked for. ``refused``: how many values can't be; ``warnings`` are Prometheus' own words."""

    series: list[RangeSeries]
    refused: int = 0
    warnings: tuple[str, ...] = ()


_Values = list[tuple[float, Any]]


class _SeriesSaid(msgspec.Struct):
    metric: dict[str, str] = {}
    values: _Values = []


class _MatrixSaid(msgspec.Struct):
    resultType: str = ""  # noqa: N815 - Prometheus' own name
    result: Annotated[list[_SeriesSaid], Meta(max_length=500_000)] = []


class _RangeSaid(msgspec.Struct):
    status: str
    data: _MatrixSaid | None = None
    errorType: str = ""  # noqa: N815
    error: str = ""
    warnings: list[str] | None = None


def said_why(body: bytes) -> tuple[str, str]:
    """The type and the words of an error that Prometheus tells; "" where it is none."""
    said = typed.read(body.decode(errors="replace"), _RangeSaid, most=1 << 20)
    return (said.errorType, one_line(said.error, 300)) if said is not None and said.status == "error" else ("", "")


def decode(body: bytes, place: str) -> RangeAnswer:
    """The answer of ``place``. Raises PrometheusError."""
    try:
        said = typed.decode(body, _RangeSaid)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        begins = one_line(body[:60].decode(errors="replace"))
        raise PrometheusError(
            f"{place} answers as no Prometheus does: {one_line(str(error), 160)}; it begins with {begins!r}", EXPECTED,
            _REMEDY,
        ) from error  # fmt: skip
    if said.status != "success" or said.data is None or said.data.resultType != "matrix":
        raise PrometheusError(
            f"{place} answers without figures: {one_line(said.error, 200) or one_line(said.status, 40)}",
            EXPECTED, _REMEDY,
        )  # fmt: skip
    refused, series = 0, []
    for result in said.data.result:
        points = [(round(at * 1000), value) for at, text in result.values if (value := _figure(at, text)) is not None]
        refused += len(result.values) - len(points)
        series.append(RangeSeries(result.metric, points))
    warnings = tuple(one_line(text, 200) for text in (said.warnings or ())[:20])
    return RangeAnswer(series, refused, warnings)


def _figure(at: float, text: object) -> float | None:
    """None for what no counter of kgpu's can be."""
    if not isinstance(text, str) or len(text) > 40 or not 0 <= at <= LARGEST:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= LARGEST else None
