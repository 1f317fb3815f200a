"""The smallest change that makes a pod schedulable, proven by asking ``fit`` again with the change made.

Candidates come from the reasons that ``fit`` gave; one counts only when the changed pod fits a node as the cluster is
now. Single changes are tried first, then pairs. Nothing here guesses: a change without a node to show is none.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kgpu.doctor import edits, matching
from kgpu.doctor.edits import Edit
from kgpu.fit.checks import FilterFaultError
from kgpu.fit.cycle import Cycle
from kgpu.fit.explain import explain
from kgpu.fit.filters_node import AFFINITY, RESOURCES, TAINTS, UNSCHEDULABLE_FILTER
from kgpu.fit.model import NodeView, PodView, Reason
from kgpu.fit.resources import say
from kgpu.fit.selectors import NodeTerm, PodToleration, Requirement, Taint, integer
from kgpu.fit.snapshot import ClusterSnapshot

LIFECYCLE: Final = re.compile(
    r"node\.kubernetes\.io/|ToBeDeletedByClusterAutoscaler|DeletionCandidateOfClusterAutoscaler|karpenter\.sh/disrupt"
    r"|node\.cloudprovider\.kubernetes\.io/|[^=:]*/agent-not-ready|[^=:]*startup"
)
"""Taints that a controller sets and takes away by itself: nobody should tolerate or remove them."""
_STAYS: Final = ("DaemonSet/", "Node/")
MAX_CANDIDATES: Final = 24
MAX_FOR_PAIRS: Final = 10

TOLERATION: Final = "toleration"
SELECTOR: Final = "selector"
COUNT: Final = "count"
RENAME: Final = "rename"
UNCORDON: Final = "uncordon"
ROOM: Final = "room"
BOTH: Final = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingChange:
    """A change with what it is (a sentence in the imperative), and the nodes that the pod fits then.

    ``subject`` is the taint, label key or resource that it is about; ``value`` what it is set to, "" for removed.
    ``cost`` orders: what costs least comes first. ``edits`` make the same of a pod's manifest as ``pod`` of what
    ``fit`` sees.
    """

    kind: str
    what: str
    subject: str = ""
    value: str = ""
    cost: int = 1
    pod: Callable[[PodView], PodView] | None = None
    edits: tuple[Edit, ...] = ()
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    fits: tuple[str, ...] = ()


def named(nodes: tuple[str, ...]) -> str:
    """Nodes in a sentence."""
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"node {', '.join(nodes[:3])}{more}"


def fitting(pod: PodView, snapshot: ClusterSnapshot, nodes: Mapping[str, NodeView] | None = None) -> tuple[str, ...]:
    """The nodes that the pod fits; ``nodes`` are tried as they are given instead of as they are."""
    if nodes:
        return tuple(name for name, node in nodes.items() if not explain(pod, node, snapshot))
    cycle = Cycle(pod, snapshot)
    if cycle.rejection is not None:
        return ()
    try:
        return tuple(node.name for node in cycle.candidates() if cycle.judge(node) is None)
    except FilterFaultError:
        return ()  # the scheduler gives up, whatever other nodes are like


def smallest(
    pod: PodView, snapshot: ClusterSnapshot, reasons: Mapping[str, tuple[Reason, ...]]
) -> tuple[FittingChange, ...]:  # fmt: skip
    """Every single change that is enough, the smallest first; where none is, the pairs that are."""
    tried = list(itertools.islice(_candidates(pod, snapshot, reasons), MAX_CANDIDATES))
    enough = [proven for change in tried if (proven := _proven(change, pod, snapshot))]
    if not enough:
        pairs = itertools.combinations([change for change in tried if change.pod is not None][:MAX_FOR_PAIRS], 2)
        enough = [proven for left, right in pairs if (proven := _proven(_both(left, right), pod, snapshot))]
    return tuple(sorted(enough, key=lambda change: change.cost))


def _proven(change: FittingChange, pod: PodView, snapshot: ClusterSnapshot) -> FittingChange | None:
    changed = change.pod(pod) if change.pod else pod
    fits = fitting(changed, snapshot, change.nodes)
    return replace(change, fits=fits) if fits else None


def _both(left: FittingChange, right: FittingChange) -> FittingChange:
    first, second = left.pod, right.pod

    def apply(pod: PodView) -> PodView:
        changed = first(pod) if first else pod
        return second(changed) if second else changed

    return FittingChange(
        kind=BOTH, what=f"{left.what}, and {right.what}", subject=f"{left.kind}+{right.kind}",
        cost=left.cost + right.cost, pod=apply, edits=(*left.edits, *right.edits),
    )  # fmt: skip


def _candidates(
    pod: PodView, snapshot: ClusterSnapshot, reasons: Mapping[str, tuple[Reason, ...]]
) -> Iterator[FittingChange]:  # fmt: skip
    every = [reason for of_node in reasons.values() for reason in of_node]
    known_changes: set[tuple[str, str, str]] = set()
    for make in (_tolerations, _selectors, _terms, _renames, _cordons, _counts, _rooms):
        for change in make(pod, snapshot, every):
            key = (change.kind, change.subject, change.value or change.what)
            if key not in known_changes:
                known_changes.add(key)
                yield change


def _tolerations(pod: PodView, snapshot: ClusterSnapshot, reasons: Iterable[Reason]) -> Iterator[FittingChange]:
    del pod
    for reason in reasons:
        if reason.filter != TAINTS or LIFECYCLE.match(reason.subject):
            continue
        taint = _hard_taint(snapshot, reason)
        if taint is not None:
            yield FittingChange(
                kind=TOLERATION, what=f"add the toleration {_shown(taint)}", subject=str(taint), value=taint.key,
                pod=_with_tolerations((_toleration(taint),)), edits=(edits.tolerate(taint.key, taint.effect),),
            )  # fmt: skip


def _hard_taint(snapshot: ClusterSnapshot, reason: Reason) -> Taint | None:
    """The taint that keeps the pod off the reason's node."""
    node = snapshot.nodes.get(reason.node)
    return reason.taint if node is not None and reason.taint in node.hard_taints else None


