"""What is counted of the kubelet's calls and of prepared devices, under the names of NVIDIA's DRA driver.

As there, requests that fail are counted by the kind of their error, and not among those that were done.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.clock import Clock, SystemClock
from kgpu.dra.records import ClaimRecord
from kgpu.formats.dra_parameters import GPU, MIG

PREPARE: Final = "prepare"
UNPREPARE: Final = "unprepare"
OPERATIONS: Final = (PREPARE, UNPREPARE)
BUCKETS: Final = tuple(0.05 * 2**number for number in range(9))
"""Seconds."""
GET_CLAIM: Final = "get_claim"
"""The kind of error where the API server has not given the claim, or it is not as it should be."""
_QUOTED: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


@dataclass(slots=True)
class _Durations:
    buckets: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))
    total: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        for number, most in enumerate(BUCKETS):
            self.buckets[number] += seconds <= most
        self.total += seconds
        self.count += 1


@dataclass(slots=True, kw_only=True)
class DraMetrics:
    """One driver's on one node."""

    driver: str
    node: str
    clock: Clock = field(default_factory=SystemClock)
    _durations: dict[str, _Durations] = field(default_factory=lambda: {one: _Durations() for one in OPERATIONS})
    _inflight: Counter[str] = field(default_factory=Counter)
    _errors: Counter[tuple[str, str]] = field(default_factory=Counter)

    @contextlib.contextmanager
    def request(self, operation: str) -> Iterator[None]:
        """A request that lasts as long as the block; one that raises is no request that was done."""
        began = self.clock.monotonic()
        self._inflight[operation] += 1
        try:
            yield
            self._durations[operation].add(self.clock.monotonic() - began)
        finally:
            self._inflight[operation] -= 1

    def failed(self, operation: str, kind: str = "") -> None:
        """Count a failure of this kind, which is the operation's own where none is given."""
        self._errors[operation, kind or f"{operation}_devices"] += 1

    def text(self, records: Iterable[ClaimRecord]) -> str:
        """In Prometheus' text format, with the devices that are prepared now."""
        lines: list[str] = []
        self._requests(lines)
        self._prepared(lines, records)
        for operation in OPERATIONS:
            name = f"nvidia_dra_node_{operation}_errors_total"
            _head(lines, name, "counter", f"Calls of the kubelet to {operation} a claim that have failed.")
            for (of, kind), count in sorted(self._errors.items()):
                if of == operation:
                    lines.append(f"{name}{self._labels(error_type=kind)} {count}")
        return "\n".join([*lines, ""])

    def _requests(self, lines: list[str]) -> None:
        name = "nvidia_dra_requests_total"
        _head(lines, name, "counter", "Claims that were prepared or unprepared.")
        lines += [f"{name}{self._labels(operation=one)} {self._durations[one].count}" for one in OPERATIONS]
        name = "nvidia_dra_request_duration_seconds"
        _head(lines, name, "histogram", "How long that took.")
        for one in OPERATIONS:
            seen = self._durations[one]
            for most, count in zip(BUCKETS, seen.buckets, strict=True):
                lines.append(f"{name}_bucket{self._labels(operation=one, le=f'{most:g}')} {count}")
            lines.append(f"{name}_bucket{self._labels(operation=one, le='+Inf')} {seen.count}")
            lines.append(f"{name}_sum{self._labels(operation=one)} {seen.total:.9g}")
            lines.append(f"{name}_count{self._labels(operation=one)} {seen.count}")
        name = "nvidia_dra_requests_inflight"
        _head(lines, name, "gauge", "Claims that are being prepared or unprepared.")
        lines += [f"{name}{self._labels(operation=one)} {self._inflight[one]}" for one in OPERATIONS]

    def _prepared(self, lines: list[str], records: Iterable[ClaimRecord]) -> None:
        counts: Counter[str] = Counter()
        for record in records:
            if record.done:
                counts.update(MIG if device.size else GPU for device in record.devices)
        name = "nvidia_dra_prepared_devices"
        _head(lines, name, "gauge", "Devices that are prepared for claims, by their type.")
        lines += [f"{name}{self._labels(node=self.node, device_type=kind)} {counts[kind]}" for kind in (GPU, MIG)]

    def _labels(self, **more: str) -> str:
        pairs = {"driver": self.driver, **more}
        return "{" + ",".join(f'{name}="{value.translate(_QUOTED)}"' for name, value in pairs.items()) + "}"


def _head(lines: list[str], name: str, kind: str, about: str) -> None:
    lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
