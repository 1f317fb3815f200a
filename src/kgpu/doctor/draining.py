"""Remedies that empty a node, made to work on the node as it is: with the pods that nobody would make again.

``kubectl drain`` refuses a node with a pod that has no controller. With ``--force`` it goes on, and ends that pod for
good: so it is given only where there is such a pod, and every one is named. What is to be done after it goes into a
comment, so that the line can be pasted.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from kgpu.doctor.model import Finding
from kgpu.doctor.snapshot import Snapshot

MAX_NAMED: Final = 8
_MIRROR: Final = "kubernetes.io/config.mirror"
_DRAIN: Final = re.compile(r"(?P<command>kubectl drain (?P<node>\S+)(?: --[a-z-]+)+)(?:, (?P<then>then .*))?$")


def with_bare_pods(finding: Finding, snapshot: Snapshot) -> Finding:
    """The finding with every drain in its remedy as it works; the same one where there is none."""
    steps = tuple(_DRAIN.sub(lambda hit: _whole(hit, snapshot), step) for step in finding.remedy)
    return finding if steps == finding.remedy else replace(finding, remedy=steps)


def bare_pods(snapshot: Snapshot, node: str) -> tuple[str, ...]:
    """``namespace/name`` of the pods on a node that nobody makes again; not those of files on the node itself."""
    return tuple(
        pod.path
        for pod in snapshot.pods_by_node.get(node, ())
        if not pod.ended and not pod.deleting and not pod.owner and _MIRROR not in pod.annotations
    )


def _whole(hit: re.Match[str], snapshot: Snapshot) -> str:
    bare = bare_pods(snapshot, hit["node"])
    notes = [hit["then"]] if hit["then"] else []
    if bare:
        more = f" and {len(bare) - MAX_NAMED} more" if len(bare) > MAX_NAMED else ""
        notes.append(f"--force ends for good, for nobody makes them again: {', '.join(bare[:MAX_NAMED])}{more}")
    force = " --force" if bare and "--force" not in hit["command"] else ""
    return hit["command"] + force + (f"  # {'; '.join(notes)}" if notes else "")
