"""The fewest moves that free so many devices on one node, each proven by ``fit`` at its turn. Pure; nothing is applied.

Every move takes a pod from a node to another one that it fits at that moment, so that the moves can be made in their
order. Searched breadth first over states of the cluster: in a small one all of them, so that no shorter plan exists; in
a large one only nodes and places that promise most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.plain import mapping
from kgpu.fit import PodView, verdict
from kgpu.fit.snapshot import ClusterSnapshot
from kgpu.placement.capacity import PodShape, free_of, takes_pods
from kgpu.placement.in_the_way import in_the_way
from kgpu.placement.model import DefragPlan, PodMove
from kgpu.placement.state import PlacementState

MOST_MOVES: Final = 10
SMALL: Final = 8
"""Nodes up to which all are looked at."""
_WIDTH: Final = 48
"""States that are followed from each step, where there are more nodes."""
_SMALL_WIDTH: Final = 20_000
_SYSTEM: Final = "kube-system"
_KEEP: Final = (
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", ("false",)),
    ("descheduler.alpha.kubernetes.io/prefer-no-eviction", ("true",)),
    ("karpenter.sh/do-not-disrupt", None),
)
"""Annotations by which pods ask to stay, with the values that do; None for any but false."""
_ENDS: Final = ("Job/", "PyTorchJob/", "MPIJob/", "RayJob/", "JobSet/", "LeaderWorkerSet/")
"""Controllers whose pods lose their work when they move."""


def immovable(state: PlacementState, pod: PodView) -> str:
    """Why a pod has to stay where it is, "" where it may be moved."""
    annotations = mapping(mapping(state.pod_object(pod).get("metadata")).get("annotations"))
    rows = (
        (pod.deleting, "is ending"),
        (not pod.owner, "has no controller"),
        (pod.owner.startswith("DaemonSet/"), "is of a DaemonSet"),
        (state.is_mirror(pod), "is a static pod"),
        (pod.owner.startswith(_ENDS), "would lose its work"),
        (pod.namespace == _SYSTEM, f"is in {_SYSTEM}"),
        (bool(pod.claims), "holds resource claims"),
        (any(_asks(annotations, key, values) for key, values in _KEEP), "asks to stay by an annotation"),
    )
    return next((why for holds, why in rows if holds), "")


def _asks(annotations: Mapping[str, object], key: str, values: tuple[str, ...] | None) -> bool:
    said = annotations.get(key)
    return said is not None and (said in values if values is not None else said != "false")


@dataclass(frozen=True, slots=True)
class _Trial:
    """Moves made so far, and where the pods are that they moved."""

    moves: tuple[PodMove, ...] = ()

    def places(self) -> dict[str, str]:
        return {move.pod.id: move.target for move in self.moves}


def defragment(state: PlacementState, resource: str, wanted: int) -> DefragPlan:
    """Free ``wanted`` devices on some node."""
    return _MoveSearch(state, resource, wanted).plan()


class _MoveSearch:
    def __init__(self, state: PlacementState, resource: str, wanted: int) -> None:
        self.state, self.snapshot = state, state.snapshot
        self.resource, self.wanted = resource, wanted
        holders = [pod for pod in self.snapshot.all_placed() if pod.used.get(resource)]
        self.stays = {pod.id: immovable(state, pod) for pod in holders}
        self.movable = {pod.id: pod for pod in holders if not self.stays[pod.id]}
        self.fixed = Counter(why for why in self.stays.values() if why)
        self.budgets = list(self.snapshot.shelf.budgets.values())
        self.small = len(self.snapshot.nodes) <= SMALL
        self.kinds: dict[str, tuple[object, ...]] = {}

    def plan(self) -> DefragPlan:
        base = DefragPlan(resource=self.resource, wanted=self.wanted, fixed=dict(self.fixed))
        reachable = [node.view.allocatable.get(self.resource, 0) for node in self.snapshot.nodes.values()
                     if takes_pods(node)]  # fmt: skip
        if max(reachable, default=0) < self.wanted:
            most = max(reachable, default=0)
            return replace(
                base, why=f"no node has {self.wanted} {self.resource}: the largest that takes pods has {most}"
            )
        level, seen = [_Trial()], set[object]()
        for _ in range(MOST_MOVES + 1):
            found = next((trial for trial in level if self._goal(trial)), None)
            if found is not None:
                return replace(base, node=self._goal(found), moves=found.moves)
            level = self._next(level, seen)
            if not level:
                break
        kept = sum(self.fixed.values())
        why = f"no {MOST_MOVES} moves or fewer of the pods that may be moved do it"
        return replace(
            base, why=why + (f"; {kept} {'has' if kept == 1 else 'have'} to stay" if kept else ""),
            in_the_way=in_the_way(self.state, self.resource, self.wanted, self.stays),
        )  # fmt: skip

    def _goal(self, trial: _Trial) -> str:
        """The node that has room then, "" for none."""
        with _Made(self.snapshot, trial):
            fitting = [
                node.name for node in self.snapshot.nodes.values() if free_of(node, self.resource) >= self.wanted
            ]
        return min(fitting, default="")

    def _next(self, level: list[_Trial], seen: set[object]) -> list[_Trial]:
        found: list[tuple[tuple[int, int], _Trial]] = []
        for trial in level:
            with _Made(self.snapshot, trial):
                for move in self._moves(trial):
                    grown = _Trial((*trial.moves, move))
                    with _Made(self.snapshot, _Trial((move,))):
                        key = self._key()
                        if key not in seen:
                            seen.add(key)
                            found.append((self._distance(), grown))
        found.sort(key=lambda row: row[0])
        return [trial for _, trial in found[: _SMALL_WIDTH if self.small else _WIDTH]]

    def _moves(self, trial: _Trial) -> Iterator[PodMove]:
        """One for each different kind of pod, source and target; a pod moves once."""
        moved = trial.places()
        known: set[object] = set()
        for source in self._sources():
            for pod in sorted(self.snapshot.nodes[source].pods.values(), key=lambda one: one.key):
                kind = (source, self._kind(pod))
                if pod.id not in self.movable or pod.id in moved or kind in known or not self._allowed(pod, trial):
                    continue
                known.add(kind)
                for target in self._targets(pod, source):
                    yield PodMove(pod=self.movable[pod.id], source=source, target=target)

    def _sources(self) -> list[str]:
        """The nodes to take pods from: all of a small cluster, else those that miss least."""
        nodes = [node for node in self.snapshot.nodes.values() if node.used.get(self.resource)]
        if self.small:
            return [node.name for node in nodes]
        able = [node for node in nodes if takes_pods(node) and node.view.allocatable[self.resource] >= self.wanted]
        able.sort(key=lambda node: (self.wanted - free_of(node, self.resource), node.name))
        return [node.name for node in able[:SMALL]]

    def _targets(self, pod: PodView, source: str) -> Iterable[str]:
        """Where it fits without itself: all of a small cluster, else the fullest."""
        self.snapshot.drop(pod)
        try:
            fits = verdict(replace(pod, node="", nominated="", preempts=False), self.snapshot).fits
        finally:
            self.snapshot.put(pod)
        others = [name for name in fits if name != source]
        if self.small:
            return others
        return sorted(others, key=lambda name: (free_of(self.snapshot.nodes[name], self.resource), name))[:SMALL]

    def _allowed(self, pod: PodView, trial: _Trial) -> bool:
        """Whether PodDisruptionBudgets let one more of theirs go, all moves taken together."""
        for budget in self.budgets:
            if budget.namespace == pod.namespace and budget.selector.matches(pod.labels):
                gone = sum(budget.selector.matches(move.pod.labels) for move in trial.moves
                           if move.pod.namespace == budget.namespace)  # fmt: skip
                if gone >= budget.allowed:
                    return False
        return True

    def _kind(self, pod: PodView) -> tuple[object, ...]:
        """Pods of one kind are the same to every filter: of one owner, with the same requests."""
        known = self.kinds.get(pod.id)
        if known is None:
            known = self.kinds[pod.id] = (pod.namespace, pod.owner, PodShape.of(pod), tuple(sorted(pod.labels.items())))
        return known

    def _key(self) -> object:
        """States that differ only in which of alike pods is where are one."""
        rows = Counter((pod.node, self._kind(pod)) for pod in self.snapshot.all_placed() if pod.id in self.movable)
        return frozenset(rows.items())

    def _distance(self) -> tuple[int, int]:
        free = [free_of(node, self.resource) for node in self.snapshot.nodes.values()]
        return (max(0, self.wanted - max(free, default=0)), -sum(many * many for many in free))


class _Made:
    """Moves made in the snapshot for as long as the block lasts."""

    def __init__(self, snapshot: ClusterSnapshot, trial: _Trial) -> None:
        self._snapshot, self._moves = snapshot, trial.moves

    def __enter__(self) -> None:
        for move in self._moves:
            self._snapshot.put(replace(self._snapshot.pods[move.pod.id], node=move.target))

    def __exit__(self, *_: object) -> None:
        for move in reversed(self._moves):
            self._snapshot.put(replace(self._snapshot.pods[move.pod.id], node=move.source))
