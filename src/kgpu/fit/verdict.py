"""The verdict over all nodes: where a pod fits, or what kube-scheduler 1.35 prints in its FailedScheduling event.

The message is ``0/N nodes are available: <count> <phrase>, ... . <what freeing claims came to>, preemption: ...``:
phrases with their counts sorted as text, then what the two ways to make room have found. It is the same text to the
character, oddities included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.fit import claims, preempt
from kgpu.fit.checks import FilterFaultError, Rejection
from kgpu.fit.cycle import FILTERS, Cycle, FilterRefusal
from kgpu.fit.model import NONE, ClaimView, PodView, Preemption
from kgpu.fit.snapshot import ClusterSnapshot, ClusterView, NodeState

NO_NODES: Final = "no nodes available to schedule pods"
GATED: Final = "Scheduling is blocked due to non-empty scheduling gates"
UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULING_GATED: Final = "SchedulingGated"
SCHEDULER_ERROR: Final = "SchedulerError"
_OUTSIDE: Final = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
_POSITIONS: Final = {row.name: position for position, row in enumerate(FILTERS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitVerdict:
    """Where a pod can go. ``fits`` are node names; with none, ``message`` is the scheduler's, ``preemption`` a way out.

    ``reason`` is the word in the pod's PodScheduled condition: Unschedulable, SchedulingGated, SchedulerError where a
    filter failed, "" when it fits.
    ``gate`` says why the pod is not even tried, "" when it is. ``outside`` counts the nodes that were not looked at
    because the pod names others.
    """

    pod: PodView
    nodes: int
    fits: tuple[str, ...] = ()
    refused: Mapping[str, FilterRefusal] = field(default_factory=dict)
    rejection: Rejection | None = None
    outside: int = 0
    gate: str = ""
    reason: str = ""
    message: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Nodes by phrase."""
    preemption: Preemption | None = None
    deallocates: ClaimView | None = None
    """The claim that the scheduler deallocates, as its devices are of no use where they are; one that it has made for
    the pod's extended resources it deletes.
    """

    @property
    def schedulable(self) -> bool:
        return bool(self.fits)


def verdict(pod: PodView, cluster: ClusterView | ClusterSnapshot) -> FitVerdict:
    """Judge the pod against every node. A view is indexed first; keep a ``ClusterSnapshot`` for many questions."""
    snapshot = ClusterSnapshot.of(cluster)
    total = len(snapshot.nodes)
    if pod.gates:
        gate = f"waiting for scheduling gates: [{' '.join(pod.gates)}]"
        return FitVerdict(pod=pod, nodes=total, gate=gate, reason=SCHEDULING_GATED, message=GATED)
    if gate := claims.gate(pod, snapshot):
        return FitVerdict(pod=pod, nodes=total, gate=gate)
    if not snapshot.nodes:
        return FitVerdict(pod=pod, nodes=0, reason=UNSCHEDULABLE, message=NO_NODES)
    return conclude(Cycle(pod, snapshot))


def conclude(cycle: Cycle) -> FitVerdict:
    """The verdict of a cycle that is prepared."""
    try:
        return _concluded(cycle)
    except FilterFaultError as fault:
        return FitVerdict(
            pod=cycle.pod, nodes=len(cycle.snapshot.nodes), reason=SCHEDULER_ERROR, message=str(fault)
        )  # fmt: skip


def _concluded(cycle: Cycle) -> FitVerdict:
    pod, total = cycle.pod, len(cycle.snapshot.nodes)
    if cycle.rejection is not None:
        return _rejected(cycle, cycle.rejection)
    fits: list[str] = []
    refused: dict[str, FilterRefusal] = {}
    for node in cycle.candidates():
        refusal = cycle.judge(node)
        if refusal is None:
            fits.append(node.name)
        else:
            refused[node.name] = refusal
    outside = 0 if cycle.only is None else total - len(refused) - len(fits)
    if fits:
        return FitVerdict(pod=pod, nodes=total, fits=tuple(fits), refused=refused, outside=outside)
    counts = Counter(miss.phrase for refusal in refused.values() for miss in refusal.misses)
    if outside:
        counts[_OUTSIDE] += outside
    tried = preempt.attempt(cycle, refused)
    kept_off = [cycle.snapshot.nodes[name] for name, refusal in refused.items() if claims.ELSEWHERE in refusal.misses]
    freed = claims.useless(pod, (checker for _, checker in cycle.checkers), kept_off)
    return FitVerdict(
        pod=pod,
        nodes=total,
        refused=refused,
        outside=outside,
        reason=UNSCHEDULABLE,
        message=_message(total, _histogram(counts), "" if tried.found else _ways_out(cycle, tried, freed)),
        counts=counts,
        preemption=tried.found,
        deallocates=freed,
    )


def _rejected(cycle: Cycle, rejection: Rejection) -> FitVerdict:
    total = len(cycle.snapshot.nodes)
    if _POSITIONS[rejection.filter] < _POSITIONS[claims.NAME]:
        # kube-scheduler looks for its notes on claims, which it has not come to make.
        return _refusal(cycle, rejection, _message(total, rejection.phrase, "not found"), None)
    tried = preempt.attempt(cycle, NONE, all_nodes=rejection.resolvable)
    text = _message(total, rejection.phrase, "" if tried.found else _ways_out(cycle, tried))
    return _refusal(cycle, rejection, text, tried.found)


def _refusal(cycle: Cycle, rejection: Rejection, text: str, preemption: Preemption | None) -> FitVerdict:
    return FitVerdict(
        pod=cycle.pod, nodes=len(cycle.snapshot.nodes), rejection=rejection, reason=UNSCHEDULABLE, message=text,
        preemption=preemption,
    )  # fmt: skip


def _ways_out(cycle: Cycle, tried: preempt.Attempt, freed: ClaimView | None = None) -> str:
    after = claims.after_failure(cycle.pod, cycle.snapshot, cycle.rejection, freed)
    if tried.ineligible:
        return f"{after}, preemption: {tried.ineligible}"
    total, why = len(cycle.snapshot.nodes), tried.refusals or {}
    counts = Counter(phrase for phrases in why.values() for phrase in phrases)
    if total > len(why):
        counts[preempt.NO_HELP] += total - len(why)
    inner = _message(total, _histogram(counts), "")
    return f"{after}, preemption: {inner}"


def _histogram(counts: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{count} {phrase}" for phrase, count in counts.items()))


def _message(total: int, phrases: str, after: str) -> str:
    text = f"0/{total} nodes are available:"
    if phrases:
        text += f" {phrases}."
    return f"{text} {after}" if after else text


def feasible(cycle: Cycle, *, enough: int, start: int = 0) -> tuple[list[str], int]:
    """Up to ``enough`` nodes that fit, looked for from the ``start``-th on, and how many were looked at.

    Raises FilterFaultError.
    """
    nodes = list(cycle.candidates())
    fitting: list[str] = []
    looked = 0
    for node in _round(nodes, start):
        looked += 1
        if cycle.judge(node) is None:
            fitting.append(node.name)
            if len(fitting) >= enough:
                break
    return fitting, looked


def _round(entries: list[NodeState], start: int) -> Iterable[NodeState]:
    first = start % len(entries) if entries else 0
    yield from entries[first:]
    yield from entries[:first]
