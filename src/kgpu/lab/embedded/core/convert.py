"""The versions of one object: which of them is stored, and conversion to the others.

Events are one store under two groups, and autoscalers have two versions. CRDs convert with strategy None: only the
apiVersion changes.
"""

from __future__ import annotations

from typing import Any, Final

from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.status import Object

_EVENTS: Final = ("", "events")
_NEW_EVENTS: Final = ("events.k8s.io", "events")
_AUTOSCALERS: Final = ("autoscaling", "horizontalpodautoscalers")
# core/v1 name -> events.k8s.io/v1 name (the conversion of pkg/apis/events/v1).
_RENAMED: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_RENAMED_BACK: Final = {new: old for old, new in _RENAMED.items()}


def storage_key(kind: ApiKind) -> tuple[str, str]:
    """The key of the store's table with objects of the kind."""
    return _EVENTS if kind.key == _NEW_EVENTS else kind.key


def storage_kind(kinds: Kinds, kind: ApiKind) -> ApiKind:
    """The kind whose version is stored."""
    if kind.key == _NEW_EVENTS:
        return kinds.find("", "v1", "events") or kind
    if kind.key == _AUTOSCALERS:
        return kinds.find("autoscaling", "v2", kind.plural) or kind
    return kind


def converted(obj: Object, kind: ApiKind) -> Object:
    """``obj`` in the version of ``kind``; shares parts with ``obj``."""
    shown = {**obj, "apiVersion": kind.api_version, "kind": kind.kind}
    if kind.key == _NEW_EVENTS:
        return _renamed(shown, _RENAMED)
    if kind.key == _EVENTS:
        return _renamed(shown, _RENAMED_BACK)
    if kind.key == _AUTOSCALERS:
        shown["spec"] = _autoscaler(dict(obj.get("spec") or {}), kind.version)
    return shown


def _renamed(obj: Object, names: dict[str, str]) -> Object:
    return {names.get(name, name): value for name, value in obj.items()}


def _autoscaler(spec: Object, version: str) -> Object:
    if version == "v2":
        percentage = spec.pop("targetCPUUtilizationPercentage", None)
        if percentage is not None:
            target = {"type": "Utilization", "averageUtilization": percentage}
            spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
        return spec
    metrics: list[Any] = spec.pop("metrics", None) or []
    spec.pop("behavior", None)
    for metric in metrics:
        resource = metric.get("resource") or {}
        if resource.get("name") == "cpu" and "averageUtilization" in (resource.get("target") or {}):
            spec["targetCPUUtilizationPercentage"] = resource["target"]["averageUtilization"]
    return spec
