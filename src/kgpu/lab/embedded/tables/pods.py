"""A pod's row: readiness, status with its reason, restarts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.tables.text import NONE, condition_is_true, since, value_at

CONDITIONS: Final = {
    "Succeeded": [{"type": "Completed", "status": "True", "reason": "Succeeded",
                   "message": "The pod has completed successfully."}],
    "Failed": [{"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."}],
}  # fmt: skip


class _Restarts:
    """The number of restarts and the time of the last one."""

    def __init__(self) -> None:
        self.number = 0
        self.last = ""

    def add(self, status: Mapping[str, Any]) -> None:
        self.number += status.get("restartCount", 0)
        self.last = max(self.last, value_at(status, "lastState.terminated.finishedAt", ""))

    def text(self, now: datetime) -> str:
        return f"{self.number} ({since(self.last, now)} ago)" if self.number and self.last else str(self.number)


def _ended(terminated: Mapping[str, Any]) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def cells(pod: Object, now: datetime) -> list[Any]:
    """All columns of a pod."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    conditions = status.get("conditions") or ()
    restarts, sidecar_restarts = _Restarts(), _Restarts()
    phase = status.get("phase", "")
    reason = status.get("reason") or phase
    if any(
        condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated"
        for condition in conditions
    ):
        reason = "SchedulingGated"
    sidecars = {
        container["name"]
        for container in spec.get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    }
    total = len(spec.get("containers") or ()) + len(sidecars)
    ready = 0
    held = ""
    for index, init_status in enumerate(status.get("initContainerStatuses") or ()):
        restarts.add(init_status)
        sidecar = init_status.get("name") in sidecars
        if sidecar:
            sidecar_restarts.add(init_status)
        terminated, waiting = (
            value_at(init_status, "state.terminated"),
            value_at(init_status, "state.waiting.reason", ""),
        )
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if sidecar and init_status.get("started"):
            ready += bool(init_status.get("ready"))
            continue
        if terminated is not None:
            held = f"Init:{_ended(terminated)}"
        elif waiting and waiting != "PodInitializing":
            held = f"Init:{waiting}"
        else:
            held = f"Init:{index}/{len(spec.get('initContainers') or ())}"
        break
    reason = held or reason
    if not held or condition_is_true(conditions, "Initialized"):
        restarts = sidecar_restarts
        reason, running = _main_containers(status, reason, restarts)
        ready += running
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif phase not in ("Succeeded", "Failed"):
            reason = "Terminating"
    meta = pod["metadata"]
    return [
        meta.get("name", ""), f"{ready}/{total}", reason, restarts.text(now), since(meta.get("creationTimestamp"), now),
        _address(status), spec.get("nodeName") or NONE, status.get("nominatedNodeName") or NONE, _gates(spec, status),
    ]  # fmt: skip


def _main_containers(status: Object, reason: str, restarts: _Restarts) -> tuple[str, int]:
    """The status by the main containers, of which the first one counts most, and how many of them are ready."""
    failed = ""
    running = 0
    for container_status in reversed(status.get("containerStatuses") or ()):
        restarts.add(container_status)
        state = container_status.get("state") or {}
        waiting, terminated = value_at(state, "waiting.reason", ""), state.get("terminated")
        if waiting:
            reason = waiting
        elif terminated is not None:
            reason = _ended(terminated)
            failed = reason if terminated.get("exitCode", 0) else failed
        elif container_status.get("ready") and state.get("running") is not None:
            running += 1
    if reason == "Completed":
        if running and condition_is_true(status.get("conditions") or (), "Ready"):
            reason = "Running"
        elif failed:
            reason = failed
        elif running:
            reason = "NotReady"
    return reason, running


def _address(status: Object) -> str:
    addresses = status.get("podIPs") or ()
    return str(addresses[0].get("ip") or NONE) if addresses else NONE


def _gates(spec: Object, status: Object) -> str:
    gates = spec.get("readinessGates") or ()
    if not gates:
        return NONE
    conditions = status.get("conditions") or ()
    return f"{sum(condition_is_true(conditions, gate['conditionType']) for gate in gates)}/{len(gates)}"
