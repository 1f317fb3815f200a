"""Figures in Prometheus' text format, for pages with few of them; the exporter, whose page is long, has its own way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

DEFAULT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds, those of Prometheus' client libraries."""
_QUOTED: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


@dataclass(slots=True)
class Durations:
    """A histogram of seconds; ``buckets`` are upper bounds, ascending."""

    buckets: tuple[float, ...] = DEFAULT_BUCKETS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        self.counts = [0] * len(self.buckets)

    def add(self, seconds: float) -> None:
        """One more."""
        for number, most in enumerate(self.buckets):
            self.counts[number] += seconds <= most
        self.total += seconds
        self.count += 1

    def lines(self, name: str, /, **labels: str) -> Iterator[str]:
        """Its samples."""
        for most, count in zip(self.buckets, self.counts, strict=True):
            yield f"{name}_bucket{label_text(**labels, le=f'{most:g}')} {count}"
        yield f"{name}_bucket{label_text(**labels, le='+Inf')} {self.count}"
        yield f"{name}_sum{label_text(**labels)} {self.total:.9g}"
        yield f"{name}_count{label_text(**labels)} {self.count}"


def head(name: str, kind: str, about: str) -> tuple[str, str]:
    """The two lines before a metric's samples."""
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def label_text(**labels: str) -> str:
    """Labels as they stand behind a name; "" for none."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_QUOTED)}"' for name, value in labels.items()) + "}"


def page(lines: Iterable[str]) -> str:
    """Lines as text."""
    return "\n".join([*lines, ""])
