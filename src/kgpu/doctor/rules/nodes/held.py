"""Rows NOP about nodes that an operation holds: which one, for whom, how far it is, and what is in its way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.printable import one_line
from kgpu.base.remedy import Remedy
from kgpu.doctor import remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import CERTAIN, Evidence, Finding, Level, Place
from kgpu.doctor.node_operations import KnownOperation, at_work, holding, operations
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import UNSCHEDULABLE_FILTER, Waiting, waiting
from kgpu.fit.read import label_selector
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationPhase

_OWN: Final = ("kgpu/operations, source",)
_BUDGETS: Final = (*_OWN, "kubernetes/kubernetes#72320", "kubernetes/kubernetes#75957")
_PERSON: Final = "until somebody resumes it"
_MACHINE: Final = "until its machine is replaced"
_MOST_PODS: Final = 5
_MAX_WHY: Final = 300
_LABEL: Final = f"metadata.labels[{names.NEEDS_REPLACEMENT_LABEL}]"


@rule("NOP-01", "A node is cordoned for an operation", Place.CLUSTER, rests_on=_OWN)
def held(snapshot: Snapshot) -> Iterator[Finding]:
    """kgpu cordons a node, empties it and holds it while it reboots or somebody works on it; then the node is given
    back as it was. Uncordoning it meanwhile ends the operation halfway. The Node's annotation kgpu.dev/cordon and the
    NodeOperation show it.
    """
    kept_out = {name for pending in waiting(snapshot) if not pending.fits for name in _kept_out(pending)}
    for name, record in holding(snapshot).items():
        if name in kept_out or record.name in snapshot.once(_blocked) or record.waits_for_machine:
            continue  # NOP-02 says the same to those who wait, NOP-05 why it takes so long, NOP-09 what is to be done
        late = record.late(snapshot)
        yield Finding(
            subject=snapshot.nodes[name].subject,
            cause=f"node {name} is held by {record.who}, {record.how_far}{_beyond(record, snapshot)}",
            evidence=(snapshot.nodes[name].cite("spec.unschedulable"), *record.cited()),
            remedy=record.steps(snapshot),
            confidence=CERTAIN,
            level=Level.PROBLEM if late else Level.NOTE,
            since=record.status.started_at or "",
            nodes=(name,),
        )


@rule("NOP-09", "The machine of a node has to be replaced", Place.CLUSTER, explains=("NOP-02",), rests_on=_OWN)
def needs_machine(snapshot: Snapshot) -> Iterator[Finding]:
    """kgpu has emptied the node and holds it, as a person or its policy wants, because reboots did not bring its GPUs
    back. It deletes no machine and no Node: this ends once the Node is deleted, all GPUs work in another boot, or
    somebody resumes the operation. The label kgpu.dev/needs-replacement of the Node is for programs that replace
    machines.
    """
    for record in operations(snapshot):
        node = snapshot.nodes.get(record.node)
        if not record.waits_for_machine or node is None:
            continue
        since = record.status.phase_since or ""
        why = f": {one_line(record.spec.reason, _MAX_WHY)}" if record.spec.reason else ""
        label = node.cite(_LABEL, "true") if names.NEEDS_REPLACEMENT_LABEL in node.labels else None
        kept = record.obj.cite("status.evidence.name") if record.status.evidence is not None else None
        yield Finding(
            subject=node.subject,
            cause=f"the machine of node {record.node} has to be replaced{why}; {record.name} holds the node",
            evidence=tuple(one for one in (label, *record.cited(), kept) if one is not None),
            remedy=record.steps(snapshot),
            confidence=CERTAIN,
            since=since,
            nodes=(record.node,),
        )  # fmt: skip


@rule("NOP-02", "A pod waits for a node that an operation holds", Place.CLUSTER, rests_on=_OWN)
def kept_out(snapshot: Snapshot) -> Iterator[Finding]:
    """The pod would fit on a node that is cordoned, because kgpu empties it, reboots it, or holds it for somebody who
    works on it. It is placed when the operation has given the node back. Do not uncordon the node: that ends the
    operation halfway.
    """
    for pending in waiting(snapshot):
        nodes = () if pending.fits else _kept_out(pending)
        if not nodes:
            continue
        node, record = nodes[0], holding(snapshot)[nodes[0]]
        more = f" (and {len(nodes) - 1} more nodes that are held)" if len(nodes) > 1 else ""
        late = record.late(snapshot)
        yield Finding(
            cause=(
                f"{pending.who} waits: node {node}{more} would do, but is held by {record.who}, {record.how_far}"
                f"{_beyond(record, snapshot)}"
            ),
            evidence=(snapshot.nodes[node].cite("spec.unschedulable"), *record.cited(), *pending.said()),
            remedy=record.steps(snapshot),
            confidence=CERTAIN,
            level=Level.PROBLEM if late else Level.WAIT,
            expected="" if late else _expected(record),
            **pending.shared(nodes=nodes),
        )


def _kept_out(pending: Waiting) -> tuple[str, ...]:
    """The held nodes on which nothing but the cordon is against a pod."""
    return tuple(name for name in pending.only(UNSCHEDULABLE_FILTER) if name in holding(pending.snapshot))


def _expected(record: KnownOperation) -> str:
    if record.waits_for_machine:
        return _MACHINE
    if record.in_maintenance and not record.status.phase_deadline:
        return _PERSON
    return f"this phase until {record.status.phase_deadline} at most" if record.status.phase_deadline else "minutes"


def _beyond(record: KnownOperation, snapshot: Snapshot) -> str:
    late = record.late(snapshot)
    return f"; that should have been over by {record.status.phase_deadline}" if late else ""


@dataclass(frozen=True, slots=True)
class _Blocker:
    """What keeps a pod on a node that is emptied."""

    why: str
    evidence: tuple[Evidence, ...]
    remedy: tuple[Remedy, ...]


@rule("NOP-05", "Pods do not leave a node that is emptied", Place.CLUSTER, explains=("NOP-02",), rests_on=_BUDGETS)
def not_emptied(snapshot: Snapshot) -> Iterator[Finding]:
    """An operation waits for pods to leave its node, or its GPUs. A PodDisruptionBudget that allows no disruption
    refuses the eviction until another pod of its application is ready; two budgets for one pod refuse it for ever; a
    finalizer keeps a pod that has ended. kgpu deletes nothing past a budget, unless the operation says onTimeout: Force
    and the chart allows it: at its limit the operation fails and gives the node back.
    """
    for record in at_work(snapshot):
        if rows := snapshot.once(_blocked).get(record.name):
            yield _not_emptied(record, rows)


def _blocked(snapshot: Snapshot) -> dict[str, list[tuple[Pod, _Blocker]]]:
    """By name of an operation, the pods that something keeps where it has to empty."""
    by_name = {record.name: list(_kept(snapshot, record)) for record in at_work(snapshot)}
    return {name: rows for name, rows in by_name.items() if rows}


def _kept(snapshot: Snapshot, record: KnownOperation) -> Iterator[tuple[Pod, _Blocker]]:
    if record.phase is not OperationPhase.DRAINING or record.status.drain is None:
        return
    for row in record.status.drain.waiting:
        pod = snapshot.pods.get((row.namespace, row.name))
        blocker = _blocker(snapshot, pod) if pod is not None and pod.node == record.node else None
        if pod is not None and blocker is not None:
            yield pod, blocker


def _not_emptied(record: KnownOperation, rows: list[tuple[Pod, _Blocker]]) -> Finding:
    told = "; ".join(f"{pod}: {blocker.why}" for pod, blocker in rows[:_MOST_PODS])
    more = f"; and {len(rows) - _MOST_PODS} more" if len(rows) > _MOST_PODS else ""
    limit = f" At {record.status.phase_deadline} it fails." if record.status.phase_deadline else ""
    back = "its GPUs" if record.spec.gpus else "the node"
    remedy = dict.fromkeys(step for _, blocker in rows[:_MOST_PODS] for step in blocker.remedy)
    return Finding(
        subject=record.obj.subject,
        cause=f"{record.who} can't empty {record.place}: {told}{more}.{limit}",
        evidence=(*record.cited(), *(one for _, blocker in rows[:_MOST_PODS] for one in blocker.evidence)),
        remedy=(*remedy, remedies.cancel_operation(record.name).why(f"or end the operation, which gives {back} back")),
        confidence=CERTAIN,
        since=record.status.phase_since or "",
        nodes=(record.node,),
        pods=tuple(pod.path for pod, _ in rows),
    )


def _blocker(snapshot: Snapshot, pod: Pod) -> _Blocker | None:
    """What keeps a pod that has to go, None for one that just has not gone yet."""
    finalizers = [str(name) for name in pod.list("metadata.finalizers")]
    if pod.deleting:
        if not finalizers or snapshot.overdue(pod) is None:
            return None
        return _Blocker(
            f"it has ended and is kept by its finalizer {finalizers[0]}",
            (pod.cite("metadata.finalizers"), pod.cite("metadata.deletionTimestamp")),
            (
                Remedy("see why the controller of the finalizer does not take it away; only if it is gone for good:"),
                remedies.edit(pod.namespace, "pod", pod.name),
            ),
        )
    budgets = [
        budget
        for budget in snapshot.all("PodDisruptionBudget")
        # As the eviction API sees it: an empty selector selects every pod of the namespace.
        if budget.namespace == pod.namespace and label_selector(budget.at("spec.selector")).matches(pod.labels)
    ]
    if len(budgets) > 1:
        shown = ", ".join(budget.name for budget in budgets)
        return _Blocker(
            f"the PodDisruptionBudgets {shown} all select it, so that it can't be evicted",
            tuple(budget.cite("spec.selector") for budget in budgets),
            (remedies.edit(pod.namespace, "poddisruptionbudget", budgets[-1].name).why("let one of them select it"),),
        )
    if budgets and budgets[0].number("status.disruptionsAllowed") <= 0:
        return _Blocker(
            f"its PodDisruptionBudget {budgets[0].name} allows no disruption now",
            (budgets[0].cite("status.disruptionsAllowed"),),
            (
                remedies.describe(pod.namespace, "poddisruptionbudget", budgets[0].name).why(
                    "it is evicted once another pod of its application is ready: add a replica, or change the budget"
                ),
            ),
        )
    return None