def tolerating(pod: PodView, taints: Iterable[Taint], snapshot: ClusterSnapshot) -> FittingChange:
    """Tolerations for all of these taints; ``fits`` is empty where even they are not enough."""
    wanted = list(taints)
    rows = ", ".join(map(_shown, wanted))
    change = FittingChange(
        kind=TOLERATION, what=f"add the toleration{'s' if len(wanted) > 1 else ''} {rows}",
        subject=", ".join(map(str, wanted)), cost=len(wanted),
        pod=_with_tolerations(tuple(map(_toleration, wanted))),
        edits=tuple(edits.tolerate(taint.key, taint.effect) for taint in wanted),
    )  # fmt: skip
    return _proven(change, pod, snapshot) or change


def _shown(taint: Taint) -> str:
    """The toleration of a taint as a manifest has it."""
    return f"{{key: {taint.key}, operator: Exists, effect: {taint.effect}}}"


def _toleration(taint: Taint) -> PodToleration:
    return PodToleration(taint.key, "Exists", "", taint.effect)


def _with_tolerations(more: tuple[PodToleration, ...]) -> Callable[[PodView], PodView]:
    return lambda view: replace(view, tolerations=(*view.tolerations, *more))


def values_of(snapshot: ClusterSnapshot, key: str) -> list[str]:
    """The values that a label has on any node, sorted."""
    return sorted({node.labels[key] for node in snapshot.nodes.values() if key in node.labels})


def nearest(wanted: str, known: Iterable[str]) -> str:
    """The value that was probably meant, "" for none: one that contains it or is contained in it, else a close one."""
    candidates = list(known)
    plain = wanted.lower()
    inside = [
        candidate for candidate in candidates if plain and (plain in candidate.lower() or candidate.lower() in plain)
    ]
    if inside:
        return min(inside, key=lambda candidate: (abs(len(candidate) - len(wanted)), candidate))
    parts = {part for part in plain.replace("_", "-").split("-") if part}
    by_parts = sorted(candidates, key=lambda candidate: (-len(parts & set(candidate.lower().split("-"))), candidate))
    if by_parts and len(parts & set(by_parts[0].lower().split("-"))) * 2 > len(parts):
        return by_parts[0]
    lower = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(plain, lower, n=1, cutoff=0.6)
    return lower[close[0]] if close else ""


