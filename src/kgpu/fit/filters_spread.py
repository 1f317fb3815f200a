"""PodTopologySpread: how many matching pods each topology domain has, and how far a node's domain may lead.

The scheduler's rules with their edges: nodes that lack any of the keys count in no domain; a domain is one more when
the pod matches its own selector; an empty selector counts no pod that is there, yet the pod itself; fewer domains than
``minDomains`` make the minimum zero.
"""

from __future__ import annotations

from typing import Final

from kgpu.fit.checks import PASS, Checker, Filter, Miss, Misses, Rejection
from kgpu.fit.filters_node import Affinity, required_affinity
from kgpu.fit.model import MAX_SKEW_FLOOR, PodView, Reason, Spread
from kgpu.fit.selectors import tolerated
from kgpu.fit.snapshot import ClusterSnapshot, NodeState

NAME: Final = "PodTopologySpread"
SKEWED: Final = Miss("node(s) didn't match pod topology spread constraints", True)
_NO_LABEL: Final = Miss("node(s) didn't match pod topology spread constraints (missing required label)", False)

Counts = dict[str, int]
"""Matching pods by the topology key's value."""


def included(pod: PodView, constraint: Spread, node: NodeState, affinity: Affinity | None) -> bool:
    """True when the node counts for the constraint, by its inclusion policies."""
    if constraint.honors_affinity and affinity is not None and not affinity.matches(node.view):
        return False
    return not constraint.honors_taints or all(tolerated(taint, pod.tolerations) for taint in node.hard_taints)


def count_domains(pod: PodView, constraints: tuple[Spread, ...], snapshot: ClusterSnapshot) -> list[Counts]:
    """For every constraint the matching pods in each domain that counts."""
    affinity = required_affinity(pod, snapshot)
    keys = [constraint.topology_key for constraint in constraints]
    domains: list[Counts] = [{} for _ in constraints]
    counted: list[set[str]] = [set() for _ in constraints]
    for node in snapshot.nodes.values():
        if not all(key in node.labels for key in keys):
            continue
        for position, constraint in enumerate(constraints):
            if included(pod, constraint, node, affinity):
                domains[position].setdefault(node.labels[keys[position]], 0)
                counted[position].add(node.name)
    for placed in snapshot.placed_in((pod.namespace,)):
        if placed.deleting:
            continue
        for position, constraint in enumerate(constraints):
            selector = constraint.selector
            if not selector.everything and placed.node in counted[position] and selector.matches(placed.labels):
                domains[position][snapshot.nodes[placed.node].labels[keys[position]]] += 1
    return domains


class SpreadOut:
    moves: bool = True

    def __init__(self, pod: PodView, snapshot: ClusterSnapshot) -> None:
        self._pod = pod
        self._constraints = tuple(constraint for constraint in pod.spread if constraint.hard)
        self._affinity = required_affinity(pod, snapshot)
        self._domains = count_domains(pod, self._constraints, snapshot)
        self._own = [int(constraint.selector.matches(pod.labels)) for constraint in self._constraints]
        self._least = [self._lowest(position) for position in range(len(self._constraints))]

    def _lowest(self, position: int) -> int:
        domains = self._domains[position]
        if len(domains) < self._constraints[position].min_domains:
            return 0
        return min(domains.values(), default=MAX_SKEW_FLOOR)

    def check(self, node: NodeState) -> Misses:
        for position, constraint in enumerate(self._constraints):
            domain = node.labels.get(constraint.topology_key)
            if domain is None:
                return (_NO_LABEL,)
            matching = self._domains[position].get(domain, 0)
            if matching + self._own[position] - self._least[position] > constraint.max_skew:
                return (SKEWED,)
        return PASS

    def moved(self, pod: PodView, node: NodeState, sign: int) -> None:
        if pod.namespace != self._pod.namespace:
            return
        if not all(spread.topology_key in node.labels for spread in self._constraints):
            return
        for position, constraint in enumerate(self._constraints):
            if constraint.selector.matches(pod.labels) and included(self._pod, constraint, node, self._affinity):
                domain = node.labels[constraint.topology_key]
                self._domains[position][domain] = self._domains[position].get(domain, 0) + sign
                self._least[position] = self._lowest(position)

    def fork(self) -> SpreadOut:
        other = SpreadOut.__new__(SpreadOut)
        other._pod, other._constraints, other._affinity = self._pod, self._constraints, self._affinity
        other._domains = [dict(counts) for counts in self._domains]
        other._own, other._least = self._own, list(self._least)
        return other

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        reasons: list[Reason] = []
        for position, constraint in enumerate(self._constraints):
            key = constraint.topology_key
            domain = node.labels.get(key)
            if domain is None:
                sentence = f"the pod is spread over {key}, and node {node.name} does not have that label"
                reasons.append(Reason(NAME, _NO_LABEL.phrase, sentence, node=node.name, subject=key))
                continue
            matching, least, own = self._domains[position].get(domain, 0), self._least[position], self._own[position]
            if matching + own - least <= constraint.max_skew:
                continue
            few = len(self._domains[position]) < constraint.min_domains
            sentence = (
                f"{key}={domain} has {matching} pods that match ({constraint.selector}), this pod "
                f"{'would be one more' if own else 'does not match itself'}, and "
                + (
                    f"there are {len(self._domains[position])} domains, fewer than minDomains "
                    f"{constraint.min_domains}, which makes the minimum 0"
                    if few
                    else f"the emptiest of {len(self._domains[position])} domains has {least}"
                )
                + f"; maxSkew is {constraint.max_skew}"
            )
            reasons.append(Reason(NAME, SKEWED.phrase, sentence, resolvable=True, node=node.name, subject=key))
        return tuple(reasons)


def _prepare(pod: PodView, snapshot: ClusterSnapshot) -> Checker | Rejection | None:
    return SpreadOut(pod, snapshot) if any(constraint.hard for constraint in pod.spread) else None


FILTERS: Final = (Filter(NAME, _prepare),)
