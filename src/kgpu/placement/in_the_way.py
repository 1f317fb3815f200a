"""Where no moves make room: the pods on the nodes that come closest, each with what keeps it where it is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from kgpu.fit import PodView, verdict
from kgpu.fit.model import BudgetView
from kgpu.fit.snapshot import NodeState
from kgpu.placement.capacity import takes_pods
from kgpu.placement.model import PodInTheWay
from kgpu.placement.state import PlacementState

MOST_NODES: Final = 3
"""Nodes of which it is said what is in the way."""


def in_the_way(
    state: PlacementState, resource: str, wanted: int, stays: Mapping[str, str]
) -> tuple[PodInTheWay, ...]:  # fmt: skip
    """Of the nodes that are large enough, those first on which pods that have to stay hold least.

    ``stays``: by the id of each pod that holds the resource why it may not be moved, "" for one that may.
    """
    look = _Look(state, resource, stays)
    able = [
        node for node in state.snapshot.nodes.values()
        if takes_pods(node) and node.view.allocatable.get(resource, 0) >= wanted
    ]  # fmt: skip
    able.sort(key=lambda node: (wanted - node.view.allocatable[resource] + look.kept(node), node.name))
    return tuple(one for node in able[:MOST_NODES] for one in look.on(node))


class _Look:
    def __init__(self, state: PlacementState, resource: str, stays: Mapping[str, str]) -> None:
        self._snapshot, self._resource, self._stays = state.snapshot, resource, stays

    def kept(self, node: NodeState) -> int:
        """How many devices pods hold that have to stay, whatever is free elsewhere."""
        held = self._holders(node)
        return sum(pod.used[self._resource] for pod in held if self._stays[pod.id] or self._protected(pod, held))

    def on(self, node: NodeState) -> Iterator[PodInTheWay]:
        """The node's pods, those that could be moved by themselves last."""
        held = self._holders(node)
        rows = [(self._stays[pod.id] or self._protected(pod, held) or self._fixed(pod), pod) for pod in held]
        for why, pod in sorted(rows, key=lambda row: (not row[0], row[1].key)):
            yield PodInTheWay(
                pod=pod, node=node.name, devices=pod.used[self._resource],
                why=why or "could be moved by itself, but not all that would have to go",
            )  # fmt: skip

    def _holders(self, node: NodeState) -> list[PodView]:
        return [pod for pod in node.pods.values() if pod.used.get(self._resource)]

    def _protected(self, pod: PodView, held: list[PodView]) -> str:
        """By a budget that lets fewer go than there are of its pods on the node."""
        for budget in self._snapshot.shelf.budgets.values():
            if _is_of(pod, budget) and budget.allowed < sum(_is_of(one, budget) for one in held):
                return f"is of PodDisruptionBudget {budget.name}, which allows {budget.allowed} disruptions now"
        return ""

    def _fixed(self, pod: PodView) -> str:
        """Whether no other node takes it, and what they lack."""
        self._snapshot.drop(pod)
        try:
            found = verdict(replace(pod, node="", nominated="", preempts=False), self._snapshot)
        finally:
            self._snapshot.put(pod)
        if set(found.fits) - {pod.node}:
            return ""
        lacks = Counter(
            miss.phrase for name, refusal in found.refused.items() if name != pod.node for miss in refusal.misses
        )
        counts = ", ".join(f"{count} {phrase}" for phrase, count in sorted(lacks.items()))
        return "fits no other node" + (f" ({counts})" if counts else "")


def _is_of(pod: PodView, budget: BudgetView) -> bool:
    return budget.namespace == pod.namespace and budget.selector.matches(pod.labels)