def _selectors(pod: PodView, snapshot: ClusterSnapshot, reasons: Iterable[Reason]) -> Iterator[FittingChange]:
    keys = {reason.subject for reason in reasons if reason.filter == AFFINITY}
    for key, value in pod.node_selector:
        if key not in keys:
            continue
        similar_key = "" if values_of(snapshot, key) else nearest(key, _labels(snapshot, value))
        if similar_key:
            yield FittingChange(
                kind=SELECTOR, what=f"change nodeSelector {key} to {similar_key}", subject=key, value=value,
                pod=lambda view, name=key, to=similar_key, same=value: _with_selector(  # type: ignore[misc]
                    _with_selector(view, name, ""), to, same
                ),
                edits=(edits.rekey(key, similar_key),),
            )  # fmt: skip
        near = nearest(value, (other_value for other_value in values_of(snapshot, key) if other_value != value))
        if near:
            yield FittingChange(
                kind=SELECTOR, what=f"change nodeSelector {key} from {value!r} to {near!r}", subject=key, value=near,
                pod=lambda view, name=key, new=near: _with_selector(view, name, new),  # type: ignore[misc]
                edits=(edits.select(key, near),),
            )  # fmt: skip
        yield FittingChange(
            kind=SELECTOR, what=f"remove nodeSelector {key}={value}", subject=key, cost=3,
            pod=lambda view, name=key: _with_selector(view, name, ""),  # type: ignore[misc]
            edits=(edits.select(key, ""),),
        )  # fmt: skip


def _labels(snapshot: ClusterSnapshot, value: str) -> list[str]:
    """Keys of labels that have the value on some node."""
    nodes = snapshot.nodes.values()
    return sorted({key for state in nodes for key, said in state.view.labels.items() if said == value})


def _with_selector(pod: PodView, key: str, value: str) -> PodView:
    rest = [(name, said) for name, said in pod.node_selector if name != key]
    return replace(pod, node_selector=tuple(sorted([*rest, (key, value)] if value else rest)))


def _terms(pod: PodView, snapshot: ClusterSnapshot, reasons: Iterable[Reason]) -> Iterator[FittingChange]:
    keys = {reason.subject for reason in reasons if reason.filter == AFFINITY}
    for position, term in enumerate(pod.node_terms or ()):
        if term.error:
            continue
        for which, wanted in enumerate(term.expressions):
            if wanted.key not in keys:
                continue
            for new in _loosened(wanted, snapshot):
                to = f"change {wanted} to {new}" if new else f"remove {wanted}"
                where = f"term {position + 1} of the required node affinity"
                yield FittingChange(
                    kind=SELECTOR, what=f"in {where}: {to}", subject=wanted.key,
                    value=", ".join(new.values) if new else "", cost=1 if new else 3,
                    pod=lambda view, at=position, row=which, instead=new: _with_term(view, at, row, instead),  # type: ignore[misc]
                    edits=(edits.reword(position, which, wanted, new),),
                )  # fmt: skip


def _loosened(wanted: Requirement, snapshot: ClusterSnapshot) -> Iterator[Requirement | None]:
    known = values_of(snapshot, wanted.key)
    if wanted.operator == "In":
        near = [nearest(value, (similar for similar in known if similar != value)) for value in wanted.values]
        if any(near):
            yield Requirement(wanted.key, "In", tuple(dict.fromkeys(similar for similar in near if similar)))
    if wanted.operator in ("Gt", "Lt"):
        numbers = [number for text in known if (number := integer(text)) is not None]
        if numbers:
            bound = max(numbers) - 1 if wanted.operator == "Gt" else min(numbers) + 1
            yield Requirement(wanted.key, wanted.operator, (str(bound),))
    yield None


def _with_term(pod: PodView, at: int, row: int, instead: Requirement | None) -> PodView:
    terms = list(pod.node_terms or ())
    kept = list(terms[at].expressions)
    kept[row : row + 1] = [instead] if instead else []
    if kept or terms[at].fields:
        terms[at] = NodeTerm(tuple(kept), terms[at].fields)
    else:
        del terms[at]
    return replace(pod, node_terms=tuple(terms) or None)


def _lacking(pod: PodView, reasons: Iterable[Reason]) -> dict[str, list[str]]:
    """The nodes that lack each resource."""
    found: dict[str, list[str]] = {}
    for reason in reasons:
        if reason.filter == RESOURCES and reason.subject in pod.requests:
            found.setdefault(reason.subject, []).append(reason.node)
    return found


def _renames(pod: PodView, snapshot: ClusterSnapshot, reasons: Iterable[Reason]) -> Iterator[FittingChange]:
    for name in _lacking(pod, reasons):
        if not matching.is_accelerator(name):
            continue
        others = {
            offered
            for node in snapshot.nodes.values()
            for offered, amount in node.view.allocatable.items()
            if amount > 0 and offered != name and matching.is_accelerator(offered)
        }
        same = {offered for offered in others if matching.vendor_of(offered) == matching.vendor_of(name)}
        for offered in sorted(same or others, key=lambda candidate: (not candidate.startswith(name), candidate)):
            yield FittingChange(
                kind=RENAME, what=f"ask for {offered} instead of {name}", subject=name, value=offered,
                cost=2 if offered in same else 4,
                pod=lambda view, old=name, new=offered: _renamed(view, old, new),  # type: ignore[misc]
                edits=(edits.rename(name, offered),),
            )  # fmt: skip


