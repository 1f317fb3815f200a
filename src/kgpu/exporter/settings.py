"""The settings of one plan (``config.py`` reads them from flags and variables)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from kgpu.exporter.counters import CountedMetric, default_counters
from kgpu.exporter.devices import DeviceSelector
from kgpu.exporter.labels import PodLabels, Style

SERIES_LIMIT: Final = 20_000


class Virtual(enum.StrEnum):
    """Whether a container's series have what its own processes use, beside one series of the device.

    ``AUTO``: of a device that is offered in several shares; a container's shares of it are one series, so that a pod's
    sums are right. ``ALWAYS``: of every device, and each share has a series, as the replaced exporter has it.
    """

    AUTO = "auto"
    ALWAYS = "true"
    NEVER = "false"


class Pods(enum.StrEnum):
    """How users are shown: on every series, or in one info metric to join with (fewer labels on everything)."""

    EACH = "each"
    JOIN = "join"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings:
    """``pod_labels`` None: none of the pods' own. ``resources`` are counted as GPUs beside the usual ones.

    ``without``: labels that the series budget has dropped. ``series_limit``: the most series per scrape, and different
    ones in an hour.
    """

    counters: tuple[CountedMetric, ...] = field(default_factory=default_counters)
    style: Style = field(default_factory=Style)
    devices: DeviceSelector = field(default_factory=DeviceSelector)
    cpus: DeviceSelector = field(default_factory=DeviceSelector)
    kubernetes: bool = True
    pods: Pods = Pods.EACH
    pod_uid: bool = False
    pod_labels: PodLabels | None = None
    virtual_gpus: Virtual = Virtual.AUTO
    resources: frozenset[str] = frozenset()
    mig_copies: bool = False
    own_metrics: bool = True
    series_limit: int = SERIES_LIMIT
    without: frozenset[str] = frozenset()
