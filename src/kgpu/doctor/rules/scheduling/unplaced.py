"""A pod that waits and of which no other rule tells anything: what ``fit`` says is told, so none is passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import commands, edits, matching, remedies
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.slices import Slices, makeable, price, priced, swapped
from kgpu.doctor.snapshot import Snapshot
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
    """What the scheduler's filters have against the pod, node by node, recomputed: the resource is offered nowhere, no
    node has as many, each node has a reason of its own, or a volume claim of the pod is not there or has no volume.
    Told only of pods that no other rule explains.
    """
    for one in waiting(snapshot):
        if one.view.gates:
            yield _gated(one)
        elif (one.fits or one.view.claims) and (said := _scheduler_says(one)):
            yield _unknown(one, said)
        if (
            one.view.gates or one.fits or one.view.claims or not snapshot.knows("Node")
        ):  # claims have rules of their own
            continue
        claim = stuck_claim(one)
        if claim is not None:
            yield Finding(
                cause=f"{one.who} waits: {claim.why}",
                evidence=(*claim.evidence, *one.said()),
                remedy=claim.remedy,
                confidence=CERTAIN,
                stays=True,
                **one.shared(nodes=(), table=()),
            )
            continue
        cause, certain = _cause(one)
        if not cause:
            continue
        slices = makeable(snapshot, one.resource) if matching.is_mig(one.resource) and not _most(one) else None
        scaling = one.scaling
        too_many = one.wanted > max(_most(one).values(), default=one.wanted)
        yield Finding(
            cause=f"{one.who} waits: "
            + "; ".join([*([scaling.sentence] if scaling else ()), cause, *([slices.words] if slices else ())]),
            evidence=(
                *((scaling.evidence,) if scaling else ()),
                one.asked(),
                *_offers(one),
                *(slices.evidence if slices else ()),
                *one.said(),
            ),
            remedy=_steps(one, slices)
            or (
                remedies.describe(one.pod.namespace, "pod", one.pod.name),
                Remedy("add a node that fits it"),
            ),
            confidence=CERTAIN if certain else LIKELY,
            level=_level(one, certain),
            expected=scaling.expected if scaling else "",
            **one.shared(**({"nodes": ()} if one.anywhere or too_many else {})),
        )


def _level(one: Waiting, certain: bool) -> Level:
    """What waits for seconds only is a note where it may pass: another pod may be ending at this moment."""
    if one.scaling and one.scaling.expected:
        return Level.WAIT
    age = one.snapshot.age(one.since)
    return Level.NOTE if not certain and age is not None and age < _YOUNG else Level.PROBLEM


def _steps(one: Waiting, slices: Slices | None) -> tuple[Remedy, ...]:
    """The smallest changes; those that make slices come before them, and another resource in a slice's place last."""
    changes = [priced(one.snapshot, one.view, change) for change in one.changes[:3]]
    last = [change for change in changes if slices is not None and any(swapped(one.view, change))]
    first = tuple(step for change in changes if change not in last for step in commands.steps(one, change))
    other = tuple(step for change in last for step in commands.steps(one, change))
    return (*(slices.steps if slices else ()), *first, *(other or (() if first else _other_name(one))))


def _gated(one: Waiting) -> Finding:
    """The scheduler does not look at the pod before somebody takes its gates off."""
    gate, pod = one.view.gates[0], one.pod
    row = next((row for row in _GATES if row[0].match(gate)), None)
    age = one.snapshot.age(pod.created)
    who, missing, steps = f"whoever has put {gate} into its manifest", False, _ASK
    if row is not None:
        _, who, program, steps = row
        pods = one.snapshot.pods.values()
        missing = not any(program.search(container.image) for other in pods for container in other.containers)
    found = pod.condition("PodScheduled")
    words = {"namespace": pod.namespace, "name": pod.name, "gate": gate}
    return Finding(
        cause=(
            f"{one.who} waits for its scheduling gate {gate}, which {who} has to take off"
            + (f"; {who} does not seem to run here" if missing else "")
        ),
        evidence=(pod.cite("spec.schedulingGates"), *((found.cite(),) if found else ())),
        remedy=tuple(Remedy(step, **words) for step in steps),
        confidence=CERTAIN if not missing else LIKELY,
        level=Level.PROBLEM if missing else Level.NOTE if age is not None and age < _YOUNG else Level.WAIT,
        expected="" if missing or (age is not None and age < _YOUNG) else f"until {who} admits it",
        **one.shared(nodes=(), table=()),
    )


