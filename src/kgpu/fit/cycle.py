"""One pod against the cluster: every filter prepared once, then node after node judged as kube-scheduler judges them.

Order and short cuts are the scheduler's: the first filter that fails a node gives its phrases, a filter that finds
beforehand that no node can do ends the matter, pods of equal or higher priority that room was made for count as if
they were there, and the answer must hold without them too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kgpu.fit import claims, filters_node, filters_pods, filters_spread, filters_volume
from kgpu.fit.checks import PASS, Checker, Filter, Misses, Rejection
from kgpu.fit.model import PodView
from kgpu.fit.snapshot import ClusterSnapshot, NodeState

FILTERS: Final[tuple[Filter, ...]] = (
    *filters_node.FILTERS,
    *filters_volume.FILTERS,
    *filters_spread.FILTERS,
    *filters_pods.FILTERS,
    *claims.FILTERS,
)
"""In the order of kube-scheduler's default profile."""


@dataclass(frozen=True, slots=True)
class FilterRefusal:
    """What one filter has against a node."""

    filter: str
    misses: Misses

    @property
    def resolvable(self) -> bool:
        """False when any miss is one that removing pods can't mend."""
        return all(miss.resolvable for miss in self.misses)


class Cycle:
    """The filters prepared for a pod. Good until the snapshot changes."""

    def __init__(self, pod: PodView, snapshot: ClusterSnapshot) -> None:
        self.pod = pod
        self.snapshot = snapshot
        self.rejection: Rejection | None = None
        self.checkers: list[tuple[str, Checker]] = []
        for row in FILTERS:
            prepared = row.prepare(pod, snapshot)
            if isinstance(prepared, Rejection):
                self.rejection = prepared
                break
            if prepared is not None:
                self.checkers.append((row.name, prepared))
        self.only = filters_node.named_nodes(pod)
        """The names that the pod's affinity narrows the search to, None for all nodes."""

    def candidates(self) -> Iterable[NodeState]:
        """The nodes that are looked at at all."""
        nodes = self.snapshot.nodes
        return nodes.values() if self.only is None else [nodes[name] for name in sorted(self.only) if name in nodes]

    def judge(self, node: NodeState) -> FilterRefusal | None:
        """None when the pod fits the node. Raises FilterFaultError."""
        return self._judge(node, self.checkers, self.snapshot.nominated_at(node.name, self.pod))

    def judge_changed(self, node: NodeState, checkers: list[tuple[str, Checker]]) -> FilterRefusal | None:
        """The same for a trial: a copy of a node, and forks of ``checkers`` that know what was changed on it."""
        return self._judge(node, checkers, self.snapshot.nominated_at(node.name, self.pod))

    def _judge(
        self, node: NodeState, checkers: list[tuple[str, Checker]], nominated: list[PodView]
    ) -> FilterRefusal | None:
        if nominated:
            crowded, forks = self.with_pods(node, checkers, nominated)
            refusal = _first(crowded, forks)
            if refusal is not None:
                return refusal
        return _first(node, checkers)

    @staticmethod
    def with_pods(
        node: NodeState, checkers: list[tuple[str, Checker]], pods: list[PodView]
    ) -> tuple[NodeState, list[tuple[str, Checker]]]:
        """A copy of the node with further pods on it, and checkers that know of them."""
        crowded = node.copy()
        forks = [(name, checker.fork() if checker.moves else checker) for name, checker in checkers]
        for pod in pods:
            if pod.id in crowded.pods:
                continue
            crowded.add(pod)
            for _, checker in forks:
                checker.moved(pod, crowded, 1)
        return crowded, forks


def _first(node: NodeState, checkers: list[tuple[str, Checker]]) -> FilterRefusal | None:
    for name, checker in checkers:
        misses = checker.check(node)
        if misses is not PASS and misses:
            return FilterRefusal(name, misses)
    return None
