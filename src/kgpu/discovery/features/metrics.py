"""How long it takes to read what a node has, under the names of node feature discovery's worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kgpu import __version__
from kgpu.base.metric_text import Durations, head, label_text, page

BUILD: Final = "nfd_worker_build_info"
DURATION: Final = "nfd_worker_feature_discovery_duration_seconds"


@dataclass(slots=True)
class WorkerFigures:
    """One node's, from the role's start on."""

    node: str
    durations: Durations = field(default_factory=Durations)

    def text(self) -> str:
        """All of it in Prometheus' text format."""
        lines = [*head(BUILD, "gauge", "The version that runs."), f"{BUILD}{label_text(version=__version__)} 1"]
        lines += head(DURATION, "histogram", "How long it takes to read what a node has.")
        return page([*lines, *self.durations.lines(DURATION, node=self.node)])
