"""What the pod strategy sets: phase, QoS class, the gates' condition, selectors by label keys, the generation."""

from __future__ import annotations

import datetime as dt
from typing import Final

from kgpu.base.quantity import Quantity
from kgpu.lab.embedded.status import Object

_COMPUTE: Final = ("cpu", "memory")


def pod_created(pod: Object) -> None:
    """Set a new pod's status, and complete its selectors from its labels."""
    spec = pod["spec"]
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        pod["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
    _complete_selectors(spec, pod["metadata"].get("labels") or {})


def pod_updated(pod: Object, old: Object, subresource: str) -> None:
    """Raise the generation after a change of the spec; a subresource changes only its part of the spec."""
    if subresource == "ephemeralcontainers":
        added = pod["spec"].get("ephemeralContainers")
        pod["spec"] = {key: value for key, value in old["spec"].items() if key != "ephemeralContainers"}
        if added:
            pod["spec"]["ephemeralContainers"] = added
        return
    if subresource == "resize":
        pod["spec"] = _resized(pod["spec"], old["spec"])
        return
    if pod["spec"] != old["spec"]:
        pod["metadata"]["generation"] = int(old["metadata"].get("generation", 0)) + 1


def _resized(new: Object, old: Object) -> Object:
    resized = dict(old)
    if "resources" in new:
        resized["resources"] = new["resources"]
    for field in ("containers", "initContainers"):
        by_name = {container.get("name"): container for container in new.get(field) or ()}
        if field in old:
            resized[field] = [_resized_container(by_name.get(container["name"]), container) for container in old[field]]
    return resized


def _resized_container(new: Object | None, old: Object) -> Object:
    if new is None:
        return old
    resized = {**old, "resources": new.get("resources", {})}
    if new.get("resizePolicy"):
        resized["resizePolicy"] = new["resizePolicy"]
    return resized


def qos_class(spec: Object) -> str:
    """Guaranteed, Burstable or BestEffort, from CPU and memory alone."""
    resources = spec.get("resources")
    parts = [resources] if resources else [
        container["resources"] for field in ("containers", "initContainers") for container in spec.get(field) or ()
    ]  # fmt: skip
    requested: dict[str, Quantity] = {}
    limited: dict[str, Quantity] = {}
    guaranteed = True
    for part in parts:
        for field, sums in (("requests", requested), ("limits", limited)):
            for name in _COMPUTE:
                amount = Quantity.parse(part.get(field, {}).get(name, "0"))
                if amount.nanos > 0:
                    sums[name] = sums[name] + amount if name in sums else amount
        limits = part.get("limits", {})
        guaranteed = guaranteed and all(Quantity.parse(limits.get(name, "0")).nanos > 0 for name in _COMPUTE)
    if not requested and not limited:
        return "BestEffort"
    if guaranteed and requested == limited:
        return "Guaranteed"
    return "Burstable"


def _complete_selectors(spec: Object, labels: dict[str, str]) -> None:
    """MatchLabelKeys and mismatchLabelKeys become requirements on this pod's own values."""
    affinity = spec.get("affinity") or {}
    for field in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(field) or {}
        for weighted in terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            _complete(weighted.get("podAffinityTerm") or {}, labels)
        for term in terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ():
            _complete(term, labels)
    for constraint in spec.get("topologySpreadConstraints") or ():
        _complete(constraint, labels)


def _complete(term: Object, labels: dict[str, str]) -> None:
    selector = term.get("labelSelector")
    if selector is None:
        return
    for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        for key in term.get(field) or ():
            if key in labels:
                requirement = {"key": key, "operator": operator, "values": [labels[key]]}
                selector.setdefault("matchExpressions", []).append(requirement)
