"""Filters that look at the node alone, its accounts included: cordon, name, taints, labels, ports, resources."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kgpu.base.suggest import did_you_mean
from kgpu.fit.checks import PASS, Checker, Filter, Miss, Misses, Rejection, StaticChecker, names_of
from kgpu.fit.extended import extended_ask
from kgpu.fit.model import PODS, NodeView, PodView, Reason
from kgpu.fit.resources import say
from kgpu.fit.selectors import NAME_FIELD, UNSCHEDULABLE, Requirement, Taint, tolerated
from kgpu.fit.snapshot import ClusterSnapshot, NodeState

UNSCHEDULABLE_FILTER: Final = "NodeUnschedulable"
NAME: Final = "NodeName"
TAINTS: Final = "TaintToleration"
AFFINITY: Final = "NodeAffinity"
PORTS: Final = "NodePorts"
RESOURCES: Final = "NodeResourcesFit"

_CORDONED: Final = Miss("node(s) were unschedulable", False)
_OTHER_NAME: Final = Miss("node(s) didn't match the requested node name", False)
_TAINTED: Final = Miss("node(s) had untolerated taint(s)", False)
_NO_MATCH: Final = Miss("node(s) didn't match Pod's node affinity/selector", False)
_PORT_TAKEN: Final = Miss("node(s) didn't have free ports for the requested pod ports", True)
_TOO_MANY: Final = Miss("Too many pods", True)
_CONFLICT: Final = "pod affinity terms conflict"
# Of a node's other label values, so many are shown when one does not match.
_SHOWN: Final = 3


class Cordon(StaticChecker):
    def __init__(self, pod: PodView) -> None:
        self._passes = tolerated(UNSCHEDULABLE, pod.tolerations)

    def check(self, node: NodeState) -> Misses:
        return (_CORDONED,) if node.view.unschedulable and not self._passes else PASS

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        if not self.check(node):
            return ()
        sentence = (
            f"node {node.name} is cordoned (spec.unschedulable is true) and the pod does not tolerate {UNSCHEDULABLE}"
        )
        return (Reason(UNSCHEDULABLE_FILTER, _CORDONED.phrase, sentence, node=node.name, subject=UNSCHEDULABLE.key),)


class OneNode(StaticChecker):
    def __init__(self, pod: PodView) -> None:
        self._wanted = pod.node

    def check(self, node: NodeState) -> Misses:
        return (_OTHER_NAME,) if node.name != self._wanted else PASS

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        if not self.check(node):
            return ()
        sentence = f"the pod's spec.nodeName is {self._wanted}, this node is {node.name}"
        return (Reason(NAME, _OTHER_NAME.phrase, sentence, node=node.name, subject=self._wanted),)


class Taints(StaticChecker):
    def __init__(self, pod: PodView) -> None:
        self._tolerations = pod.tolerations
        self._known: dict[int, Misses] = {}

    def check(self, node: NodeState) -> Misses:
        if not node.hard_taints:
            return PASS
        known = self._known.get(id(node.hard_taints))
        if known is None:
            known = (_TAINTED,) if self._bad(node.hard_taints) else PASS
            self._known[id(node.hard_taints)] = known
        return known

    def _bad(self, taints: tuple[Taint, ...]) -> list[Taint]:
        return [taint for taint in taints if not tolerated(taint, self._tolerations)]

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        return tuple(
            Reason(
                TAINTS,
                _TAINTED.phrase,
                f"node {node.name} has the taint {taint} and {self._tolerated(taint)}",
                node=node.name,
                subject=str(taint),
                taint=taint,
            )
            for taint in self._bad(node.hard_taints)
        )

    def _tolerated(self, taint: Taint) -> str:
        near = [toleration for toleration in self._tolerations if toleration.key == taint.key]
        if not near:
            return "no toleration of the pod names that key"
        toleration = near[0]
        if toleration.effect and toleration.effect != taint.effect:
            return f"the pod's toleration is for the effect {toleration.effect}"
        return f"the pod's toleration has {toleration.operator or 'Equal'} {toleration.value!r}, not {taint.value!r}"


class Affinity(StaticChecker):
    def __init__(self, pod: PodView, snapshot: ClusterSnapshot) -> None:
        self._pod = pod
        self._snapshot = snapshot
        self._selector = pod.node_selector
        self._terms = pod.node_terms

    def check(self, node: NodeState) -> Misses:
        return PASS if self.matches(node.view) else (_NO_MATCH,)

    def matches(self, node: NodeView) -> bool:
        labels = node.labels
        for key, value in self._selector:
            if labels.get(key) != value:
                return False
        if self._terms is None:
            return True
        return any(term.matches(labels, node.name) for term in self._terms)

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        if self.matches(node.view):
            return ()
        labels = node.labels
        reasons = [
            self._reason(node, f"nodeSelector wants {key}={value}, {self._has(node, key, (value,))}", key)
            for key, value in self._selector
            if labels.get(key) != value
        ]
        if self._terms is not None and not any(term.matches(labels, node.name) for term in self._terms):
            if not self._terms:
                reasons.append(self._reason(node, "the required node affinity has no term, which matches no node", ""))
            for position, term in enumerate(self._terms):
                where = f"term {position + 1} of {len(self._terms)} of the required node affinity"
                if term.error:
                    reasons.append(self._reason(node, f"{where} can't be parsed and never matches: {term.error}", ""))
                elif miss := term.first_miss(labels, node.name):
                    text = f"{where} wants {miss}, {self._has(node, miss.key, miss.values)}{_equal(miss, labels)}"
                    reasons.append(self._reason(node, text, miss.key))
        return tuple(reasons)

    def _has(self, node: NodeState, key: str, wanted: tuple[str, ...]) -> str:
        if key == NAME_FIELD:
            return f"the node's name is {node.name}"
        have = node.labels.get(key)
        if have is not None:
            return f"node {node.name} has {key}={have}"
        elsewhere = sorted({state.labels[key] for state in self._snapshot.nodes.values() if key in state.labels})
        if not elsewhere:
            near = did_you_mean(key, {name for state in self._snapshot.nodes.values() for name in state.labels})
            return f"node {node.name} does not have that label, nor has any other{f'; {near}' if near else ''}"
        near = "" if set(wanted) & set(elsewhere) or not wanted else did_you_mean(wanted[0], elsewhere)
        shown = ", ".join(elsewhere[:_SHOWN]) + (", ..." if len(elsewhere) > _SHOWN else "")
        return f"node {node.name} does not have that label (other nodes have {shown}{f'; {near}' if near else ''})"

    def _reason(self, node: NodeState, sentence: str, key: str) -> Reason:
        return Reason(AFFINITY, _NO_MATCH.phrase, sentence, node=node.name, subject=key)


def _equal(miss: Requirement, labels: object) -> str:
    have = labels.get(miss.key) if isinstance(labels, dict) else None
    if miss.operator in ("Gt", "Lt") and have is not None and have == miss.values[0]:
        return f" ({miss.operator} is strict: an equal value does not match)"
    return ""


class HostPorts(StaticChecker):
    moves: bool = True

    def __init__(self, pod: PodView) -> None:
        self._wanted = pod.ports

    def check(self, node: NodeState) -> Misses:
        for holder in node.ports:
            for held in holder.ports:
                if any(port.clashes(held) for port in self._wanted):
                    return (_PORT_TAKEN,)
        return PASS

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        return tuple(
            Reason(
                PORTS,
                _PORT_TAKEN.phrase,
                f"host port {port} is taken on node {node.name} by {holder} ({held})",
                resolvable=True,
                node=node.name,
                subject=str(port),
                holders=(str(holder),),
            )
            for port in self._wanted
            for holder in node.ports
            for held in holder.ports
            if port.clashes(held)
        )


class Resources(StaticChecker):
    """The node's own accounts are what changes, so trials need no copy of this."""

    moves: bool = True

    def __init__(self, pod: PodView, offered: Collection[str] = ()) -> None:
        """``offered`` are resources that device classes offer: a node that has none of one is judged by its devices."""
        self._wanted = tuple((name, amount) for name, amount in pod.requests.items() if amount > 0 and name != PODS)
        self._offered = offered
        self._misses = {name: self._pair(name) for name, _ in self._wanted}

    @staticmethod
    def _pair(name: str) -> tuple[Miss, Miss]:
        phrase = f"Insufficient {name}"
        return Miss(phrase, True), Miss(phrase, False)

    def check(self, node: NodeState) -> Misses:
        allocatable, used = node.view.allocatable, node.used
        misses: list[Miss] = []
        if len(node.pods) >= allocatable.get(PODS, 0):
            misses.append(_TOO_MANY)
        for name, wanted in self._wanted:
            have = allocatable.get(name, 0)
            if wanted > have - used.get(name, 0) and (have or name not in self._offered):
                misses.append(self._misses[name][wanted > have])
        return tuple(misses) if misses else PASS

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        view = node.view
        reasons: list[Reason] = []
        if len(node.pods) >= view.allocatable.get(PODS, 0):
            room = view.allocatable.get(PODS, 0)
            sentence = f"node {node.name} has {len(node.pods)} pods and room for {room}"
            reasons.append(Reason(RESOURCES, _TOO_MANY.phrase, sentence, resolvable=True, node=node.name, subject=PODS))
        for name, wanted in self._wanted:
            have, used = view.allocatable.get(name, 0), node.used.get(name, 0)
            if wanted <= have - used or (not have and name in self._offered):
                continue
            holders = sorted(
                (pod for pod in node.pods.values() if pod.used.get(name)), key=lambda pod: (-pod.used[name], pod.key)
            )
            reasons.append(
                Reason(
                    RESOURCES,
                    f"Insufficient {name}",
                    self._sentence(name, wanted, node, holders),
                    resolvable=wanted <= have,
                    node=node.name,
                    subject=name,
                    holders=tuple(str(pod) for pod in holders),
                )
            )
        return tuple(reasons)

    def _sentence(self, name: str, wanted: int, node: NodeState, holders: list[PodView]) -> str:
        view = node.view
        have, used, capacity = view.allocatable.get(name, 0), node.used.get(name, 0), view.capacity.get(name, 0)
        if name not in view.allocatable:
            near = did_you_mean(name, (offered for offered in view.allocatable if "/" in offered))
            return f"the pod asks for {say(name, wanted)} {name}, which node {node.name} does not offer" + (
                f"; {near}" if near else ""
            )
        text = (
            f"the pod asks for {say(name, wanted)} {name}; node {node.name} has {say(name, have)} allocatable, "
            f"{say(name, used)} in use, {say(name, max(have - used, 0))} free"
        )
        if have < capacity and "/" in name:
            text += (
                f" ({say(name, capacity - have)} of its {say(name, capacity)} not allocatable: unhealthy or reserved)"
            )
        if wanted > have > 0:
            text += f"; an empty node of this kind would not do ({say(name, have)} at most)"
        elif holders:
            each = ", ".join(f"{pod} ({say(name, pod.used[name])})" for pod in holders[:5])
            text += f"; held by {each}" + (f" and {len(holders) - 5} more" if len(holders) > 5 else "")
        return text


