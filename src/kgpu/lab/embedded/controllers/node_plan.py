"""A node's health as the node lifecycle controller sees it: conditions of a silent kubelet, and the taints. Pure."""

from __future__ import annotations

import datetime as dt
from typing import Final

from kgpu.kube.port import Object
from kgpu.lab.embedded.controllers.meta import condition, created_at, spec_of, stamp, status_of
from kgpu.lab.embedded.controllers.taints import (
    DISK_PRESSURE,
    MEMORY_PRESSURE,
    NETWORK_UNAVAILABLE,
    NOT_READY,
    PID_PRESSURE,
    UNREACHABLE,
    UNSCHEDULABLE,
    taints_of,
)

GRACE: Final = 50.0  # seconds without a word from a kubelet (kube-controller-manager 1.35's default)
STARTUP_GRACE: Final = 60.0  # seconds for a node that never had a Ready condition
_WATCHED: Final = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
# Condition type and status -> taint.
_TAINTS: Final = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): MEMORY_PRESSURE,
    ("DiskPressure", "True"): DISK_PRESSURE,
    ("NetworkUnavailable", "True"): NETWORK_UNAVAILABLE,
    ("PIDPressure", "True"): PID_PRESSURE,
}
_OWN_NO_SCHEDULE: Final = frozenset({UNSCHEDULABLE, *_TAINTS.values()})
_NO_EXECUTE: Final = {"False": NOT_READY, "Unknown": UNREACHABLE}


def ready_status(node: Object) -> str:
    """``True``, ``False``, ``Unknown``, or "" when the node never said."""
    ready = condition(node, "Ready")
    return str(ready.get("status")) if ready is not None else ""


def silent_conditions(node: Object, now: dt.datetime) -> list[Object] | None:
    """The conditions of a node whose kubelet is silent; None when they are so already."""
    old = list(status_of(node).get("conditions") or ())
    conditions: list[Object] = []
    for entry in old:
        if entry.get("type") in _WATCHED and entry.get("status") != "Unknown":
            entry = {  # noqa: PLW2901 - what is kept of it
                **entry,
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": stamp(now),
            }
        conditions.append(entry)
    known = {entry.get("type") for entry in old}
    conditions += [
        {
            "type": kind,
            "status": "Unknown",
            "reason": "NodeStatusNeverUpdated",
            "message": "Kubelet never posted node status.",
            "lastHeartbeatTime": created_at(node),
            "lastTransitionTime": stamp(now),
        }
        for kind in _WATCHED
        if kind not in known
    ]
    return None if conditions == old else conditions


def wanted_taints(node: Object, *, evict: bool) -> list[tuple[str, str]]:
    """Key and effect of the taints that the node should have of the controller's own. ``evict``: NoExecute too."""
    wanted = [
        (_TAINTS[pair], "NoSchedule")
        for entry in status_of(node).get("conditions") or ()
        if (pair := (str(entry.get("type")), str(entry.get("status")))) in _TAINTS
    ]
    if spec_of(node).get("unschedulable"):
        wanted.append((UNSCHEDULABLE, "NoSchedule"))
    status = ready_status(node)
    if evict and status in _NO_EXECUTE:
        wanted.append((_NO_EXECUTE[status], "NoExecute"))
    return wanted


def _is_own(taint: Object) -> bool:
    key, effect = taint.get("key"), taint.get("effect")
    if effect == "NoSchedule":
        return key in _OWN_NO_SCHEDULE
    return effect == "NoExecute" and key in (NOT_READY, UNREACHABLE)


def new_taints(node: Object, now: dt.datetime, *, evict: bool) -> list[Object] | None:
    """All taints of the node with the controller's own as they should be; None when nothing changes."""
    old = taints_of(node)
    wanted = wanted_taints(node, evict=evict)
    kept = [taint for taint in old if not _is_own(taint) or (taint.get("key"), taint.get("effect")) in wanted]
    have = {(taint.get("key"), taint.get("effect")) for taint in kept}
    added = [
        {"key": key, "effect": effect, "timeAdded": stamp(now)} for key, effect in wanted if (key, effect) not in have
    ]
    return [*kept, *added] if added or len(kept) != len(old) else None
