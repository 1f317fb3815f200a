"""What kgpu's acts on nodes have made old: what was read of a GPU before its reset, and of a node before its reboot.

A node tells its own facts once an hour and after changes; an act's record is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kgpu.doctor.host_facts import HostFacts, Xid
from kgpu.doctor.node_operations import KnownOperation, operations
from kgpu.doctor.objects import seconds
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats.crd.nodeoperation import OperationType

_DONE: Final = "ActDone"
_WHOLE_NODE: Final = ""


def is_outdated(snapshot: Snapshot, host: HostFacts, uuid: str = _WHOLE_NODE) -> bool:
    """Whether facts of a node, or of one of its GPUs, are from before an act that has changed them since."""
    taken, done = seconds(host.taken), snapshot.once(_acts)
    if taken is None:
        return False
    return any(taken < done.get((host.node, place), taken) for place in {uuid, _WHOLE_NODE})


def is_xid_outdated(snapshot: Snapshot, host: HostFacts, xid: Xid) -> bool:
    """The same of a number in the kernel's log, by the GPU that it names."""
    named = (gpu.uuid for gpu in host.gpus or () if xid.pci and gpu.pci.startswith(xid.pci))
    return is_outdated(snapshot, host, next(named, _WHOLE_NODE))


def _acts(snapshot: Snapshot) -> Mapping[tuple[str, str], float]:
    """When the last act was done, by node and GPU; of a reboot by its node alone. In seconds since 1970."""
    done: dict[tuple[str, str], float] = {}
    for record in operations(snapshot):
        at = _done_at(record)
        node = snapshot.nodes.get(record.node)
        if at is None or (node is not None and record.status.node_uid not in {"", node.uid}):
            continue
        for place in record.spec.gpus or (_WHOLE_NODE,):
            done[record.node, place] = max(at, done.get((record.node, place), at))
    return done


def _done_at(record: KnownOperation) -> float | None:
    """When the act of an operation was done; None where there was none, or nobody knows what came of it."""
    if OperationType(record.spec.type) is OperationType.MAINTENANCE:
        return None
    rows = (row for row in record.status.conditions if row.type == _DONE and row.status == "True")
    return next((seconds(row.last_transition_time or "") for row in rows), None)