def required_affinity(pod: PodView, snapshot: ClusterSnapshot) -> Affinity | None:
    """What the pod's selector and required affinity say about nodes; None when they say nothing."""
    if not pod.node_selector and pod.node_terms is None:
        return None
    return Affinity(pod, snapshot)


def named_nodes(pod: PodView) -> frozenset[str] | None:
    """The nodes that the required affinity names, where every term names some; None for any node."""
    if not pod.node_terms:
        return None
    nodes: frozenset[str] = frozenset()
    for term in pod.node_terms:
        names = term.names()
        if names is None:
            return None
        nodes |= names
    return nodes


def _prepare_affinity(pod: PodView, snapshot: ClusterSnapshot) -> Checker | Rejection | None:
    names = named_nodes(pod)
    if names is not None and not names:
        sentence = "each term of the required node affinity asks for two different node names at once"
        return Rejection(filter=AFFINITY, phrase=_CONFLICT, sentence=sentence, subject=NAME_FIELD)
    return required_affinity(pod, snapshot)


def _prepare_resources(pod: PodView, snapshot: ClusterSnapshot) -> Checker:
    ask = extended_ask(pod, snapshot)
    return Resources(pod, ask.classes if ask is not None else ())


FILTERS: Final = (
    Filter(UNSCHEDULABLE_FILTER, lambda pod, _: Cordon(pod)),
    Filter(NAME, lambda pod, _: OneNode(pod) if pod.node else None),
    Filter(TAINTS, lambda pod, _: Taints(pod)),
    Filter(AFFINITY, _prepare_affinity),
    Filter(PORTS, lambda pod, _: HostPorts(pod) if pod.ports else None),
    Filter(RESOURCES, _prepare_resources),
)

__all__ = ["FILTERS", "named_nodes", "names_of", "required_affinity"]
