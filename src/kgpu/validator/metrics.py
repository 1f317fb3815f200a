"""The replaced node-status exporter's metrics, from the validator's folder, with the same names, labels and -1 for
unknown.

A scrape reads the files at that moment; nothing is polled, and nothing here touches a driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.metric_text import head, label_text, page
from kgpu.validator.files import Folder, ready
from kgpu.validator.model import Check, NodeValidation, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStatus:
    """What was read: the files that exist, the report (None without one), and when the exporter became ready."""

    present: frozenset[str]
    report: NodeValidation | None
    since: float


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name, help, and the function that computes its value."""

    name: str
    help: str
    value: Callable[[SeenStatus], float]


def _present(check: Check) -> Callable[[SeenStatus], float]:
    return lambda seen: float(ready(check) in seen.present)


def _passed(check: Check) -> Callable[[SeenStatus], float]:
    def value(seen: SeenStatus) -> float:
        result = seen.report.result(check) if seen.report else None
        return float(result is not None and result.status is Status.PASSED)

    return value


def _success(check: Check) -> Callable[[SeenStatus], float]:
    return lambda seen: dict(seen.report.times).get(str(check), 0.0) if seen.report else 0.0


def _devices(seen: SeenStatus) -> float:
    """Allocatable devices, from what the plugin check saw; -1 while it has not passed."""
    result = seen.report.result(Check.PLUGIN) if seen.report else None
    if result is None or result.status is not Status.PASSED or result.allocatable is None:
        return -1.0
    return float(result.allocatable)


METRICS: Final = (
    Metric("gpu_operator_node_metrics_ready_ts_seconds", "When these metrics became available, in seconds since the "
           "epoch", lambda seen: seen.since),
    Metric("gpu_operator_node_driver_ready", "1 when the driver check is ready on this node", _present(Check.DRIVER)),
    Metric("gpu_operator_node_toolkit_ready", "1 when the toolkit check is ready on this node",
           _present(Check.TOOLKIT)),
    Metric("gpu_operator_node_cuda_ready", "1 when the CUDA check is ready on this node", _present(Check.CUDA)),
    Metric("gpu_operator_node_plugin_ready", "1 when the device plugin check is ready on this node",
           _present(Check.PLUGIN)),
    Metric("gpu_operator_node_driver_validation", "1 when every GPU passed the last driver check",
           _passed(Check.DRIVER)),
    Metric("gpu_operator_node_driver_validation_last_success_ts_seconds", "When the driver check last became good, in "
           "seconds since the epoch", _success(Check.DRIVER)),
    Metric("gpu_operator_node_device_plugin_devices_total", "Devices that the Node has allocatable, -1 when unknown",
           _devices),
    Metric("gpu_operator_node_device_plugin_validation_last_success_ts_seconds", "When the device plugin check last "
           "became good, in seconds since the epoch", _success(Check.PLUGIN)),
    Metric("gpu_operator_nvidia_pci_devices_total", "NVIDIA GPUs on the PCI bus, -1 when unknown",
           lambda seen: float(seen.report.pci_devices) if seen.report else -1.0),
)  # fmt: skip


def look(folder: Path, *, since: float) -> SeenStatus:
    """Read the folder. ``since`` is when the exporter became ready, in seconds since the epoch."""
    files = Folder(folder)
    names = (ready(check) for check in Check)
    return SeenStatus(
        present=frozenset(name for name in names if files.exists(name)), report=files.report(), since=since
    )


def render(seen: SeenStatus, node: str) -> str:
    """The metrics in Prometheus' text format."""
    label = label_text(node=node)
    lines: list[str] = []
    for metric in METRICS:
        lines += [*head(metric.name, "gauge", metric.help), f"{metric.name}{label} {metric.value(seen):.17g}"]
    return page(lines)