def _renamed(pod: PodView, old: str, new: str) -> PodView:
    return replace(pod, requests={new if key == old else key: amount for key, amount in pod.requests.items()})


def _counts(pod: PodView, snapshot: ClusterSnapshot, reasons: Iterable[Reason]) -> Iterator[FittingChange]:
    for name, nodes in _lacking(pod, reasons).items():
        wanted = pod.requests[name]
        free = max((snapshot.nodes[node].free(name) for node in nodes if node in snapshot.nodes), default=0)
        if 0 < free < wanted:
            what = f"ask for {say(name, free)} {name} instead of {say(name, wanted)}"
            yield FittingChange(
                kind=COUNT, what=what, subject=name, value=str(free), cost=4,
                pod=lambda view, key=name, less=free: replace(view, requests={**view.requests, key: less}),  # type: ignore[misc]
                edits=(edits.ask(name, _written(name, free)),),
            )  # fmt: skip


def _written(name: str, amount: int) -> str:
    """A quantity for a manifest, never more than the amount: what people are told may be rounded."""
    said = say(name, amount)
    return f"{amount >> 20}Mi" if "." in said else said


def _cordons(pod: PodView, snapshot: ClusterSnapshot, reasons: Iterable[Reason]) -> Iterator[FittingChange]:
    del pod
    for reason in reasons:
        state = snapshot.nodes.get(reason.node)
        if reason.filter == UNSCHEDULABLE_FILTER and state is not None:
            keep = tuple(taint for taint in state.view.taints if taint.key != reason.subject)
            yield FittingChange(
                kind=UNCORDON, what=f"uncordon node {reason.node}", subject=reason.node, cost=3,
                nodes={reason.node: replace(state.view, unschedulable=False, taints=keep)},
            )  # fmt: skip


def _rooms(pod: PodView, snapshot: ClusterSnapshot, reasons: Iterable[Reason]) -> Iterator[FittingChange]:
    """Enough of the resource on a node where nothing else is in the way: what the end of a holder would bring."""
    for reason in reasons:
        state = snapshot.nodes.get(reason.node)
        wanted = pod.requests.get(reason.subject, 0)
        if reason.filter != RESOURCES or not reason.resolvable or state is None or not wanted:
            continue
        more = state.used.get(reason.subject, 0) + wanted
        yield FittingChange(
            kind=ROOM, what=f"free {say(reason.subject, wanted)} {reason.subject} on node {reason.node}",
            subject=reason.subject, value=reason.node, cost=5,
            nodes={reason.node: replace(state.view, allocatable={**state.view.allocatable, reason.subject: more})},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Move:
    """A placed pod that would make room for another if it were on node ``to``."""

    pod: PodView
    node: str
    to: str


def move(pod: PodView, nodes: Iterable[str], resource: str, snapshot: ClusterSnapshot) -> Move | None:
    """The smallest single move that makes room on one of ``nodes``, proven: both pods are judged with the move made.

    Pods without a controller, which nobody would make anew, and those of DaemonSets are left alone; pods of Jobs, which
    would begin again, come last. The snapshot is as before afterwards.
    """
    wanted = pod.requests.get(resource, 0)
    rows = [
        (name, held)
        for name in nodes
        for held in snapshot.nodes[name].pods.values()
        if held.owner
        and not held.owner.startswith(_STAYS)
        and held.used.get(resource, 0) + snapshot.nodes[name].free(resource) >= wanted
        and held.used.get(resource, 0)
    ]
    rows.sort(key=lambda row: ("Job/" in row[1].owner, row[1].used[resource], row[1].namespace, row[1].name))
    for name, held in rows[:MAX_CANDIDATES]:
        if (to := _target(pod, name, held, resource, snapshot)) is not None:
            return Move(held, name, to)
    return None


def _target(pod: PodView, name: str, held: PodView, resource: str, snapshot: ClusterSnapshot) -> str | None:
    away = replace(held, node="", nominated="")
    others = (
        target
        for target, state in snapshot.nodes.items()
        if target != name and state.free(resource) >= held.used.get(resource, 0)
    )
    try:
        for target in itertools.islice(others, MAX_CANDIDATES):
            snapshot.drop(held)
            if explain(away, target, snapshot):
                continue
            snapshot.put(replace(away, node=target))
            if not explain(pod, name, snapshot):
                return target
    finally:
        snapshot.put(held)
    return None
