"""Prometheus' text format, read strictly and only as far as asked: lines of other metrics cost next to nothing.

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
        """Raises _NoLabelsError."""
        found = self._made.get(text)
        if found is None:
            found = _labels(text)
            self._characters += len(text)
            if self._characters > MOST_CHARACTERS:
                self._made.clear()
                self.names.clear()
                self._characters = len(text)
            self._made[text] = found
        return found

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
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        one = _LABEL.match(text, at)
        if one is None or one[1] in found or len(found) == MOST_LABELS:
            raise _NoLabelsError
        value = one[2]
        if "\\" in value:
            value = _ESCAPED.sub(lambda seen: _MEANT.get(seen[1], seen[0]), value)
        found[one[1]] = printable(value)
        at = one.end()
    return found


def _broken(number: int, line: str) -> NotMetricsError:
    return NotMetricsError(
        f"line {number} is no metric: {one_line(line, 60)!r}",
        "Prometheus' text format, as exporters serve it under /metrics",
        "see what listens there; it may be another program, or a proxy's page",
    )
