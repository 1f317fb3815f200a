"""Rows SCH about room: every GPU is taken, or what is free is scattered; what an autoscaler does about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import commands, remedies, whatif
from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import CERTAIN, Evidence, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import RESOURCES, Waiting, waiting
from kgpu.doctor.whatif import named

_QUEUE_SECONDS: Final = 60.0  # so long it is an ordinary queue


@rule("SCH-01", "All GPUs are taken", Place.CLUSTER, also=("SCH-21",))
def busy(snapshot: Snapshot) -> Iterator[Finding]:
    """Every unit of the resource on the nodes that would do is held by other pods, often idle notebooks. Proof: the sum
    of what pods on the node ask for equals status.allocatable. End or scale down a holder, or add nodes.
    """
    for one in waiting(snapshot):
        nodes = one.only(RESOURCES, one.resource)
        if not nodes or not one.resource or one.fits:
            continue
        enough = [
            name for name in nodes if one.snapshot.fit.nodes[name].view.allocatable.get(one.resource, 0) >= one.wanted
        ]
        if not enough or any(one.free(name) > 0 for name in enough):
            continue
        holders = _on(one, enough)[:8]
        shown = tuple(pod.cite("spec.nodeName") for pod in holders[:5])
        age = snapshot.age(one.since)
        scaling, expected = one.scaling, _ends(one, enough)
        if scaling is not None:
            expected = scaling.expected or expected
        young = age is not None and age < _QUEUE_SECONDS and scaling is None
        yield Finding(
            cause=(
                f"{one.who} waits: {_scaled(one)}all {one.resource} of {named(tuple(enough))} are taken, by "
                + (", ".join(map(_holder, holders[:5])) or "pods that are not shown here")
            ),
            evidence=(*_scaled_by(one), one.asked(), *_amounts(one, enough), *shown, *one.said()),
            remedy=_make_room(holders, one),
            confidence=CERTAIN,
            level=Level.NOTE if young else Level.WAIT if expected else Level.PROBLEM,
            expected="" if young else expected,
            **one.shared(nodes=one.blamed),
        )


def _on(one: Waiting, nodes: Iterable[str]) -> tuple[Pod, ...]:
    """The holders on these nodes alone: who ends elsewhere makes no room here."""
    wanted = frozenset(nodes)
    return tuple(pod for pod in one.holders(100) if pod.node in wanted)


def _scaled(one: Waiting) -> str:
    return f"{one.scaling.sentence}; " if one.scaling is not None else ""


def _scaled_by(one: Waiting) -> tuple[Evidence, ...]:
    return (one.scaling.evidence,) if one.scaling is not None else ()


def _ends(one: Waiting, nodes: Iterable[str]) -> str:
    """Until when waiting is right: where pods that end by themselves (of Jobs, or being deleted) hold enough."""
    for name in nodes:
        state = one.snapshot.fit.nodes[name]
        ending: dict[str, int] = {}
        for view in state.pods.values():
            pod = one.snapshot.pods.get((view.namespace, view.name))
            held = view.used.get(one.resource, 0)
            if pod is not None and held and (said := _end_of(one.snapshot, pod)):
                ending[said] = ending.get(said, 0) + held
        if ending and sum(ending.values()) + state.free(one.resource) >= one.wanted:
            return f"until {', or '.join(list(ending)[:3])}"
    return ""


def _end_of(snapshot: Snapshot, pod: Pod) -> str:
    """In words when a pod ends by itself, "" when it does not."""
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


def _make_room(holders: tuple[Pod, ...], one: Waiting) -> tuple[Remedy, ...]:
    """Ending somebody's work comes last, with its owner named; that of its own owner would come back and wait too."""
    mine, namespace = one.pod.owner, one.pod.namespace
    others = tuple(pod for pod in holders if not mine or (pod.owner, pod.namespace) != (mine, namespace))
    if holders and not others:
        return (
            Remedy(
                "its own fellows hold them: give {} of namespace {}, or what made it, fewer replicas", mine, namespace
            ),
            Remedy("or add a node with {}", one.resource),
        )
    holders, resource = others, one.resource
    steps = [remedies.describe(pod.namespace, "pod", pod.name).why("finalizers") for pod in holders if pod.deleting][:1]
    steps.append(Remedy("wait until one of them ends, or add a node with {}", resource))
    first = next((pod for pod in holders if not pod.deleting), None)
    if first is not None and first.namespace == namespace:
        steps.append(commands.ended(first, one.snapshot))
    elif first is not None:  # whoever waits does not decide over others' work
        steps += [
            Remedy("the oldest holder is {}; whether it works, and whom to ask:", first.path),
            Remedy("kgpu top --once -n {}", first.namespace),
        ]
    return tuple(steps)


def _amounts(one: Waiting, nodes: Iterable[str], limit: int = 3) -> tuple[Evidence, ...]:
    return tuple(
        one.snapshot.nodes[name].cite(f"status.allocatable[{one.resource}]") for name in list(nodes)[:limit]
    )  # fmt: skip


@rule("SCH-07", "Free GPUs are scattered", Place.CLUSTER)
def fragmented(snapshot: Snapshot) -> Iterator[Finding]:
    """A pod can't span nodes: what counts is what is free on one node, not the sum."""
    for one in waiting(snapshot):
        nodes = one.only(RESOURCES, one.resource)
        free = {name: one.free(name) for name in nodes}
        if one.fits or not one.resource or sum(free.values()) < one.wanted or max(free.values(), default=0) == 0:
            continue
        if all((snapshot.nodes[name].allocatable(one.resource) or 0) < one.wanted for name in nodes):
            continue  # not even an empty one would do
        shown = ", ".join(f"{name} {count}" for name, count in sorted(free.items(), key=lambda row: -row[1])[:6])
        change = one.change(whatif.COUNT)
        expected = one.scaling.expected if one.scaling is not None else ""
        yield Finding(
            cause=(
                f"{one.who} {'waits: ' if one.scaling else ''}{_scaled(one)}{'it ' if one.scaling else ''}asks for "
                f"{one.wanted} {one.resource} on one node; {sum(free.values())} are free, but scattered: {shown}"
            ),
            evidence=(*_scaled_by(one), one.asked(), *_amounts(one, nodes), *one.said()),
            level=Level.WAIT if expected else Level.PROBLEM,
            expected=expected,
            remedy=(
                *_moved(one, nodes),
                *(commands.steps(one, change) if change else ()),
                *((Remedy("or split the work over several pods"),) if change else ()),
                Remedy(
                    "wait for one of these to end: {}",
                    ", ".join(pod.path for pod in _on(one, nodes)[:5]) or "the pods that hold the rest",
                ),
            ),
            confidence=CERTAIN,
            **one.shared(nodes=one.blamed),
        )


def _moved(one: Waiting, nodes: tuple[str, ...]) -> tuple[Remedy, ...]:
    """The pod that would make room elsewhere, where ``fit`` proves one."""
    found = whatif.move(one.view, nodes, one.resource, one.snapshot.fit)
    if found is None:
        return ()
    pod, node = found.pod, found.node
    return (
        Remedy(
            "move pod {} ({} {}) to node {}, which has room for it; then this one fits node {}:",
            pod, pod.used[one.resource], one.resource, found.to, node,
        ),
        remedies.move_pod(node, pod.namespace, pod.name).why(f"made anew by {pod.owner}"),
    )  # fmt: skip
