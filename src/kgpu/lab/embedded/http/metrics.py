"""Request metrics under the real server's names, in Prometheus' text form.

Counting is two dictionary updates per request; the text is made when it is requested.
"""

from __future__ import annotations

import bisect
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.metric_text import head

BUCKETS: Final = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
)  # fmt: skip
"""Upper limits in seconds, as the real server has them."""
_KNOWN_VERBS: Final = frozenset(
    {"GET", "LIST", "WATCH", "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION", "CONNECT"}
)
_LABELS: Final = ("verb", "group", "version", "resource", "subresource", "scope", "dry_run")

Labels = tuple[str, str, str, str, str, str, str]
"""verb, group, version, resource, subresource, scope, dry_run; the verb as in ``LIST``."""


@dataclass(slots=True)
class Histogram:
    """Counts by bucket (the last one has no limit) and the sum of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0


class Metrics:
    """The metrics of one API server."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._started = clock()
        self._requests: Counter[tuple[Labels, int]] = Counter()
        self._durations: dict[Labels, Histogram] = {}
        self._inflight = 0
        self._watches: Counter[tuple[str, str, str]] = Counter()
        self._gauges: dict[str, tuple[str, Callable[[], dict[str, int]]]] = {}

    def begin(self) -> None:
        """A request has come."""
        self._inflight += 1

    def end(self, labels: Labels, code: int, seconds: float) -> None:
        """A request has been answered after ``seconds``."""
        self._inflight -= 1
        if labels[0] not in _KNOWN_VERBS:
            labels = ("OTHER", *labels[1:])
        self._requests[labels, code] += 1
        if labels[0] in ("WATCH", "CONNECT"):
            return  # the time that a client listens is no latency
        histogram = self._durations.get(labels)
        if histogram is None:
            histogram = self._durations[labels] = Histogram()
        histogram.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        histogram.total += seconds

    def watching(self, group: str, version: str, kind: str, change: int) -> None:
        """A watch has begun (1) or ended (-1)."""
        self._watches[group, version, kind] += change

    def gauge(self, name: str, label: str, read: Callable[[], dict[str, int]]) -> None:
        """Add a gauge: ``read`` gives its values by the value of ``label`` whenever the text is made."""
        self._gauges[name] = (label, read)

    def render(self) -> bytes:
        """The metrics as text."""
        out: list[str] = []
        name = "apiserver_request_total"
        out += head(name, "counter", "Counter of apiserver requests.")
        for (labels, code), count in sorted(self._requests.items()):
            out.append(f'{name}{{code="{code}",{_pairs(labels)}}} {count}')
        name = "apiserver_request_duration_seconds"
        out += head(name, "histogram", "Response latency distribution in seconds.")
        for labels, histogram in sorted(self._durations.items(), key=lambda row: row[0]):
            _histogram(out, name, _pairs(labels), histogram)
        name = "apiserver_current_inflight_requests"
        out += head(name, "gauge", "Number of requests that are being answered.")
        out.append(f"{name} {self._inflight}")
        name = "apiserver_longrunning_requests"
        out += head(name, "gauge", "Number of open watches.")
        for (group, version, kind), count in sorted(self._watches.items()):
            out.append(f'{name}{{verb="WATCH",group="{group}",version="{version}",resource="{kind}"}} {count}')
        for name, (label, read) in self._gauges.items():
            out += head(name, "gauge", "Number of objects that are kept.")
            out += [f'{name}{{{label}="{key}"}} {value}' for key, value in sorted(read().items())]
        self._process(out)
        return ("\n".join(out) + "\n").encode()

    def _process(self, out: list[str]) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        rows = (
            ("process_start_time_seconds", "gauge", f"{self._started:.3f}"),
            ("process_cpu_seconds_total", "counter", f"{usage.ru_utime + usage.ru_stime:.3f}"),
            ("process_resident_memory_bytes", "gauge", str(resident_bytes())),
        )
        for name, kind, value in rows:
            out += head(name, kind, f"The server's {name.replace('_', ' ')}.")
            out.append(f"{name} {value}")


def resident_bytes() -> int:
    """The resident memory of this process, 0 if it is unknown."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _pairs(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(_LABELS, labels, strict=True))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _histogram(out: list[str], name: str, pairs: str, histogram: Histogram) -> None:
    running = 0
    for limit, count in zip((*map(str, BUCKETS), "+Inf"), histogram.counts, strict=True):
        running += count
        out.append(f'{name}_bucket{{{pairs},le="{limit.removesuffix(".0")}"}} {running}')
    out += [f"{name}_sum{{{pairs}}} {histogram.total:.6f}", f"{name}_count{{{pairs}}} {running}"]
