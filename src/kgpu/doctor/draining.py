"""Remedies that empty a node, told as they are on that node: with the pods that nobody would make again.

A drain refuses a node with a pod that has no controller, rightly: to end it is for its owner to decide. So it is never
forced; those pods are named.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor.model import Finding
from kgpu.doctor.remedies import DRAIN
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats.names import MIRROR_ANNOTATION

MAX_NAMED: Final = 8
_STOPS: Final = "the drain stops at pods that nobody would make again; agree with their owners and end them first: {}{}"
_DRAIN: Final = re.compile(DRAIN.format(node=r"(?P<node>\S+)") + "$")


def with_bare_pods(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding with the pods that stop a drain named above it; the same finding where there are none."""
    steps = tuple(line for step in finding.remedy for line in _lines(step, snapshot))
    return finding if steps == finding.remedy else replace(finding, remedy=steps)


def bare_pods(snapshot: Snapshot, node: str) -> tuple[str, ...]:
    """``namespace/name`` of the pods on a node that nobody makes again; not those of files on the node itself."""
    return tuple(
        pod.path
        for pod in snapshot.pods_by_node.get(node, ())
        if not pod.ended and not pod.deleting and not pod.owner and MIRROR_ANNOTATION not in pod.annotations
    )


def _lines(step: Remedy, snapshot: Snapshot) -> tuple[Remedy, ...]:
    """A step as it can be done: above a drain stands what stops it."""
    hit = _DRAIN.search(step)
    bare = bare_pods(snapshot, hit["node"]) if hit is not None else ()
    if not bare:
        return (step,)
    more = f" and {len(bare) - MAX_NAMED} more" if len(bare) > MAX_NAMED else ""
    return (Remedy(_STOPS, ", ".join(bare[:MAX_NAMED]), more), step)
