"""What is counted of rules, Nodes and NodeFeatures, under the names of node feature discovery's master and collector.

How long rules take is told by their object's name alone, for all nodes together: by node, too, a thousand nodes with a
hundred objects would have more than a million series.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kgpu import __version__
from kgpu.base.metric_text import Durations, head, label_text, page
from kgpu.discovery.rules.outputs import LABEL, RESOURCE, TAINT, RejectedOutput

REQUESTS: Final = "nfd_master_node_update_requests_total"
UPDATES: Final = "nfd_master_node_updates_total"
FAILURES: Final = "nfd_master_node_update_failures_total"
ERRORS: Final = "nfd_master_nodefeaturerule_processing_errors_total"
DURATION: Final = "nfd_master_nodefeaturerule_processing_duration_seconds"
GROUPS: Final = "nfd_master_node_feature_group_update_requests_total"
REJECTED: Final = {
    LABEL: "nfd_master_node_labels_rejected_total",
    RESOURCE: "nfd_master_node_extendedresources_rejected_total",
    TAINT: "nfd_master_node_taints_rejected_total",
}
COUNTERS: Final = (
    (REQUESTS, "Nodes that were evaluated because something had changed."),
    (UPDATES, "Nodes that were changed."),
    (FAILURES, "Changes of Nodes that the API server has not taken."),
    (REJECTED[LABEL], "Labels that a Node may not get."),
    (REJECTED[RESOURCE], "Extended resources that a Node may not get."),
    (REJECTED[TAINT], "Taints that a Node may not get."),
    (ERRORS, "Rules that could not be carried out on a node."),
    (GROUPS, "Changes of the status of NodeFeatureGroups."),
)
BUILDS: Final = ("nfd_master_build_info", "nfd_gc_build_info")
DELETED: Final = "nfd_gc_objects_deleted_total"
NOT_DELETED: Final = "nfd_gc_object_delete_failures_total"
_KIND: Final = {"kind": "NodeFeature"}


@dataclass(slots=True)
class MasterFigures:
    """One operator's, from its start on."""

    now: Callable[[], float] = time.monotonic
    counts: Counter[str] = field(default_factory=Counter)
    durations: dict[str, Durations] = field(default_factory=dict)

    def count(self, name: str) -> None:
        """One more of a row of ``COUNTERS``, ``DELETED`` or ``NOT_DELETED``."""
        self.counts[name] += 1

    def evaluated(self, rejected: Iterable[RejectedOutput], failures: int) -> None:
        """A node was evaluated."""
        self.counts[REQUESTS] += 1
        self.counts[ERRORS] += failures
        self.counts.update(REJECTED[one.kind] for one in rejected if one.kind in REJECTED)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """The rules of an object of this name are carried out in the block."""
        begin = self.now()
        yield
        self.durations.setdefault(name, Durations()).add(self.now() - begin)

    def keep(self, names: Iterable[str]) -> None:
        """Forget durations of rules of other names than these."""
        kept = set(names)
        for name in self.durations.keys() - kept:
            del self.durations[name]

    def text(self) -> str:
        """All of it in Prometheus' text format."""
        lines: list[str] = []
        for name in BUILDS:
            lines += [*head(name, "gauge", "The version that runs."), f"{name}{label_text(version=__version__)} 1"]
        for name, about in COUNTERS:
            lines += [*head(name, "counter", about), f"{name} {self.counts[name]}"]
        for name, about in ((DELETED, "Objects of nodes that are gone, deleted."), (NOT_DELETED, "Those refused.")):
            lines += [*head(name, "counter", about), f"{name}{label_text(**_KIND)} {self.counts[name]}"]
        lines += head(DURATION, "histogram", "How long the rules of one NodeFeatureRule take on a node.")
        for name, durations in sorted(self.durations.items()):
            lines += durations.lines(DURATION, name=name)
        return page(lines)
