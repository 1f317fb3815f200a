"""Waiting pods that no other rule explains: the finding says what ``fit`` says, so that none is missed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import commands, edits, matching, remedies
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.schedulers_words import in_the_schedulers_words
from kgpu.doctor.slices import Slices, makeable, price, priced, swapped
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.untapped import Untapped, or_a_node, untapped
from kgpu.doctor.volumes import stuck_claim
from kgpu.doctor.waiting import Waiting, waiting

_YOUNG: Final = 60.0
_STALE: Final = 300.0
_ASK: Final[tuple[str, ...]] = (
    "kubectl -n {namespace} get pod {name} -o yaml --show-managed-fields  # who has made it",
)
_GATES: Final[tuple[tuple[re.Pattern[str], str, re.Pattern[str], tuple[str, ...]], ...]] = (
    (
        re.compile(r"kueue\.x-k8s\.io/"), "Kueue", re.compile(r"/kueue[:@]"),
        (
            "kubectl -n {namespace} get workloads.kueue.x-k8s.io  # its conditions say what it waits for",
            "kubectl get clusterqueues.kueue.x-k8s.io",
        ),
    ),
    (re.compile(r"grove\.io/"), "Grove", re.compile(r"/grove-operator[:@]"), ("kubectl -n {namespace} get podgangs",)),
)  # fmt: skip
"""Gates by whose they are, the image of who takes them off, and where to look."""


@rule("SCH-00", "No node takes the pod", Place.CLUSTER, last_resort=True)
def unplaced(snapshot: Snapshot) -> Iterator[Finding]:
    """Why the scheduler's filters reject the pod, recomputed node by node: no node offers the resource, no node has
    enough, each node has a reason of its own, or a volume claim of the pod does not exist or has no volume. Where no
    node is known, as for somebody who may read one namespace alone, what the scheduler says. Reported only for pods
    that no other rule explains.
    """
    if not snapshot.nodes:
        yield from in_the_schedulers_words(snapshot)
    for pending in waiting(snapshot):
        if pending.view.gates:
            yield _gated(pending)
        elif (pending.fits or pending.view.claims) and (verdict := _scheduler_says(pending)):
            yield _unknown(pending, verdict)
        if (
            pending.view.gates or pending.fits or pending.view.claims or not snapshot.knows("Node")
        ):  # claims have rules of their own
            continue
        claim = stuck_claim(pending)
        if claim is not None:
            yield Finding(
                cause=f"{pending.who} waits: {claim.why}",
                evidence=(*claim.evidence, *pending.said()),
                remedy=claim.remedy,
                confidence=CERTAIN,
                stays=True,
                **pending.shared(nodes=(), table=()),
            )
            continue
        cause, certain = _cause(pending)
        if not cause:
            continue
        slices = (
            makeable(snapshot, pending.resource) if matching.is_mig(pending.resource) and not _most(pending) else None
        )
        scaling = pending.scaling
        others = () if pending.anywhere else untapped(pending)
        too_many = pending.wanted > max(_most(pending).values(), default=pending.wanted)
        yield Finding(
            cause=f"{pending.who} waits: " + "; ".join(_sentences(pending, cause, slices, others)),
            evidence=(
                *((scaling.evidence,) if scaling else ()),
                pending.asked(),
                *_offers(pending),
                *(slices.evidence if slices else ()),
                *pending.said(),
                *(row for other in others for row in other.evidence),
            ),
            remedy=_steps(pending, slices) or _looks(pending),
            confidence=CERTAIN if certain else LIKELY,
            level=_level(pending, certain),
            expected=scaling.expected if scaling else "",
            **pending.shared(**({"nodes": ()} if pending.anywhere or too_many else {})),
        )


def _sentences(pending: Waiting, cause: str, slices: Slices | None, others: tuple[Untapped, ...]) -> Iterator[str]:
    if pending.scaling:
        yield pending.scaling.sentence
    yield cause
    if slices:
        yield slices.words
    yield from (other.sentence for other in others)


def _looks(pending: Waiting) -> tuple[Remedy, ...]:
    """Where no change of the pod is enough: another node, after all that may give it its GPUs without one."""
    describe = remedies.describe(pending.pod.namespace, "pod", pending.pod.name)
    return tuple(dict.fromkeys((describe, *or_a_node(pending, Remedy("add a node that fits it")))))


def _level(pending: Waiting, certain: bool) -> Level:
    """NOTE for a pod that has waited only seconds for an uncertain cause: another pod may be ending just now."""
    if pending.scaling and pending.scaling.expected:
        return Level.WAIT
    age = pending.snapshot.age(pending.since)
    return Level.NOTE if not certain and age is not None and age < _YOUNG else Level.PROBLEM


def _steps(pending: Waiting, slices: Slices | None) -> tuple[Remedy, ...]:
    """Steps: those that make slices first, then the smallest changes, then another resource in place of a slice."""
    changes = [priced(pending.snapshot, pending.view, change) for change in pending.changes[:3]]
    last = [change for change in changes if slices is not None and any(swapped(pending.view, change))]
    first = tuple(step for change in changes if change not in last for step in commands.steps(pending, change))
    other = tuple(step for change in last for step in commands.steps(pending, change))
    return (*(slices.steps if slices else ()), *first, *(other or (() if first else _other_name(pending))))


def _gated(pending: Waiting) -> Finding:
    """The finding for a gated pod, which the scheduler ignores until its gates are removed."""
    gate, pod = pending.view.gates[0], pending.pod
    row = next((row for row in _GATES if row[0].match(gate)), None)
    age = pending.snapshot.age(pod.created)
    who, missing, steps = f"whoever has put {gate} into its manifest", False, _ASK
    if row is not None:
        _, who, program, steps = row
        pods = pending.snapshot.pods.values()
        missing = not any(
            program.search(container.image) for cluster_pod in pods for container in cluster_pod.containers
        )
    condition = pod.condition("PodScheduled")
    words = {"namespace": pod.namespace, "name": pod.name, "gate": gate}
    return Finding(
        cause=(
            f"{pending.who} waits for its scheduling gate {gate}, which {who} has to take off"
            + (f"; {who} does not seem to run here" if missing else "")
        ),
        evidence=(pod.cite("spec.schedulingGates"), *((condition.cite(),) if condition else ())),
        remedy=tuple(Remedy(step, **words) for step in steps),
        confidence=CERTAIN if not missing else LIKELY,
        level=Level.PROBLEM if missing else Level.NOTE if age is not None and age < _YOUNG else Level.WAIT,
        expected="" if missing or (age is not None and age < _YOUNG) else f"until {who} admits it",
        **pending.shared(nodes=(), table=()),
    )


def _scheduler_says(pending: Waiting) -> str:
    """The scheduler's message about a pod that fits by all that is known here and has waited for minutes; else ""."""
    condition = pending.pod.condition("PodScheduled")
    age = pending.snapshot.age(condition.since) if condition else None
    if condition is not None and condition.status == "False" and condition.message:
        return condition.message if age is not None and age >= _STALE else ""
    # When its own code fails, it sets no condition and only writes an event.
    for event in pending.snapshot.events(pending.pod):
        age = pending.snapshot.age(event.first)
        if event.reason == "FailedScheduling" and age is not None and age >= _STALE:
            return event.message
    return ""


