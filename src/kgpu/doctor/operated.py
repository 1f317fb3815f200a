"""Remedies at nodes on which one of kgpu's operations is at work: nobody is told to do by hand what the operation does.

A cordon, a drain, a reset or an uncordon beside it would end it halfway or do its work twice. What stays is what shows
how things are, and the operation stands in place of the rest. While a person works on an empty node, resets and
reboots are that person's work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kgpu.base.remedy import Remedy, is_command
from kgpu.doctor import remedies
from kgpu.doctor.model import Finding
from kgpu.doctor.node_operations import KnownOperation, at_work
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.steps import shows, without

_EMPTIES: Final = re.compile(r"\bkubectl (?:cordon|drain|uncordon) (?P<node>[^\s;&|]+)")
_RESETS: Final = re.compile(
    r"\b(?:nvidia-smi (?:\S+ )*(?:-r|--gpu-reset)|amd-smi reset|systemctl reboot"
    r"|kgpu node (?:reboot|reset-gpu|maintain|drain-gpu))\b"
)
_SAYS_SO: Final = re.compile(r"\b(?:cordon|uncordon|drain|reset|reboot|restart the virtual machine)", re.IGNORECASE)


def left_to_operations(finding: Finding, snapshot: Snapshot) -> Finding:
    """The finding without steps that an operation at its node takes; the same one where there are none."""
    by_node = snapshot.once(_by_node)
    taken = {step: record for step in finding.remedy if (record := _taken(step, finding, by_node)) is not None}
    if not taken:
        return finding
    records = {record.name: record for record in taken.values()}
    first = tuple(_instead(record, snapshot) for record in records.values())
    return replace(finding, remedy=(*first, *without(finding.remedy, lambda step: step in taken)))


def _by_node(snapshot: Snapshot) -> dict[str, KnownOperation]:
    return {record.node: record for record in at_work(snapshot)}


def _instead(record: KnownOperation, snapshot: Snapshot) -> Remedy:
    """What there is to do about it: to wait, unless it is a person's turn or it is late."""
    if record.in_maintenance:
        return remedies.resume_operation(record.name).why(f"{record.place} is held for a person; when the work is done")
    if record.waits_for_machine:
        return remedies.show_operation(record.name).why(f"{record.place} is held until its machine is replaced")
    if record.late(snapshot):
        return remedies.show_operation(record.name).why(
            f"an operation at {record.place} should be over; see why it stays"
        )
    return remedies.show_operation(record.name).why(f"wait: an operation is at work on {record.place}; how far it is")


def _taken(step: str, finding: Finding, by_node: Mapping[str, KnownOperation]) -> KnownOperation | None:
    """The operation that a step would get in the way of, None where there is none."""
    for hit in _EMPTIES.finditer(step):
        if (record := by_node.get(hit["node"])) is not None:
            return record
    about = by_node.get(_node_of(finding))
    if about is None or about.waits_for_person or shows(step):
        return None
    by_hand = _RESETS if is_command(step) else _SAYS_SO
    return about if by_hand.search(step) else None


def _node_of(finding: Finding) -> str:
    """The one node that a finding is about, "" for none."""
    if finding.subject.kind == "Node":
        return finding.subject.name
    return finding.nodes[0] if len(finding.nodes) == 1 else ""
