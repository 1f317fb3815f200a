"""Remedies that empty a node, told as they are on that node: with the pods that nobody would make again.

``kubectl drain`` refuses a node with a pod that has no controller, rightly: to end it is for its owner to decide. So it
is never forced; those pods are named. What is to be done after the drain stands on a line of its own.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor.model import Finding
from kgpu.doctor.snapshot import Snapshot

MAX_NAMED: Final = 8
_STOPS: Final = "the drain stops at pods that nobody would make again; agree with their owners and end them first: {}{}"
_MIRROR: Final = "kubernetes.io/config.mirror"
_DRAIN: Final = re.compile(r"(?P<command>kubectl drain (?P<node>\S+)(?: --[a-z-]+)+)(?:, (?P<then>then .*))?$")


def with_bare_pods(finding: Finding, snapshot: Snapshot) -> Finding:
    """The finding with every drain in its remedy as it works; the same one where there is none."""
    steps = tuple(line for step in finding.remedy for line in _lines(step, snapshot))
    return finding if steps == finding.remedy else replace(finding, remedy=steps)


def bare_pods(snapshot: Snapshot, node: str) -> tuple[str, ...]:
    """``namespace/name`` of the pods on a node that nobody makes again; not those of files on the node itself."""
    return tuple(
        pod.path
        for pod in snapshot.pods_by_node.get(node, ())
        if not pod.ended and not pod.deleting and not pod.owner and _MIRROR not in pod.annotations
    )


def _lines(step: Remedy, snapshot: Snapshot) -> tuple[Remedy, ...]:
    """A step as it can be pasted: what stops the drain above it, what is to be done then below."""
    hit = _DRAIN.search(step)
    if hit is None:
        return (step,)
    bare = bare_pods(snapshot, hit["node"])
    more = f" and {len(bare) - MAX_NAMED} more" if len(bare) > MAX_NAMED else ""
    stops = (Remedy(_STOPS, ", ".join(bare[:MAX_NAMED]), more),) if bare else ()
    return (*stops, Remedy.again(step[: hit.end("command")]), *((Remedy.again(hit["then"]),) if hit["then"] else ()))
