"""InterPodAffinity: the pod's required affinity and anti-affinity, and the anti-affinity of pods that are there.

As the scheduler of 1.35 does it, with one oddity: a namespace selector that matches no labels at all (``NotIn``,
``DoesNotExist``) selects every namespace for the newcomer's own terms, whatever labels the namespaces have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.fit.checks import PASS, Checker, Filter, Miss, Misses, Rejection, names_of
from kgpu.fit.model import NONE, PodTerm, PodView, Reason
from kgpu.fit.selectors import Labels
from kgpu.fit.snapshot import ClusterSnapshot, NodeState

NAME: Final = "InterPodAffinity"
FAR: Final = Miss("node(s) didn't match pod affinity rules", False)
_NEAR: Final = Miss("node(s) didn't match pod anti-affinity rules", True)
_UNWELCOME: Final = Miss("node(s) didn't satisfy existing pods anti-affinity rules", True)

Pairs = dict[tuple[str, str], int]
"""Matching pods by topology key and value."""


class ResolvedTerm:
    """A newcomer's term with its namespaces resolved."""

    __slots__ = ("anywhere", "namespaces", "term")

    def __init__(self, term: PodTerm, snapshot: ClusterSnapshot) -> None:
        self.term = term
        chosen = term.namespace_selector
        self.anywhere = chosen.matches(NONE)
        self.namespaces = term.namespaces
        if not self.anywhere and not chosen.nothing:
            known = snapshot.shelf.namespaces.values()
            self.namespaces |= {one.name for one in known if chosen.matches(one.labels)}

    def matches(self, pod: PodView) -> bool:
        return (self.anywhere or pod.namespace in self.namespaces) and self.term.selector.matches(pod.labels)

    def candidates(self, snapshot: ClusterSnapshot) -> Iterator[PodView]:
        """The placed pods that the term can match by their namespace."""
        return snapshot.all_placed() if self.anywhere else snapshot.placed_in(self.namespaces)


def repels(term: PodTerm, newcomer: PodView, namespace_labels: Labels) -> bool:
    """True when an existing pod's term is about the newcomer."""
    in_reach = newcomer.namespace in term.namespaces or term.namespace_selector.matches(namespace_labels)
    return in_reach and term.selector.matches(newcomer.labels)


def _count(pairs: Pairs, key: str, labels: Labels, sign: int) -> None:
    value = labels.get(key)
    if value is None:
        return
    left = pairs.get((key, value), 0) + sign
    if left:
        pairs[key, value] = left
    else:
        pairs.pop((key, value), None)


