"""Pages of simulated agents as a Prometheus has scraped them: its samples, and a stand-in that answers range queries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from kgpu.usage.prometheus.answer import PrometheusError, RangeAnswer, RangeSeries

OURS = frozenset({"namespace", "pod", "container", "node"})
"""Labels that a target may have, too."""
_QUERY = re.compile(r"last_over_time\((\w+)\{(.*)\}\[(\d+)s\]\)")
_MATCHER = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SeriesKey = tuple[str, frozenset[tuple[str, str]]]


@dataclass
class Scrapes:
    """Samples by series, at milliseconds since 1970; and the queries that were asked for them, as ``RangeQueries``."""

    samples: dict[SeriesKey, list[tuple[int, float]]] = field(default_factory=dict)
    asked: list[tuple[str, int, int, int]] = field(default_factory=list)
    fails: list[Exception] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    place: str = "http://prometheus"

    def scrape(self, at: float, text: str, *, honor: bool = True, **target: str) -> None:
        """A page as it is stored; without ``honor_labels`` the page's labels give way to the target's."""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                own = {name: value for name, value in sample.labels.items() if value}
                kept = {
                    name if honor or name not in target else f"exported_{name}": value for name, value in own.items()
                }
                labels = {**{name: value for name, value in target.items() if name not in kept}, **kept}
                self.put(sample.name, labels, at, sample.value)

    def put(self, name: str, labels: Mapping[str, str], at: float, value: float) -> None:
        self.samples.setdefault((name, frozenset(labels.items())), []).append((round(at * 1000), value))

    async def range(self, query: str, begin: int, end: int, step: int) -> RangeAnswer:
        self.asked.append((query, begin, end, step))
        if self.fails:
            raise self.fails.pop(0)
        match = _QUERY.fullmatch(query)
        if match is None:
            raise PrometheusError(f"no such query: {query}", "", "")
        name, words, width = match[1], match[2], int(match[3])
        wanted = {key: re.sub(r"\\(.)", r"\1", value) for key, value in _MATCHER.findall(words)}
        found = []
        for (metric, labels), samples in self.samples.items():
            told = dict(labels)
            if metric != name or any(told.get(key, "") != value for key, value in wanted.items()):
                continue
            points = list(_last(samples, range(begin, end + 1, step), width))
            if points:
                found.append(RangeSeries(told, points))
        return RangeAnswer(found, 0, self.warnings)

    def open_metrics(self) -> str:
        """All samples as promtool takes them to make blocks of."""
        by_name: dict[str, list[str]] = {}
        for (name, labels), samples in sorted(self.samples.items(), key=lambda item: (item[0][0], sorted(item[0][1]))):
            text = ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted(labels))
            by_name.setdefault(name, []).extend(f"{name}{{{text}}} {value!r} {at / 1000:.3f}" for at, value in samples)
        return "\n".join([*(line for lines in by_name.values() for line in lines), "# EOF", ""])


def _last(samples: Iterable[tuple[int, float]], moments: range, width: int) -> Iterator[tuple[int, float]]:
    ordered = sorted(samples)
    index, newest = 0, None
    for moment in moments:
        while index < len(ordered) and ordered[index][0] <= moment * 1000:
            newest = ordered[index]
            index += 1
        if newest is not None and newest[0] > (moment - width) * 1000:
            yield moment * 1000, newest[1]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
