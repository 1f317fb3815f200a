"""Pods that were never made and of which no other rule tells anything: the API server's refusal is told as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.doctor import matching
from kgpu.doctor.kinds import Event
from kgpu.doctor.model import LIKELY, Finding, Place, Subject
from kgpu.doctor.rule import Rule
from kgpu.doctor.rules.quota import refused
from kgpu.doctor.snapshot import Snapshot

_RESOURCE: Final = re.compile(r"(?:(?:requests|limits)\.)?([a-z0-9][\w.-]{0,120}\.[a-z]+/[\w.-]{1,63})")


def unmade(snapshot: Snapshot) -> Iterator[Finding]:
    """Controllers of GPU pods, or of parts of a stack, whose pods are refused."""
    for event in refused(snapshot):
        if not _is_ours(snapshot, event):
            continue
        kind, namespace, name = event.about
        yield Finding(
            subject=Subject(kind, name, namespace),
            cause=f"{kind} {namespace}/{name} lacks pods, which are refused: {event.message}",
            evidence=(event.quote(),),
            remedy=(
                f"kubectl -n {namespace} describe {kind.lower()} {name}",
                f"kubectl -n {namespace} get resourcequota,limitrange -o yaml",
            ),
            confidence=LIKELY,
            since=event.first,
        )


def _is_ours(snapshot: Snapshot, event: Event) -> bool:
    if any(matching.is_accelerator(resource) for resource in _RESOURCE.findall(event.message)):
        return True
    kind, namespace, name = event.about
    maker = snapshot.get(kind, name, namespace)
    if maker is None:
        return False
    return bool(matching.parts_of(maker)) or matching.makes_accelerator_pods(maker)


RULES: Final = (
    Rule(
        "QTA-00", "Pods are refused", Place.CLUSTER, unmade,
        "The API server, a quota or a webhook refuses the pods of a controller that are for GPUs; told only where no "
        "other rule knows why.",
        last_resort=True,
    ),
)  # fmt: skip
