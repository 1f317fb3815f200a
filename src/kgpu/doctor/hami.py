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
    annotation = node.text(f"metadata.annotations[{REGISTERED}]").strip()
    if annotation.startswith("["):
        try:
            rows = json.loads(annotation)
        except ValueError:
            return None
        return len(rows) if isinstance(rows, list) else None
    card_rows = [card for card in annotation.split(":") if card.count(",") >= 3]
    return len(card_rows) or None


def unfit(snapshot: Snapshot) -> Iterator[Finding]:
    """SCH-17 by what nodes have: more cards are asked for than one node has, or none of its reasons is in the event."""
    for pending in waiting(snapshot):
        failed = next((event for event in snapshot.events(pending.pod) if event.reason == FAILED), None)
        if pending.view.gates or not (failed or "hami" in pending.view.scheduler):
            continue
        cards_by_node = {node.name: count for node in snapshot.nodes.values() if (count := cards(node)) is not None}
        if cards_by_node and pending.wanted > max(cards_by_node.values()):
            yield _too_many(pending, cards_by_node)
        elif failed is not None and not _KNOWN.search(failed.message):
            yield Finding(
                cause=f"HAMi finds no card for {pending.who}: {failed.message}",
                evidence=(failed.quote(), *_said(snapshot, pending.pod)),
                remedy=(
                    Remedy("kubectl get nodes -o yaml | grep -A 3 hami.io/node"),
                    Remedy(
                        "ask for fewer cards (nvidia.com/gpu), "
                        "or less nvidia.com/gpumem and nvidia.com/gpucores of each"
                    ),
                ),
                confidence=LIKELY,
                **pending.shared(),
            )


def _too_many(pending: Waiting, cards_by_node: dict[str, int]) -> Finding:
    node = max(sorted(cards_by_node), key=lambda name: cards_by_node[name])
    most = cards_by_node[node]
    words = f"ask for {most}: under HAMi that is a number of cards of one node"
    return Finding(
        cause=(
            f"{pending.who} asks for {pending.wanted} {pending.resource}; under HAMi that counts cards of one node, "
            f"and node {node} has {most}: what it offers beyond that are shares of the same cards"
        ),
        evidence=(
            pending.asked(),
            pending.snapshot.nodes[node].cite(f"metadata.annotations[{REGISTERED}]"),
            *_said(pending.snapshot, pending.pod),
            *pending.said(),
        ),
        remedy=commands.patched(pending, (edits.ask(pending.resource, str(most)),), words, words=words),
        confidence=CERTAIN,
        **pending.shared(),
    )


def _said(snapshot: Snapshot, pod: Pod) -> tuple[Evidence, ...]:
    """The scheduler's own line about the pod, where its log is there."""
    name = re.compile(rf'"{re.escape(pod.path)}".*|for pod {re.escape(pod.path)}\b')
    schedulers = [
        scheduler
        for scheduler in snapshot.pods.values()
        if any("hami" in container.image for container in scheduler.containers)
    ]
    hits = list(messages.in_logs(snapshot, name, pod.name, pods=schedulers)) if schedulers else []
    return tuple(hit.evidence for hit in hits[:1])
