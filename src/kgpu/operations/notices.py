"""What people are told about an operation: one advice per change that matters, as a log line and an Event."""

from __future__ import annotations

from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats.crd.nodeoperation import NodeOperationStatus, OperationPhase, Result
from kgpu.notifications.payload import PLAIN, EventDetails
from kgpu.operations.forcing import FORCING
from kgpu.operations.model import Operation
from kgpu.operations.world import UNAPPROVED

_FAILED: Final = frozenset({Result.TRANSIENT_FAILURE, Result.PERMANENT_FAILURE})
_KINDS: Final = {
    OperationPhase.PENDING: "unapproved",
    OperationPhase.CORDONING: "started",
    OperationPhase.DRAINING: "forcing",
    OperationPhase.ACTING: "acting",
    OperationPhase.VERIFYING: "verifying",
    OperationPhase.RESTORING: "restoring",
    OperationPhase.COMPLETE: "ended",
    OperationPhase.FAILED: "failed",
}
_OF_REPAIRS: Final = {"RemediationStopped": "stopped", "RepairGivenUp": "givenup"}


def notice(operation: Operation, status: NodeOperationStatus) -> Advice | None:
    """What to tell about an operation that gets this status; None if nothing that matters has changed."""
    if (operation.status.phase, operation.status.reason) == (status.phase, status.reason):
        return None
    phase = OperationPhase(status.phase)
    name = f"{operation.spec.type} {operation.name}"
    if phase is OperationPhase.PENDING and status.reason == UNAPPROVED:
        return _unapproved(operation, name)
    if phase is OperationPhase.CORDONING:
        return _advice(operation, "OperationStarted", f"{name} has begun{_because(operation)}")
    if phase is OperationPhase.DRAINING and status.reason == FORCING:
        return _advice(operation, "OperationForced", f"{name}: {status.message}", Severity.WARNING)
    if phase in {OperationPhase.ACTING, OperationPhase.VERIFYING}:
        return _advice(operation, status.reason, f"{name}: {status.message}")
    if phase is OperationPhase.RESTORING:
        severity = Severity.INFO if Result(status.result) is Result.SUCCEEDED else Severity.WARNING
        return _advice(operation, status.reason, f"{name}: {status.message}", severity)
    if operation.begun and phase in {OperationPhase.COMPLETE, OperationPhase.FAILED}:
        return _advice(operation, f"Operation{status.result}", f"{name} is over, and the node is as it was before")
    if phase in {OperationPhase.COMPLETE, OperationPhase.FAILED}:
        severity = Severity.WARNING if Result(status.result) in _FAILED else Severity.INFO
        return _advice(operation, status.reason, f"{name}: {status.message}", severity)
    return None


def details(operation: Operation, status: NodeOperationStatus) -> EventDetails:
    """What a program may want to know of the same change."""
    phase = OperationPhase(status.phase)
    identity = (operation.uid, status.phase, status.reason, status.result, status.phase_since or "")
    return EventDetails(
        kind=f"operation.{_KINDS.get(phase, phase.lower())}", identity=identity,
        data={
            "operation": operation.name, "type": str(operation.type), "phase": str(phase), "result": status.result,
            "node": operation.node,
        },
    )  # fmt: skip


def details_of_repairs(advice: Advice) -> EventDetails:
    """The same for what is told about repairs in general."""
    kind = _OF_REPAIRS.get(advice.reason)
    return PLAIN if kind is None else EventDetails(kind=f"operation.{kind}", data={"node": advice.subject})


def _unapproved(operation: Operation, name: str) -> Advice:
    reason, remedy = operation.spec.reason, f"kgpu operations approve {operation.name}"
    what = f"{name} waits for approval" + (f": {reason}" if reason else "")
    return Advice(
        subject=operation.node, what=what, remedy=remedy, reason=UNAPPROVED, severity=Severity.WARNING
    ).printable()


def _because(operation: Operation) -> str:
    spec = operation.spec
    by = f" for {spec.requested_by}" if spec.requested_by else ""
    return f"{by}: {spec.reason}" if spec.reason else by


def _advice(operation: Operation, reason: str, what: str, severity: Severity = Severity.INFO) -> Advice:
    return Advice(subject=operation.node, what=what, reason=reason, severity=severity).printable()
