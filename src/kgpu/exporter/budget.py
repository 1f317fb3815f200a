"""How many different series the exporter has made in an hour, and which label makes them grow.

A scrape may be small and still overload Prometheus: each new value of a pod's own label makes all its series new. The
budget counts different label sets over time, warns before the limit with the label that has the most values, and past
the limit drops that label if it is one of the pods' own; device, pod and namespace always stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.exporter.labels import Pairs

PERIOD: Final = 3600.0
WARN_AT: Final = 0.8
MOST_SETS: Final = 20_000
_STAY: Final = frozenset({
    "gpu", "uuid", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "hostname", "Hostname",
    "pod", "namespace", "container", "pod_name", "pod_namespace", "container_name", "shared_copy",
})  # fmt: skip


class SeriesBudget:
    """One exporter's series over time; label sets are remembered for one period, as hashes."""

    def __init__(self, limit: int, *, period: float = PERIOD) -> None:
        self.limit = limit
        self.without: frozenset[str] = frozenset()
        self._period = period
        self._since: float | None = None
        self._now: dict[int, int] = {}
        self._values: dict[str, set[int]] = {}
        self._warned: set[tuple[str, bool]] = set()

    @property
    def series(self) -> int:
        """Different series in this period."""
        return sum(self._now.values())

    def observe(self, at: float, sets: Iterable[Pairs], metrics: int) -> tuple[Advice, ...]:
        """Count the label sets of one scrape, each worth ``metrics`` series; return new warnings."""
        if self._since is None:
            self._since = at
        elif at - self._since >= self._period:
            self._since, self._now, self._values = at, {}, {}
            self._warned.clear()
        for pairs in sets:
            key = hash(pairs)
            if key in self._now or len(self._now) >= MOST_SETS:
                continue
            self._now[key] = metrics
            for name, value in pairs:
                self._values.setdefault(name, set()).add(hash(value))
        return self._judge()

    def _judge(self) -> tuple[Advice, ...]:
        series = self.series
        if series < self.limit * WARN_AT:
            return ()
        blame, values = self._blame()
        over = series > self.limit
        if (blame, over) in self._warned:
            return ()
        self._warned.add((blame, over))
        drops_label = over and blame not in _STAY and blame != ""
        if drops_label:
            self.without |= {blame}
        return (
            Advice(
                subject="",
                what=f'label "{blame}" is taken away' if drops_label else "metrics have many different series",
                why=f'in this hour there were {series} different series of {self.limit}, and label "{blame}" had '
                f"{values} values",
                severity=Severity.WARNING,
                remedy="leave the label out of --kubernetes-pod-label-allowlist-regex, show pods by --pods join, or "
                "raise --series-limit",
                reason="SeriesLimit",
            ),
        )

    def _blame(self) -> tuple[str, int]:
        """The label with the most values, one that can be left out before one that can't."""
        counted = [(name not in _STAY, len(values), name) for name, values in self._values.items()]
        most = max(counted, default=(False, 0, ""))
        overall = max(counted, key=lambda row: row[1], default=most)
        best = most if most[1] * 2 >= overall[1] else overall
        return best[2], best[1]
