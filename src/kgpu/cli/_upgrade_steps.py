"""How the upgrade of a node's driver is told before it is done: step by step, with the pods where they are moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgpu.operations.foresight import PlannedStep
    from kgpu.operations.requests import Preview


def is_upgrade(preview: Preview) -> bool:
    """Whether it is an upgrade of a driver."""
    return preview.spec is not None and preview.spec.type == "DriverUpgrade"


def upgrade_lines(preview: Preview, pods: Sequence[str]) -> list[str]:
    """For a terminal; ``pods`` are the lines of pods."""
    lines = [_heading(preview)]
    for number, step in enumerate(preview.steps, 1):
        limit = f" (at most {span(step.seconds)})" if step.seconds else ""
        here = "  <- now" if _is_here(preview, step) else ""
        lines.append(f"  {number}. {step.name:<10} {step.what}{limit}{here}")
        if step.name == "empty":
            lines += [f"   {line}" for line in pods] or ["     no pod has to go"]
    return lines


def _heading(preview: Preview) -> str:
    operation = preview.operation
    over = f": {operation.name} is over, {operation.status.result}" if operation and operation.ended else ""
    driver = preview.spec.driver if preview.spec is not None else None
    if driver is None:
        return f"{preview.node.name}: which driver it is to run is not said{over}"
    wanted = driver.version or driver.image or f"digest {driver.digest}"
    exchanged = f"driver {driver.from_version or 'unknown'} -> {wanted}"
    return f"{preview.node.name}: {exchanged} (DaemonSet {driver.namespace}/{driver.daemon_set}){over}"


def _is_here(preview: Preview, step: PlannedStep) -> bool:
    """Whether the operation is at this step; waiting and emptying are of one phase."""
    from kgpu.formats.crd.nodeoperation import WAITING_FOR_PODS, OperationPhase

    operation = preview.operation
    if operation is None or operation.phase is not step.phase:
        return False
    if step.phase is OperationPhase.DRAINING:
        return (operation.status.reason == WAITING_FOR_PODS) == (step.name == "wait")
    return True


def upgrade_data(preview: Preview) -> dict[str, Any]:
    """For JSON: the driver, where the operation is, and its steps; ``atMostSeconds`` is null for no limit."""
    import msgspec

    operation, spec = preview.operation, preview.spec
    driver = spec.driver if spec is not None else None
    return {
        "type": spec.type if spec is not None else "",
        "operation": operation.name if operation is not None else "",
        "phase": str(operation.phase) if operation is not None else "",
        "driver": msgspec.to_builtins(driver) if driver is not None else None,
        "steps": [
            {
                "name": step.name,
                "phase": str(step.phase),
                "what": step.what,
                "atMostSeconds": step.seconds,
                "now": _is_here(preview, step),
            }
            for step in preview.steps
        ],
    }


def span(seconds: float) -> str:
    """A limit as it is given to commands: 90s, 5m, 1h; one of years as years."""
    years = seconds / (365 * 86400)
    if years >= 2:
        return f"{years:.0f} years"
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
