"""Row DPL-25: a listing of a node's resources that was cut before the GPUs, in the log of a script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.model import LIKELY, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot

_HEAD: Final = re.compile(r"^\s*(?:Capacity|Allocatable|Allocated resources):\s*$")
_ROW: Final = re.compile(r"^\s+(?P<name>[\w./-]+):?\s+\S+|^\s+\(Total limits|^\s+Resource\s+Requests|^\s+-{4,}")
_FIRST: Final = re.compile(r"^\s+(?:cpu|ephemeral-storage|Resource)\b|^\s+\(Total limits")
_LAST: Final = "pods"


@rule("DPL-25", "The listing ends before the GPUs", Place.CLUSTER)
def cut_short(snapshot: Snapshot) -> Iterator[Finding]:
    """grep -A 5 behind kubectl describe node shows five lines: cpu, ephemeral-storage, two sizes of hugepages and
    memory. GPUs are the sixth; of the allocated resources they come later still. Ask for the one number.
    """
    offering = [
        (node, name)
        for node in matching.gpu_nodes(snapshot)
        for name in sorted(node.resources())
        if matching.is_accelerator(name) and node.allocatable(name)
    ]
    if not offering:
        return
    node, name = offering[0]
    for key in snapshot.logs:
        pod = snapshot.pods.get(key)
        for log in snapshot.logs[key]:
            at = _cut(log.lines)
            if at is None or pod is None:
                continue
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} lists the resources of a node and ends before the GPUs: the list is in alphabetical order, "
                    f"and {name} comes after cpu, ephemeral-storage, hugepages and memory"
                ),
                evidence=(log.cite(at), node.cite(f"status.allocatable[{name}]")),
                remedy=(
                    remedies.node_field(node.name, "status.allocatable"),
                    Remedy("kgpu status  # capacity, allocatable, allocated and free of every node"),
                ),
                confidence=LIKELY,
                level=Level.NOTE,
                pods=(pod.path,),
            )
            break


def _cut(lines: Sequence[str]) -> int | None:
    """Where a listing begins that has no line about an accelerator and was cut before its end."""
    for at, line in enumerate(lines):
        if not _HEAD.match(line) or at + 1 >= len(lines) or not _FIRST.match(lines[at + 1]):
            continue
        rows = []
        for row in lines[at + 1 :]:
            if not (hit := _ROW.match(row)):
                break
            rows.append(hit["name"] or "")
        if _LAST not in rows and not any(map(matching.is_accelerator, rows)):
            return at
    return None
