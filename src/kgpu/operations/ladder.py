"""Chooses the mildest repair that has not failed: reset, then reboot, then replacement. Pure.

Each rung follows only from the one below it. A reset that did not help leads to a reboot. Reboots that did not help,
either since the node did not come back in time or since the verdict has returned after as many as the policy allows in
a day, lead to replacement. What was not tried, for example because pods stayed, proves nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kgpu.formats.crd.nodeoperation import MAX_GPUS, OperationType, Result
from kgpu.formats.gpu_report import ReportedGpu
from kgpu.formats.xid.action import Action
from kgpu.operations.config import Strongest
from kgpu.operations.model import Operation, TargetNode, moment_of

DAY: Final = 86400.0
ALLOWED: Final[Mapping[Strongest, frozenset[OperationType]]] = {
    Strongest.RESET: frozenset({OperationType.GPU_RESET}),
    Strongest.REBOOT: frozenset({OperationType.GPU_RESET, OperationType.REBOOT}),
    Strongest.REPLACE: frozenset({OperationType.GPU_RESET, OperationType.REBOOT, OperationType.REPLACE}),
}
"""What may begin without a person."""
FAILURES: Final = frozenset({Result.TRANSIENT_FAILURE, Result.PERMANENT_FAILURE})
_PODS_STAYED: Final = frozenset({"DrainRefused", "DrainTimeout", "EvictionRefused"})
"""Why a reset was not tried. A reboot would meet the same pods, and more."""
_NOT_TRIED: Final = frozenset({"RebootRefused"})
_MAX_NODE: Final = 200


def rung(
    node: TargetNode, gpus: Sequence[ReportedGpu], operations: Iterable[Operation], attempts: int, now: float
) -> OperationType:
    """The type of repair for the GPUs of a node, given the operations on it. ``attempts`` is the number of reboots of a
    node that are allowed in a day.
    """
    operations = tuple(operations)
    uuids = frozenset(gpu.uuid for gpu in gpus)
    resets = all(gpu.action is Action.RESET_GPU and gpu.uuid for gpu in gpus) and len(gpus) <= MAX_GPUS
    if resets and not any(_calls_for_more(operation, node, uuids) for operation in operations):
        return OperationType.GPU_RESET
    return OperationType.REPLACE if _rebooted_in_vain(node, operations, attempts, now) else OperationType.REBOOT


def _calls_for_more(operation: Operation, node: TargetNode, uuids: frozenset[str]) -> bool:
    """Whether a reset of one of these GPUs has been tried in this boot, and did not help."""
    status, act = operation.status, operation.status.act
    if operation.type is not OperationType.GPU_RESET or not operation.ended or act is None:
        return False
    if act.boot_id != node.boot_id or not uuids & set(operation.spec.gpus):
        return False
    result = Result(status.result)
    return result is Result.SUCCEEDED or (result in FAILURES and status.reason not in _PODS_STAYED)


def _rebooted_in_vain(node: TargetNode, operations: Sequence[Operation], attempts: int, now: float) -> bool:
    tried = [row for row in operations if _was_rebooted(row, node.uid)]
    if any(row.name == name_of(OperationType.REPLACE, node) for row in operations):
        return True  # what a boot has climbed to, it stays at
    if any(row.name == name_of(OperationType.REBOOT, node) for row in tried):
        return True  # the boot has not ended, and no other reboot of it is made
    return any(now - end_of(row) < DAY for row in tried) and reboots(node.uid, operations, now) >= attempts


def _was_rebooted(operation: Operation, uid: str) -> bool:
    """Whether remediation has tried a reboot of this node."""
    status = operation.status
    if operation.type is not OperationType.REBOOT or not (operation.ended and operation.automatic):
        return False
    result = Result(status.result)
    failed = result in FAILURES and status.act is not None and status.reason not in _NOT_TRIED
    return _is_of(operation, uid) and (result is Result.SUCCEEDED or failed)


def reboots(uid: str, operations: Iterable[Operation], now: float) -> int:
    """How often the node with this uid was to be rebooted for its verdicts within a day."""
    rows = (row for row in operations if row.type is OperationType.REBOOT and row.automatic and _is_of(row, uid))
    return sum(1 for row in rows if row.ended and now - end_of(row) < DAY)


def _is_of(operation: Operation, uid: str) -> bool:
    """Whether the operation was on this node, and not on an earlier one of its name."""
    return (operation.status.node_uid or operation.spec.node_uid or uid) == uid


def end_of(operation: Operation) -> float:
    """When an operation ended, in seconds since 1970."""
    return moment_of(operation.status.completed_at) or operation.created


def name_of(kind: OperationType, node: TargetNode, gpus: Sequence[str] = ()) -> str:
    """The name of a repair in the node's boot, or of a reset of these GPUs: made once, even if a person ends it."""
    of_kind = ("replace",) if kind is OperationType.REPLACE else ()
    of_gpus = sorted(gpus) if kind is OperationType.GPU_RESET else ()
    key = hashlib.sha256("/".join((node.uid, node.boot_id, *of_kind, *of_gpus)).encode()).hexdigest()[:10]
    return f"{_WORDS[kind]}-{node.name[:_MAX_NODE]}-{key}"


_WORDS: Final = {
    OperationType.GPU_RESET: "reset", OperationType.REBOOT: "reboot", OperationType.REPLACE: "replace",
}  # fmt: skip
