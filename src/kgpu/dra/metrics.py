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
from kgpu.base.metric_text import Durations, head, label_text, page
from kgpu.dra.records import ClaimRecord
from kgpu.formats.dra_parameters import GPU, MIG

PREPARE: Final = "prepare"
UNPREPARE: Final = "unprepare"
OPERATIONS: Final = (PREPARE, UNPREPARE)
BUCKETS: Final = tuple(0.05 * 2**number for number in range(9))
"""Seconds."""
GET_CLAIM: Final = "get_claim"
"""The kind of error where the API server has not given the claim, or it is not as it should be."""


@dataclass(slots=True, kw_only=True)
class DraMetrics:
    """One driver's on one node. ``types`` are what a whole accelerator and a part of one are called."""

    driver: str
    node: str
    types: tuple[str, str] = (GPU, MIG)
    clock: Clock = field(default_factory=SystemClock)
    _durations: dict[str, Durations] = field(default_factory=lambda: {one: Durations(BUCKETS) for one in OPERATIONS})
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
            lines += head(name, "counter", f"Calls of the kubelet to {operation} a claim that have failed.")
            for (of, kind), count in sorted(self._errors.items()):
                if of == operation:
                    lines.append(f"{name}{self._labels(error_type=kind)} {count}")
        return page(lines)

    def _requests(self, lines: list[str]) -> None:
        name = "nvidia_dra_requests_total"
        lines += head(name, "counter", "Claims that were prepared or unprepared.")
        lines += [f"{name}{self._labels(operation=one)} {self._durations[one].count}" for one in OPERATIONS]
        name = "nvidia_dra_request_duration_seconds"
        lines += head(name, "histogram", "How long that took.")
        for one in OPERATIONS:
            lines += self._durations[one].lines(name, driver=self.driver, operation=one)
        name = "nvidia_dra_requests_inflight"
        lines += head(name, "gauge", "Claims that are being prepared or unprepared.")
        lines += [f"{name}{self._labels(operation=one)} {self._inflight[one]}" for one in OPERATIONS]

    def _prepared(self, lines: list[str], records: Iterable[ClaimRecord]) -> None:
        counts: Counter[str] = Counter()
        for record in records:
            if record.done:
                counts.update(self.types[bool(device.size)] for device in record.devices)
        name = "nvidia_dra_prepared_devices"
        lines += head(name, "gauge", "Devices that are prepared for claims, by their type.")
        lines += [
            f"{name}{self._labels(node=self.node, device_type=kind)} {counts[kind]}"
            for kind in dict.fromkeys(self.types)
        ]

    def _labels(self, **more: str) -> str:
        return label_text(driver=self.driver, **more)
