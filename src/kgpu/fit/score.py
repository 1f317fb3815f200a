"""Which of the nodes that fit is best: the default profile's scores and weights, without image locality.

Every score is 0 to 100 before its weight. Pure: views in, points out. Spreading of pods without constraints goes by
their controller, where kube-scheduler looks for services and sets that select them. ``pack`` is a profile whose
NodeResourcesFit has the strategy MostAllocated with weight 10 for extended resources, where the default spreads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from kgpu.fit.claims import NAME
from kgpu.fit.extended import extended_ask
from kgpu.fit.filters_pods import ResolvedTerm, repels
from kgpu.fit.model import CPU, MEMORY, PodTerm, PodView, Spread
from kgpu.fit.selectors import Labels, tolerated
from kgpu.fit.snapshot import ClusterSnapshot, NodeState
from kgpu.formats.names import LABEL_HOSTNAME, LABEL_ZONE

Points: TypeAlias = dict[str, float]
"""By node."""

ScoreRule: TypeAlias = Callable[[PodView, list[NodeState], ClusterSnapshot], Points]

BEST: Final = 100.0
# The weight of a running pod's required affinity for a pod that it selects.
_REQUIRED_DRAWS: Final = 1
# The weight of an extended resource beside 1 for processors and memory, where pods are packed.
_EXTENDED: Final = 10


class ScoreFaultError(Exception):
    """A score that can't be had: kube-scheduler gives the pod up for now."""

    def __init__(self, plugin: str, words: str) -> None:
        super().__init__(f'running Score plugins: plugin "{plugin}" failed with: {words}')


def scores(pod: PodView, nodes: list[NodeState], snapshot: ClusterSnapshot, *, pack: bool = False) -> Points:
    """The weighted sum for each node. Raises ScoreFaultError."""
    total: Points = dict.fromkeys((node.name for node in nodes), 0.0)
    for weight, rule in _PACKING_RULES if pack else _RULES:
        for name, points in rule(pod, nodes, snapshot).items():
            total[name] += weight * points
    return total


def _taints(pod: PodView, nodes: list[NodeState], _: ClusterSnapshot) -> Points:
    counts: Points = {}
    for node in nodes:
        if node.view.taints:
            soft = [taint for taint in node.view.taints if taint.effect == "PreferNoSchedule"]
            if count := sum(not tolerated(taint, pod.tolerations) for taint in soft):
                counts[node.name] = float(count)
    if not counts:
        return {}  # the same for all
    return _normal({node.name: counts.get(node.name, 0.0) for node in nodes}, less_is_better=True)


def _affinity(pod: PodView, nodes: list[NodeState], _: ClusterSnapshot) -> Points:
    if not pod.preferred_nodes:
        return {}
    return _normal(
        {
            node.name: float(
                sum(
                    preference.weight
                    for preference in pod.preferred_nodes
                    if preference.term.matches(node.labels, node.name)
                )
            )
            for node in nodes
        }
    )


def _room(pod: PodView, nodes: list[NodeState], _: ClusterSnapshot) -> Points:
    """Least allocated and balanced allocation, of equal weight. Called for every node of every pod: kept fast."""
    cpu, memory = pod.nonzero.get(CPU, 0), pod.nonzero.get(MEMORY, 0)
    cpu_asked, memory_asked = pod.requests.get(CPU, 0), pod.requests.get(MEMORY, 0)
    points: Points = {}
    for node in nodes:
        allocatable, nonzero, used = node.view.allocatable, node.nonzero, node.used
        cpus, bytes_ = allocatable.get(CPU), allocatable.get(MEMORY)
        free, kinds, balance = 0.0, 0, 0.0
        if cpus:
            free += max(0.0, 1 - (nonzero.get(CPU, 0) + cpu) / cpus)
            kinds += 1
            balance = min(1.0, (used.get(CPU, 0) + cpu_asked) / cpus)
        if bytes_:
            free += max(0.0, 1 - (nonzero.get(MEMORY, 0) + memory) / bytes_)
            kinds += 1
            balance -= min(1.0, (used.get(MEMORY, 0) + memory_asked) / bytes_)
        if kinds:
            even = 1 - abs(balance) / 2 if kinds > 1 else 1.0
            points[node.name] = BEST * (free / kinds + even)
    return points


def _packed(pod: PodView, nodes: list[NodeState], _: ClusterSnapshot) -> Points:
    """Most allocated: the fuller the node is with the pod on it, the better. Extended resources count if asked for."""
    extended = {name: _EXTENDED for name, amount in pod.requests.items() if "/" in name and amount}
    weights = {CPU: 1, MEMORY: 1, **extended}
    points: Points = {}
    for node in nodes:
        there = {name: node.view.allocatable.get(name, 0) for name in weights}
        total = sum(weights[name] for name, amount in there.items() if amount)
        full = sum(
            weights[name] * min(1.0, (node.used.get(name, 0) + pod.requests.get(name, 0)) / amount)
            for name, amount in there.items()
            if amount
        )
        points[node.name] = BEST * full / total if total else 0.0
    return points