def _scheduler_says(one: Waiting) -> str:
    """Why the scheduler does not place a pod for minutes that fits by all that is known here."""
    found = one.pod.condition("PodScheduled")
    age = one.snapshot.age(found.since) if found else None
    if found is not None and found.status == "False" and found.message:
        return found.message if age is not None and age >= _STALE else ""
    # Where its own code fails it sets no condition, and says so by an event alone.
    for event in one.snapshot.events(one.pod):
        age = one.snapshot.age(event.first)
        if event.reason == "FailedScheduling" and age is not None and age >= _STALE:
            return event.message
    return ""


def _unknown(one: Waiting, said: str) -> Finding:
    known = f"by what is known here it fits node {one.fits[0]}" if one.fits else "nothing known here is against it"
    look = (
        (
            Remedy("what its claims ask for and who has it:"),
            Remedy("kubectl -n {} get resourceclaims -o yaml", one.pod.namespace),
        )
        if one.view.claims
        else (Remedy("look at what it names beside nodes, volumes above all:"), Remedy("kubectl get pvc,pv,sc -A"))
    )
    return Finding(
        cause=f'{one.who} waits, and {known}; the scheduler says: "{said}"',
        evidence=(*one.said(), one.asked()),
        remedy=(remedies.describe(one.pod.namespace, "pod", one.pod.name), *look),
        confidence=POSSIBLE,
        **one.shared(nodes=()),
    )


def _cause(one: Waiting) -> tuple[str, bool]:
    """In words, and whether nothing else can be meant; "" where nothing is known."""
    if one.anywhere:
        return one.anywhere[0].sentence, True
    most = _most(one)
    if one.resource and not most:
        other = sorted(
            {
                name
                for node in one.snapshot.nodes.values()
                for name in node.resources()
                if matching.is_accelerator(name) and node.allocatable(name)
            }
        )
        return f"no node offers {one.resource}" + (f"; nodes offer {', '.join(other)}" if other else ""), True
    if one.resource and one.wanted > max(most.values()):
        node = max(most, key=lambda name: (most[name], name))
        return f"it asks for {one.wanted} {one.resource}, and the largest node, {node}, has {most[node]}", True
    sentences = dict.fromkeys(reason.sentence for reasons in one.reasons.values() for reason in reasons)
    return ("no node takes it: " + "; ".join(list(sentences)[:4]) if sentences else ""), False


def _most(one: Waiting) -> dict[str, int]:
    """How many of the resource each node offers, where it offers any."""
    states = one.snapshot.fit.nodes
    return {name: amount for name in sorted(states) if (amount := states[name].view.allocatable.get(one.resource, 0))}


def _other_name(one: Waiting) -> tuple[Remedy, ...]:
    """The resource that nodes offer in place of one that none does, where they are of one vendor."""
    if not one.resource or _most(one):
        return ()
    vendor, states = matching.vendor_of(one.resource), one.snapshot.fit.nodes
    there = {name for state in states.values() for name, amount in state.view.allocatable.items() if amount > 0}
    near = sorted(name for name in there if matching.is_accelerator(name) and matching.vendor_of(name) == vendor)
    if not near:
        return ()
    cost = price(one.snapshot, one.resource, near[0])
    words = f"ask for {near[0]} in place of {one.resource}" + (f", {cost}" if cost else "")
    return commands.patched(one, (edits.rename(one.resource, near[0]),), words, words=words)


def _offers(one: Waiting) -> tuple[Evidence, ...]:
    most = _most(one)
    names = sorted(most, key=lambda name: (-most[name], name))[:3]
    return tuple(one.snapshot.nodes[name].cite(f"status.allocatable[{one.resource}]") for name in names)
