"""Rows SCH about room: every GPU is taken, or what is free is scattered; what an autoscaler does about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import commands, remedies, smallest_change
from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import CERTAIN, Evidence, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.smallest_change import named
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.untapped import or_a_node, untapped
from kgpu.doctor.waiting import RESOURCES, Waiting, waiting

_QUEUE_SECONDS: Final = 60.0  # so long it is an ordinary queue


@rule(
    "SCH-01",
    "All GPUs are taken",
    Place.CLUSTER,
    also=("SCH-21",),
    rests_on=("NVIDIA/k8s-device-plugin#102",),
)
def busy(snapshot: Snapshot) -> Iterator[Finding]:
    """Every unit of the resource on the nodes that would do is held by other pods, often idle notebooks. Proof: the sum
    of what pods on the node ask for equals status.allocatable. End or scale down a holder. Another node comes after all
    that may give the pod its GPUs without one: nodes that offer none of theirs, discovery, another scheduler, sharing.
    """
    for pending in waiting(snapshot):
        nodes = pending.only(RESOURCES, pending.resource)
        if not nodes or not pending.resource or pending.fits:
            continue
        enough = [
            name
            for name in nodes
            if pending.snapshot.fit.nodes[name].view.allocatable.get(pending.resource, 0) >= pending.wanted
        ]
        if not enough or any(pending.free(name) > 0 for name in enough):
            continue
        holders = _holders_on(pending, enough)[:8]
        shown = tuple(pod.cite("spec.nodeName") for pod in holders[:5])
        age = snapshot.age(pending.since)
        scaling, expected = pending.scaling, _ends(pending, enough)
        if scaling is not None:
            expected = scaling.expected or expected
        young = age is not None and age < _QUEUE_SECONDS and scaling is None
        others = untapped(pending)
        yield Finding(
            cause=(
                f"{pending.who} waits: {_scaled(pending)}all {pending.resource} of {named(tuple(enough))} are taken, "
                "by "
                + (", ".join(map(_holder, holders[:5])) or "pods that are not shown here")
                + "".join(f"; {other.sentence}" for other in others)
            ),
            evidence=(
                *_scaled_by(pending),
                pending.asked(),
                *_amounts(pending, enough),
                *shown,
                *pending.said(),
                *(row for other in others for row in other.evidence),
            ),
            remedy=_make_room(holders, pending),
            confidence=CERTAIN,
            level=Level.NOTE if young else Level.WAIT if expected else Level.PROBLEM,
            expected="" if young else expected,
            **pending.shared(nodes=pending.blamed),
        )


def _holders_on(pending: Waiting, nodes: Iterable[str]) -> tuple[Pod, ...]:
    """The pods that hold the resource on these nodes: ending those on other nodes makes no room here."""
    wanted = frozenset(nodes)
    return tuple(pod for pod in pending.holders(100) if pod.node in wanted)


def _scaled(pending: Waiting) -> str:
    return f"{pending.scaling.sentence}; " if pending.scaling is not None else ""


def _scaled_by(pending: Waiting) -> tuple[Evidence, ...]:
    return (pending.scaling.evidence,) if pending.scaling is not None else ()


def _ends(pending: Waiting, nodes: Iterable[str]) -> str:
    """Until when to wait, where pods that end by themselves (of Jobs, or being deleted) hold enough; else ""."""
    for name in nodes:
        state = pending.snapshot.fit.nodes[name]
        ending: dict[str, int] = {}
        for view in state.pods.values():
            pod = pending.snapshot.pods.get((view.namespace, view.name))
            held = view.used.get(pending.resource, 0)
            if pod is not None and held and (end := _end_of(pending.snapshot, pod)):
                ending[end] = ending.get(end, 0) + held
        if ending and sum(ending.values()) + state.free(pending.resource) >= pending.wanted:
            return f"until {', or '.join(list(ending)[:3])}"
    return ""


def _end_of(snapshot: Snapshot, pod: Pod) -> str:
    """A phrase for when a pod ends by itself, "" where it does not."""
    if pod.deleting:
        late = snapshot.overdue(pod) is not None
        return "" if late else f"{pod}, which is being deleted, is gone"
    kind, _, name = pod.owner.partition("/")
    if not kind.endswith("Job"):
        return ""
    job = snapshot.get(kind, name, pod.namespace)
    limit = job.number("spec.activeDeadlineSeconds") if job is not None else 0
    age = snapshot.age(job.text("status.startTime")) if job is not None else None
    more = f" (in {max(int((limit - age) // 60), 0)} minutes at most)" if limit and age is not None else ""
    return f"{kind} {pod.namespace}/{name} ends{more}"


def _holder(pod: Pod) -> str:
    return pod.path + (" (still being deleted)" if pod.deleting else "")


def _make_room(holders: tuple[Pod, ...], pending: Waiting) -> tuple[Remedy, ...]:
    """Steps that free devices. Ending another pod comes last; a pod of the same owner would come back and wait too."""
    mine, namespace = pending.pod.owner, pending.pod.namespace
    others = tuple(pod for pod in holders if not mine or (pod.owner, pod.namespace) != (mine, namespace))
    if holders and not others:
        return (
            Remedy(
                "its own fellows hold them: give {} of namespace {}, or what made it, fewer replicas", mine, namespace
            ),
            *or_a_node(pending, Remedy("or add a node with {}", pending.resource)),
        )
    holders, resource = others, pending.resource
    steps = [remedies.describe(pod.namespace, "pod", pod.name).why("finalizers") for pod in holders if pod.deleting][:1]
    wait = Remedy("wait until one of them ends, or add a node with {}", resource)
    looks = or_a_node(pending, wait)
    steps += looks if looks == (wait,) else (*looks, Remedy("or wait until one of them ends"))
    first = next((pod for pod in holders if not pod.deleting), None)
    if first is not None and first.namespace == namespace:
        steps.append(commands.ended(first, pending.snapshot))
    elif first is not None:  # whoever waits does not decide over others' work
        steps += [
            Remedy("the oldest holder is {}; whether it works, and whom to ask:", first.path),
            Remedy("kgpu top --once -n {}", first.namespace),
        ]
    return tuple(steps)


def _amounts(pending: Waiting, nodes: Iterable[str], limit: int = 3) -> tuple[Evidence, ...]:
    return tuple(
        pending.snapshot.nodes[name].cite(f"status.allocatable[{pending.resource}]") for name in list(nodes)[:limit]
    )  # fmt: skip


@rule("SCH-07", "Free GPUs are scattered", Place.CLUSTER)
def fragmented(snapshot: Snapshot) -> Iterator[Finding]:
    """A pod can't span nodes: what counts is what is free on one node, not the sum."""
    for pending in waiting(snapshot):
        nodes = pending.only(RESOURCES, pending.resource)
        free = {name: pending.free(name) for name in nodes}
        if (
            pending.fits
            or not pending.resource
            or sum(free.values()) < pending.wanted
            or max(free.values(), default=0) == 0
        ):
            continue
        if all((snapshot.nodes[name].allocatable(pending.resource) or 0) < pending.wanted for name in nodes):
            continue  # not even an empty one would do
        shown = ", ".join(f"{name} {count}" for name, count in sorted(free.items(), key=lambda row: -row[1])[:6])
        change = pending.change(smallest_change.COUNT)
        expected = pending.scaling.expected if pending.scaling is not None else ""
        yield Finding(
            cause=(
                f"{pending.who} "
                f"{'waits: ' if pending.scaling else ''}{_scaled(pending)}{'it ' if pending.scaling else ''}asks for "
                f"{pending.wanted} {pending.resource} on one node; {sum(free.values())} are free, but scattered: "
                f"{shown}"
            ),
            evidence=(*_scaled_by(pending), pending.asked(), *_amounts(pending, nodes), *pending.said()),
            level=Level.WAIT if expected else Level.PROBLEM,
            expected=expected,
            remedy=(
                *_moved(pending, nodes),
                *(commands.steps(pending, change) if change else ()),
                *((Remedy("or split the work over several pods"),) if change else ()),
                Remedy(
                    "wait for one of these to end: {}",
                    ", ".join(pod.path for pod in _holders_on(pending, nodes)[:5]) or "the pods that hold the rest",
                ),
            ),
            confidence=CERTAIN,
            **pending.shared(nodes=pending.blamed),
        )


def _moved(pending: Waiting, nodes: tuple[str, ...]) -> tuple[Remedy, ...]:
    """Steps to move a pod to another node, where ``fit`` proves that this makes room."""
    move = smallest_change.move(pending.view, nodes, pending.resource, pending.snapshot.fit)
    if move is None:
        return ()
    pod, node = move.pod, move.node
    return (
        Remedy(
            "move pod {} ({} {}) to node {}, which has room for it; then this one fits node {}:",
            pod, pod.used[pending.resource], pending.resource, move.to, node,
        ),
        remedies.move_pod(node, pod.namespace, pod.name).why(f"made anew by {pod.owner}"),
    )  # fmt: skip