class Neighbours:
    moves: bool = True

    def __init__(self, pod: PodView, snapshot: ClusterSnapshot) -> None:
        self._pod = pod
        self._snapshot = snapshot
        self._home = snapshot.namespace_labels(pod.namespace)
        self._near = [ResolvedTerm(term, snapshot) for term in pod.affinity]
        self._far = [ResolvedTerm(term, snapshot) for term in pod.anti_affinity]
        self._attracting: Pairs = {}
        self._repelling: Pairs = {}
        self._unwelcome: Pairs = {}
        nodes = snapshot.nodes
        if self._near:
            for neighbour in self._near[0].candidates(snapshot):
                self._attract(neighbour, nodes[neighbour.node].labels, 1)
        for reach in self._far:
            for neighbour in reach.candidates(snapshot):
                if reach.term.selector.matches(neighbour.labels):
                    _count(self._repelling, reach.term.topology_key, nodes[neighbour.node].labels, 1)
        for neighbour in snapshot.repelling.values():
            self._resent(neighbour, nodes[neighbour.node].labels, 1)

    @property
    def idle(self) -> bool:
        """True when no pod and no term has anything to do with this."""
        return not self._near and not self._far and not self._unwelcome

    def _attract(self, other: PodView, labels: Labels, sign: int) -> None:
        if self._near and all(reach.matches(other) for reach in self._near):
            for reach in self._near:
                _count(self._attracting, reach.term.topology_key, labels, sign)

    def _resent(self, other: PodView, labels: Labels, sign: int) -> None:
        for term in other.anti_affinity:
            if repels(term, self._pod, self._home):
                _count(self._unwelcome, term.topology_key, labels, sign)

    def moved(self, pod: PodView, node: NodeState, sign: int) -> None:
        self._resent(pod, node.labels, sign)
        self._attract(pod, node.labels, sign)
        for reach in self._far:
            if reach.matches(pod):
                _count(self._repelling, reach.term.topology_key, node.labels, sign)

    def fork(self) -> Neighbours:
        other = Neighbours.__new__(Neighbours)
        other._pod, other._snapshot, other._home = self._pod, self._snapshot, self._home
        other._near, other._far = self._near, self._far
        other._attracting = dict(self._attracting)
        other._repelling = dict(self._repelling)
        other._unwelcome = dict(self._unwelcome)
        return other

    def check(self, node: NodeState) -> Misses:
        labels = node.labels
        if self._near and not self._close(labels):
            return (FAR,)
        if self._repelling:
            for reach in self._far:
                key = reach.term.topology_key
                if (value := labels.get(key)) is not None and self._repelling.get((key, value), 0) > 0:
                    return (_NEAR,)
        if self._unwelcome and self._against(labels):
            return (_UNWELCOME,)
        return PASS

    def _against(self, labels: Labels) -> bool:
        unwelcome = self._unwelcome
        if len(unwelcome) < len(labels):
            return any(count > 0 and labels.get(key) == value for (key, value), count in unwelcome.items())
        return any(unwelcome.get(pair, 0) > 0 for pair in labels.items())

    def _close(self, labels: Labels) -> bool:
        attracted = True
        for reach in self._near:
            key = reach.term.topology_key
            value = labels.get(key)
            if value is None:
                return False
            attracted = attracted and self._attracting.get((key, value), 0) > 0
        # The first of a group that is to stay together has nobody to go to.
        return attracted or (not self._attracting and all(reach.matches(self._pod) for reach in self._near))

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        reasons: list[Reason] = []
        if self._near and not self._close(node.labels):
            reasons.extend(self._missing(node))
        for reach in self._far:
            key = reach.term.topology_key
            value = node.labels.get(key)
            if value is not None and self._repelling.get((key, value), 0) > 0:
                holders = [pod for pod in self._in_domain(key, value) if reach.matches(pod)]
                sentence = (
                    f"the pod must not run in a {key} that has pods matching ({reach.term.selector}); "
                    f"{key}={value} has {names_of(holders)}"
                )
                reasons.append(self._reason(_NEAR, sentence, node, key, holders))
        if self._unwelcome:
            reasons.extend(self._resenting(node))
        return tuple(reasons)

    def _missing(self, node: NodeState) -> Iterator[Reason]:
        for reach in self._near:
            key, selector = reach.term.topology_key, reach.term.selector
            value = node.labels.get(key)
            if value is None:
                sentence = f"required pod affinity is by {key}, and node {node.name} does not have that label"
            elif self._attracting.get((key, value), 0) > 0:
                continue
            else:
                elsewhere = sorted({at for (name, at), count in self._attracting.items() if name == key and count > 0})
                where = f"they are in {key} {', '.join(elsewhere[:3])}" if elsewhere else self._nowhere()
                sentence = f"required pod affinity wants pods matching ({selector}) in {key}={value}; {where}"
            yield self._reason(FAR, sentence, node, key, [])

    def _nowhere(self) -> str:
        own = all(reach.matches(self._pod) for reach in self._near)
        return "there are none anywhere" + ("" if own else ", and the pod does not match its own terms")

    def _resenting(self, node: NodeState) -> Iterator[Reason]:
        for (key, value), count in self._unwelcome.items():
            if count > 0 and node.labels.get(key) == value:
                holders = [
                    pod
                    for pod in self._in_domain(key, value)
                    if any(
                        term.topology_key == key and repels(term, self._pod, self._home) for term in pod.anti_affinity
                    )
                ]
                sentence = f"pods in {key}={value} keep pods like this one away by anti-affinity: {names_of(holders)}"
                yield self._reason(_UNWELCOME, sentence, node, key, holders)

    def _in_domain(self, key: str, value: str) -> list[PodView]:
        nodes = [node for node in self._snapshot.nodes.values() if node.labels.get(key) == value]
        return sorted((pod for node in nodes for pod in node.pods.values()), key=lambda pod: pod.key)

    @staticmethod
    def _reason(miss: Miss, sentence: str, node: NodeState, key: str, holders: list[PodView]) -> Reason:
        return Reason(
            NAME, miss.phrase, sentence, resolvable=miss.resolvable, node=node.name, subject=key,
            holders=tuple(str(pod) for pod in holders),
        )  # fmt: skip


def _prepare(pod: PodView, snapshot: ClusterSnapshot) -> Checker | Rejection | None:
    if not pod.affinity and not pod.anti_affinity and not snapshot.repelling:
        return None
    checker = Neighbours(pod, snapshot)
    return None if checker.idle else checker


FILTERS: Final = (Filter(NAME, _prepare),)
