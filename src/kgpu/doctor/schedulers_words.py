"""What the scheduler says of pods that wait, where no node is known: somebody may read one namespace alone."""

from __future__ import annotations

from collections.abc import Iterator

from kgpu.base.printable import counted
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import LIKELY, Finding
from kgpu.doctor.snapshot import Snapshot


def in_the_schedulers_words(snapshot: Snapshot) -> Iterator[Finding]:
    """A finding for each namespace's pods of which the scheduler says the same: nothing can be computed anew."""
    told: dict[tuple[str, str], list[Pod]] = {}
    for pod in snapshot.pods.values():
        condition = pod.condition("PodScheduled")
        waits = condition is not None and condition.status == "False" and bool(condition.message)
        if waits and condition and pod.unplaced and matching.uses_accelerators(pod):
            told.setdefault((pod.namespace, condition.message), []).append(pod)
    for (_, message), pods in told.items():
        yield _finding(pods, message)


def _finding(pods: list[Pod], message: str) -> Finding:
    first = min(pods, key=lambda pod: pod.key)
    condition = first.condition("PodScheduled")
    asks = ", ".join(f"{amount} {name}" for name, amount in sorted(matching.accelerators(first).items()))
    others = f" (and {counted(len(pods) - 1, 'other pod')})" if len(pods) > 1 else ""
    return Finding(
        cause=(
            f"{first}{others} waits" + (f" and asks for {asks}" if asks else "")
            + f'; the scheduler says: "{message.rstrip(".")}". No node is known here to explain it by'
        ),
        evidence=(condition.cite(),) if condition else (),
        remedy=(
            remedies.describe(first.namespace, "pod", first.name),
            Remedy("ask somebody who may read nodes for the reason node by node:"),
            Remedy("kgpu doctor pod {}/{}", first.namespace, first.name),
        ),
        confidence=LIKELY, subject=first.subject, pods=tuple(pod.path for pod in pods),
        since=condition.since if condition else "",
    )  # fmt: skip
