"""A pod's row: readiness, what it is doing and why, restarts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.tables.text import NONE, condition, look, since

CONDITIONS: Final = {
    "Succeeded": [{"type": "Completed", "status": "True", "reason": "Succeeded",
                   "message": "The pod has completed successfully."}],
    "Failed": [{"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."}],
}  # fmt: skip


class _Restarts:
    """How often, and when last."""

    def __init__(self) -> None:
        self.number = 0
        self.last = ""

    def add(self, status: Mapping[str, Any]) -> None:
        self.number += status.get("restartCount", 0)
        self.last = max(self.last, look(status, "lastState.terminated.finishedAt", ""))

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
    if any(one.get("type") == "PodScheduled" and one.get("reason") == "SchedulingGated" for one in conditions):
        reason = "SchedulingGated"
    sidecars = {one["name"] for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"}
    total = len(spec.get("containers") or ()) + len(sidecars)
    ready = 0
    held = ""
    for index, one in enumerate(status.get("initContainerStatuses") or ()):
        restarts.add(one)
        sidecar = one.get("name") in sidecars
        if sidecar:
            sidecar_restarts.add(one)
        terminated, waiting = look(one, "state.terminated"), look(one, "state.waiting.reason", "")
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if sidecar and one.get("started"):
            ready += bool(one.get("ready"))
            continue
        if terminated is not None:
            held = f"Init:{_ended(terminated)}"
        elif waiting and waiting != "PodInitializing":
            held = f"Init:{waiting}"
        else:
            held = f"Init:{index}/{len(spec.get('initContainers') or ())}"
        break
    reason = held or reason
    if not held or condition(conditions, "Initialized"):
        restarts = sidecar_restarts
        reason, running = _doing(status, reason, restarts)
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


def _doing(status: Object, reason: str, restarts: _Restarts) -> tuple[str, int]:
    """The reason by the main containers, the first one having the last word, and how many of them are ready."""
    failed = ""
    running = 0
    for one in reversed(status.get("containerStatuses") or ()):
        restarts.add(one)
        state = one.get("state") or {}
        waiting, terminated = look(state, "waiting.reason", ""), state.get("terminated")
        if waiting:
            reason = waiting
        elif terminated is not None:
            reason = _ended(terminated)
            failed = reason if terminated.get("exitCode", 0) else failed
        elif one.get("ready") and state.get("running") is not None:
            running += 1
    if reason == "Completed":
        if running and condition(status.get("conditions") or (), "Ready"):
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
    return f"{sum(condition(conditions, gate['conditionType']) for gate in gates)}/{len(gates)}"