def _unknown(pending: Waiting, verdict: str) -> Finding:
    known = (
        f"by what is known here it fits node {pending.fits[0]}" if pending.fits else "nothing known here is against it"
    )
    look = (
        (
            Remedy("what its claims ask for and who has it:"),
            Remedy("kubectl -n {} get resourceclaims -o yaml", pending.pod.namespace),
        )
        if pending.view.claims
        else (Remedy("look at what it names beside nodes, volumes above all:"), Remedy("kubectl get pvc,pv,sc -A"))
    )
    return Finding(
        cause=f'{pending.who} waits, and {known}; the scheduler says: "{verdict}"',
        evidence=(*pending.said(), pending.asked()),
        remedy=(remedies.describe(pending.pod.namespace, "pod", pending.pod.name), *look),
        confidence=POSSIBLE,
        **pending.shared(nodes=()),
    )


def _cause(pending: Waiting) -> tuple[str, bool]:
    """Why no node takes the pod, "" where that is not known, and whether that is certain."""
    if pending.anywhere:
        return pending.anywhere[0].sentence, True
    most = _most(pending)
    if pending.resource and not most:
        offered = sorted(
            {
                name
                for node in pending.snapshot.nodes.values()
                for name in node.resources()
                if matching.is_accelerator(name) and node.allocatable(name)
            }
        )
        return f"no node offers {pending.resource}" + (f"; nodes offer {', '.join(offered)}" if offered else ""), True
    if pending.resource and pending.wanted > max(most.values()):
        node = max(most, key=lambda name: (most[name], name))
        return f"it asks for {pending.wanted} {pending.resource}, and the largest node, {node}, has {most[node]}", True
    sentences = dict.fromkeys(reason.sentence for reasons in pending.reasons.values() for reason in reasons)
    return ("no node takes it: " + "; ".join(list(sentences)[:4]) if sentences else ""), False


def _most(pending: Waiting) -> dict[str, int]:
    """How many of the resource each node offers, where it offers any."""
    states = pending.snapshot.fit.nodes
    return {
        name: amount for name in sorted(states) if (amount := states[name].view.allocatable.get(pending.resource, 0))
    }


def _other_name(pending: Waiting) -> tuple[Remedy, ...]:
    """Steps to ask for a resource of the same vendor that nodes offer, where none offers the one asked for."""
    if not pending.resource or _most(pending):
        return ()
    vendor, states = matching.vendor_of(pending.resource), pending.snapshot.fit.nodes
    offered = {name for state in states.values() for name, amount in state.view.allocatable.items() if amount > 0}
    near = sorted(name for name in offered if matching.is_accelerator(name) and matching.vendor_of(name) == vendor)
    if not near:
        return ()
    cost = price(pending.snapshot, pending.resource, near[0])
    words = f"ask for {near[0]} in place of {pending.resource}" + (f", {cost}" if cost else "")
    return commands.patched(pending, (edits.rename(pending.resource, near[0]),), words, words=words)


def _offers(pending: Waiting) -> tuple[Evidence, ...]:
    most = _most(pending)
    names = sorted(most, key=lambda name: (-most[name], name))[:3]
    return tuple(pending.snapshot.nodes[name].cite(f"status.allocatable[{pending.resource}]") for name in names)
