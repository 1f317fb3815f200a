"""Prometheus' text format, read strictly and only for the wanted metrics: other lines cost next to nothing.

A line that is no sample is an error, as it is for Prometheus: what answered is then no exporter, or a broken one. The
label sets of a GPU come again with every metric and every round, so each text of labels is taken apart once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping
from typing import Final

from kgpu.base.errors import UserError
from kgpu.base.printable import one_line, printable

MOST_CHARACTERS: Final = 32 << 20
MOST_LABELS: Final = 100
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"([^"\\\n]*(?:\\.[^"\\\n]*)*)"\s*(?:,\s*|$)', re.ASCII)
_ESCAPED: Final = re.compile(r"\\(.)")
_NUMBER: Final = re.compile(r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[Ii]nf|[Nn]a[Nn])", re.ASCII)
_MEANT: Final = {"n": "\n", '"': '"', "\\": "\\"}

Labels = Mapping[str, str]


class NotMetricsError(UserError):
    """What was read is not Prometheus' text."""


class _NoLabelsError(Exception):
    """Not a label set."""


class LabelSets:
    """Label sets by their text, remembered up to a bound, after which it starts again."""

    def __init__(self) -> None:
        self._made: dict[str, Labels] = {}
        self._characters = 0
        self.names: set[str] = set()

    def of(self, text: str) -> Labels:
        """Return the label set of a text. Raises _NoLabelsError."""
        labels = self._made.get(text)
        if labels is None:
            labels = _labels(text)
            self._characters += len(text)
            if self._characters > MOST_CHARACTERS:
                self._made.clear()
                self.names.clear()
                self._characters = len(text)
            self._made[text] = labels
        return labels

    def is_name(self, text: str) -> bool:
        """Whether it is a metric's name."""
        if text in self.names:
            return True
        good = _NAME.fullmatch(text) is not None
        if good:
            self._characters += len(text)
            self.names.add(text)
        return good


def samples(text: str, wanted: Container[str], known: LabelSets) -> Iterator[tuple[str, Labels, float]]:
    """Name, labels and value of every sample of a wanted metric; NaN is no value. Raises NotMetricsError."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line[0] == "#":
            continue
        name, brace, rest = line.partition("{")
        if not brace:
            name, _, rest = line.partition(" ")
        if name not in wanted:
            if not rest or not known.is_name(name):
                raise _broken(number, line)
            continue
        inside, end, after = rest.rpartition("}") if brace else ("", "}", rest)
        words = after.split()
        if not end or len(words) not in {1, 2} or _NUMBER.fullmatch(words[0]) is None:
            raise _broken(number, line)
        try:
            labels = known.of(inside)
        except _NoLabelsError:
            raise _broken(number, line) from None
        value = float(words[0])
        if not math.isnan(value):
            yield name, labels, value


def _labels(text: str) -> Labels:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None or match[1] in labels or len(labels) == MOST_LABELS:
            raise _NoLabelsError
        value = match[2]
        if "\\" in value:
            value = _ESCAPED.sub(lambda escape: _MEANT.get(escape[1], escape[0]), value)
        labels[match[1]] = printable(value)
        at = match.end()
    return labels


def _broken(number: int, line: str) -> NotMetricsError:
    return NotMetricsError(
        f"line {number} is no metric: {one_line(line, 60)!r}",
        "Prometheus' text format, as exporters serve it under /metrics",
        "see what listens there; it may be another program, or a proxy's page",
    )