def _spread(pod: PodView, nodes: list[NodeState], snapshot: ClusterSnapshot) -> Points:
    soft = [constraint for constraint in pod.spread if not constraint.hard]
    if soft:
        return _by_constraints(pod, soft, nodes, snapshot)
    if pod.spread or not pod.owner:
        return {}
    siblings = [
        sibling
        for sibling in snapshot.placed_in((pod.namespace,))
        if sibling.owner == pod.owner and not sibling.deleting
    ]
    if not siblings:
        return {}
    return _crowding([(LABEL_HOSTNAME, siblings), (LABEL_ZONE, siblings)], nodes, snapshot)


def _by_constraints(pod: PodView, soft: list[Spread], nodes: list[NodeState], snapshot: ClusterSnapshot) -> Points:
    placed = [placed_pod for placed_pod in snapshot.placed_in((pod.namespace,)) if not placed_pod.deleting]
    return _crowding(
        [
            (
                constraint.topology_key,
                [placed_pod for placed_pod in placed if constraint.selector.matches(placed_pod.labels)],
            )
            for constraint in soft
        ],
        nodes,
        snapshot,
    )


def _crowding(rules: list[tuple[str, list[PodView]]], nodes: list[NodeState], snapshot: ClusterSnapshot) -> Points:
    crowding: Points = dict.fromkeys((node.name for node in nodes), 0.0)
    for key, pods in rules:
        counts: dict[str, int] = {}
        for pod in pods:
            domain = snapshot.nodes[pod.node].labels.get(key)
            if domain is not None:
                counts[domain] = counts.get(domain, 0) + 1
        for node in nodes:
            crowding[node.name] += counts.get(node.labels.get(key, ""), 0)
    return _normal(crowding, less_is_better=True)


def _neighbours(pod: PodView, nodes: list[NodeState], snapshot: ClusterSnapshot) -> Points:
    pairs: dict[tuple[str, str], int] = {}
    for term in pod.preferred_pods:
        reach = ResolvedTerm(term, snapshot)
        for neighbour in reach.candidates(snapshot):
            if reach.matches(neighbour):
                _draw(pairs, term, snapshot.nodes[neighbour.node].labels, term.weight)
    home = snapshot.namespace_labels(pod.namespace)
    for neighbour in snapshot.inclined.values():
        labels = snapshot.nodes[neighbour.node].labels
        for term in neighbour.preferred_pods:
            if repels(term, pod, home):
                _draw(pairs, term, labels, term.weight)
        for term in neighbour.affinity:
            if repels(term, pod, home):
                _draw(pairs, term, labels, _REQUIRED_DRAWS)
    if not pairs:
        return {}
    keys = {key for key, _ in pairs}
    raw = {
        node.name: float(sum(pairs.get((key, node.labels[key]), 0) for key in keys if key in node.labels))
        for node in nodes
    }
    least = min(raw.values())
    return _normal({name: points - least for name, points in raw.items()})


def _choices(pod: PodView, nodes: list[NodeState], snapshot: ClusterSnapshot) -> Points:
    """Devices that come earlier in the lists of claims that choose."""
    fitter = snapshot.fitter
    found = (snapshot.shelf.claims.get((pod.namespace, entry.claim)) for entry in pod.claims if entry.claim)
    mine = [claim for claim in found if claim is not None]
    due = tuple(claim for claim in mine if not claim.allocated)
    made = int(bool(mine) and extended_ask(pod, snapshot) is not None)
    if 0 < len(due) + made < len(mine) + made:
        # kubernetes/kubernetes#139016: a pod with both finds a node only where no other would do.
        words = f"number of allocations {len(due) + made} is smaller than number of claims"
        raise ScoreFaultError(NAME, words)
    if fitter is None or not any("/" in request for claim in due for request in claim.classes):
        return {}
    return _normal({node.name: float(fitter.preference(due, node)) for node in nodes})


def _draw(pairs: dict[tuple[str, str], int], term: PodTerm, labels: Labels, weight: int) -> None:
    value = labels.get(term.topology_key)
    if value is not None:
        pairs[term.topology_key, value] = pairs.get((term.topology_key, value), 0) + weight


def _normal(raw: Points, *, less_is_better: bool = False) -> Points:
    most = max(raw.values(), default=0.0)
    if most == 0:
        return dict.fromkeys(raw, BEST) if less_is_better else raw
    if less_is_better:
        return {name: BEST - BEST * points / most for name, points in raw.items()}
    return {name: BEST * points / most for name, points in raw.items()}


_RULES: Final[tuple[tuple[float, ScoreRule], ...]] = (
    (3, _taints),
    (2, _affinity),
    (1, _room),
    (2, _spread),
    (2, _neighbours),
    (2, _choices),
)
_PACKING_RULES: Final = tuple((weight, _packed if rule is _room else rule) for weight, rule in _RULES)
