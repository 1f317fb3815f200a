"""Every reason why a pod does not fit, with the evidence: for one node, and for the pod itself.

kube-scheduler names one filter per node and no names; a GPU node usually has two or three reasons at once. Here all
filters are asked, and what no scheduler says is added: quota, a scheduler that does not run, pods in the way.
"""

from __future__ import annotations

from dataclasses import replace

from kgpu.fit import outside_scheduler
from kgpu.fit.checks import Checker, Rejection, names_of
from kgpu.fit.cycle import FILTERS, Cycle
from kgpu.fit.filters_node import AFFINITY
from kgpu.fit.model import NodeView, PodView, Reason
from kgpu.fit.snapshot import ClusterSnapshot, ClusterView, NodeState
from kgpu.fit.verdict import _OUTSIDE


def explain(pod: PodView, node: NodeView | str, cluster: ClusterView | ClusterSnapshot) -> tuple[Reason, ...]:
    """All that keeps the pod off the node, empty when it fits. A node that the cluster does not have is tried empty.

    A pod that is placed already is judged as one more, and by its nodeName; drop it first to ask about moving it.
    """
    snapshot = ClusterSnapshot.of(cluster)
    state = _state(node, snapshot)
    prepared = [(row.name, row.prepare(pod, snapshot)) for row in FILTERS]
    rejections = [_everywhere(rejection) for _, rejection in prepared if isinstance(rejection, Rejection)]
    checkers: list[tuple[str, Checker]] = [
        (name, checker) for name, checker in prepared if checker is not None and not isinstance(checker, Rejection)
    ]
    reasons = [reason for _, checker in checkers for reason in checker.reasons(state)]
    if not reasons and (waiting := snapshot.nominated_at(state.name, pod)):
        crowded, forks = Cycle.with_pods(state, checkers, waiting)
        kept = f"; room on the node is kept for {names_of(waiting)}, after preemption"
        reasons = [
            replace(reason, sentence=reason.sentence + kept) for _, fork in forks for reason in fork.reasons(crowded)
        ]
    only = Cycle(pod, snapshot).only
    if only is not None and state.name not in only:
        reasons = [replace(reason, phrase=_OUTSIDE) if reason.filter == AFFINITY else reason for reason in reasons]
    return (*rejections, *reasons)


def explain_pod(pod: PodView, cluster: ClusterView | ClusterSnapshot) -> tuple[Reason, ...]:
    """What keeps the pod from being scheduled whatever the node: gates, claims, quota, its scheduler, its manifest."""
    snapshot = ClusterSnapshot.of(cluster)
    prepared = (row.prepare(pod, snapshot) for row in FILTERS)
    return (
        *outside_scheduler.reasons(pod, snapshot),
        *(_everywhere(rejection) for rejection in prepared if isinstance(rejection, Rejection)),
    )


def _everywhere(rejection: Rejection) -> Reason:
    """The rejection as a reason that holds for every node."""
    return Reason(
        rejection.filter, rejection.phrase, rejection.sentence, resolvable=rejection.resolvable,
        subject=rejection.subject,
    )  # fmt: skip


def _state(node: NodeView | str, snapshot: ClusterSnapshot) -> NodeState:
    name = node if isinstance(node, str) else node.name
    known = snapshot.nodes.get(name)
    if known is not None and (isinstance(node, str) or known.view is node):
        return known
    state = known.copy() if known is not None else NodeState(name)
    if isinstance(node, NodeView):
        state.view, state.labels = node, node.labels
        state.hard_taints = tuple(taint for taint in node.taints if taint.hard)
    return state
