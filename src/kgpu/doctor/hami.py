"""What HAMi's scheduler has against a pod: cards of one node, which HAMi counts as they are, not as they are shared.

HAMi's device plugin writes the cards of a node into an annotation, as text (``UUID,shares,MiB,cores,type,numa,healthy``
for each card, with colons between them) or, in later releases, as JSON. ``nvidia.com/gpu`` in a pod is a number of
cards of one node; the node offers each card many times over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import commands, edits, messages
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import Waiting, waiting

REGISTERED: Final = "hami.io/node-nvidia-register"
FAILED: Final = "FilteringFailed"
_KNOWN: Final = re.compile(r"\bCard[A-Z]\w+|NumaNotFit|ExclusiveDeviceAllocateConflict")
"""Reasons that the event itself counts card by card."""


def cards(node: Node) -> int | None:
    """How many cards HAMi has registered on a node; None where it has not, or the text is none of its forms."""
    said = node.text(f"metadata.annotations[{REGISTERED}]").strip()
    if said.startswith("["):
        try:
            rows = json.loads(said)
        except ValueError:
            return None
        return len(rows) if isinstance(rows, list) else None
    found = [one for one in said.split(":") if one.count(",") >= 3]
    return len(found) or None


def unfit(snapshot: Snapshot) -> Iterator[Finding]:
    """SCH-17 by what nodes have: more cards are asked for than one node has, or none of its reasons is in the event."""
    for one in waiting(snapshot):
        failed = next((event for event in snapshot.events(one.pod) if event.reason == FAILED), None)
        if one.view.gates or not (failed or "hami" in one.view.scheduler):
            continue
        there = {node.name: count for node in snapshot.nodes.values() if (count := cards(node)) is not None}
        if there and one.wanted > max(there.values()):
            yield _too_many(one, there)
        elif failed is not None and not _KNOWN.search(failed.message):
            yield Finding(
                cause=f"HAMi finds no card for {one.who}: {failed.message}",
                evidence=(failed.quote(), *_said(snapshot, one.pod)),
                remedy=(
                    Remedy("kubectl get nodes -o yaml | grep -A 3 hami.io/node"),
                    Remedy(
                        "ask for fewer cards (nvidia.com/gpu), "
                        "or less nvidia.com/gpumem and nvidia.com/gpucores of each"
                    ),
                ),
                confidence=LIKELY,
                **one.shared(),
            )


def _too_many(one: Waiting, there: dict[str, int]) -> Finding:
    node = max(sorted(there), key=lambda name: there[name])
    most = there[node]
    words = f"ask for {most}: under HAMi that is a number of cards of one node"
    return Finding(
        cause=(
            f"{one.who} asks for {one.wanted} {one.resource}; under HAMi that counts cards of one node, and node "
            f"{node} has {most}: what it offers beyond that are shares of the same cards"
        ),
        evidence=(
            one.asked(),
            one.snapshot.nodes[node].cite(f"metadata.annotations[{REGISTERED}]"),
            *_said(one.snapshot, one.pod),
            *one.said(),
        ),
        remedy=commands.patched(one, (edits.ask(one.resource, str(most)),), words, words=words),
        confidence=CERTAIN,
        **one.shared(),
    )


def _said(snapshot: Snapshot, pod: Pod) -> tuple[Evidence, ...]:
    """The scheduler's own line about the pod, where its log is there."""
    name = re.compile(rf'"{re.escape(pod.path)}".*|for pod {re.escape(pod.path)}\b')
    schedulers = [one for one in snapshot.pods.values() if any("hami" in each.image for each in one.containers)]
    hits = list(messages.in_logs(snapshot, name, pod.name, pods=schedulers)) if schedulers else []
    return tuple(hit.evidence for hit in hits[:1])
