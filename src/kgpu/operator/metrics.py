"""The operator's own figures as Prometheus text, under the replaced operator's names (``gpu_operator_*``).

What the plan knows (nodes, state) comes with the plan; what only the process knows (passes, writes) is counted here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from kgpu.base.metric_text import head, page

PREFIX: Final = "gpu_operator_"
NO_POLICY: Final = -1.0
OPERATOR_ERROR: Final = -2.0

# (name without the prefix, type, help); figures of the plan that have no row here are gauges without a help line.
ROWS: Final = (
    ("gpu_nodes_total", "gauge", "Nodes with GPUs."),
    ("reconciliation_status", "gauge", "1 ready, 0 not ready, -1 no ClusterPolicy, -2 the operator failed."),
    ("reconciliation_last_success_ts_seconds", "gauge", "Time of the last pass after which everything was ready."),
    ("reconciliation_total", "counter", "Passes."),
    ("reconciliation_failed_total", "counter", "Passes after which not everything was ready."),
    ("reconciliation_has_nfd_labels", "gauge", "1 when some Node has feature labels."),
    ("openshift_driver_toolkit_enabled", "gauge", "OpenShift's driver toolkit: 1 used, 0 not wanted, -1 it can't be."),
    ("openshift_driver_toolkit_nfd_too_old", "gauge", "1 when nodes with RHCOS do not tell its version."),
    ("openshift_driver_toolkit_imagestream_missing", "gauge", "1 when the toolkit's image stream is missing."),
    ("openshift_driver_toolkit_rhcos_tags_missing", "gauge", "1 when the image stream lacks the nodes' versions."),
    ("openshift_driver_toolkit_imagestream_broken", "gauge", "1 when the image stream is broken."),
    ("driver_auto_upgrade_enabled", "gauge", "1 when drivers are upgraded by themselves."),
    ("nodes_upgrades_in_progress", "gauge", "Nodes whose driver is being upgraded."),
    ("nodes_upgrades_done", "gauge", "Nodes that run the driver that is asked for."),
    ("nodes_upgrades_failed", "gauge", "Nodes whose driver upgrade has failed."),
    (
        "nodes_upgrades_available",
        "gauge",
        "How many driver upgrades may begin now, by maxParallelUpgrades and maxUnavailable.",
    ),
    ("nodes_upgrades_pending", "gauge", "Nodes that need a driver upgrade which has not begun."),
)
# Of kgpu alone, by their whole names.
OWN_ROWS: Final = (
    ("kgpu_operator_writes_total", "counter", "Writes to the API server by kind."),
    ("kgpu_operator_events_dropped_total", "counter", "Events that were not written because there were too many."),
    ("kgpu_operator_plan_seconds", "gauge", "How long the last plan took to make."),
)


class OperatorFigures:
    """Counts and gauges of one operator."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._gauges: dict[str, float] = {"reconciliation_status": NO_POLICY}
        self._writes: Counter[str] = Counter()
        self.passes = 0
        self.failed = 0
        self.last_success = 0.0
        self.plan_seconds = 0.0
        self.events_dropped = 0

    def wrote(self, kind: str) -> None:
        """Count a write of an object of that kind to the API server; leader election's are not counted."""
        self._writes[kind] += 1

    def dropped(self, events: int) -> None:
        """Count Events that were not written because there were too many."""
        self.events_dropped += events

    @property
    def writes(self) -> Mapping[str, int]:
        """Writes by kind."""
        return dict(self._writes)

    def passed(self, gauges: Mapping[str, float]) -> None:
        """Count a pass that has ended, with the plan's metrics."""
        self.passes += 1
        figures = {name.removeprefix(PREFIX): value for name, value in gauges.items()}
        self._gauges = {"reconciliation_status": NO_POLICY, **figures}
        if self._gauges["reconciliation_status"] == 1.0:
            self.last_success = self._now()
        else:
            self.failed += 1

    def broke(self) -> None:
        """Count a pass that ended with an error of the operator or the API server."""
        self.passes += 1
        self.failed += 1
        self._gauges["reconciliation_status"] = OPERATOR_ERROR

    def text(self) -> str:
        """All figures in Prometheus' text format."""
        values = {
            **self._gauges,
            "reconciliation_total": float(self.passes),
            "reconciliation_failed_total": float(self.failed),
            "reconciliation_last_success_ts_seconds": self.last_success,
        }
        known = {name for name, _, _ in ROWS}
        rows = [*ROWS, *((name, "gauge", "") for name in sorted(values.keys() - known))]
        lines: list[str] = []
        for name, kind, help_text in rows:
            if name in values:
                full = PREFIX + name
                heads = head(full, kind, help_text)
                lines += [*(heads if help_text else heads[1:]), f"{full} {_number(values[name])}"]
        samples = (
            [f'{{kind="{kind}"}} {count}' for kind, count in sorted(self._writes.items())],
            [f" {self.events_dropped}"],
            [f" {self.plan_seconds:.6f}"],
        )
        for (full, kind, help_text), series in zip(OWN_ROWS, samples, strict=True):
            lines += [*head(full, kind, help_text), *(f"{full}{sample}" for sample in series)]
        return page(lines)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
