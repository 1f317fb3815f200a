"""A pod that waits and of which no other rule tells anything: what ``fit`` says is told, so none is passed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.doctor import matching
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place
from kgpu.doctor.rule import Rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import Waiting, waiting


def unplaced(snapshot: Snapshot) -> Iterator[Finding]:
    """Whatever keeps an accelerator pod from every node."""
    for one in waiting(snapshot):
        if one.fits or one.view.claims or not snapshot.knows("Node"):  # of claims only their own rules know
            continue
        cause, certain = _cause(one)
        if not cause:
            continue
        steps = tuple(f"{change.what} (then it fits node {', '.join(change.fits[:3])})" for change in one.changes[:3])
        yield Finding(
            cause=f"{one.who} waits: {cause}",
            evidence=(one.asked(), *_offers(one), *one.said()),
            remedy=steps or (f"kubectl -n {one.pod.namespace} describe pod {one.pod.name}", "add a node that fits it"),
            confidence=CERTAIN if certain else LIKELY,
            level=Level.PROBLEM,
            **one.shared(),
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
    amounts = {node.name: node.allocatable(one.resource) or 0 for node in one.snapshot.nodes.values()}
    return {name: amount for name, amount in amounts.items() if amount}


def _offers(one: Waiting) -> tuple[Evidence, ...]:
    most = _most(one)
    names = sorted(most, key=lambda name: (-most[name], name))[:3]
    return tuple(one.snapshot.nodes[name].cite(f"status.allocatable[{one.resource}]") for name in names)


RULES: Final = (
    Rule(
        "SCH-00", "No node takes the pod", Place.CLUSTER, unplaced,
        "What the scheduler's filters have against the pod, node by node, recomputed: the resource is offered nowhere, "
        "no node has as many, or each node has a reason of its own. Told only of pods that no other rule explains.",
        last_resort=True,
    ),
)  # fmt: skip
