"""Which node a Pod is on or meant for, and which controller has made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kgpu.base.plain import items, mapping, text

DAEMON_SET: Final = "DaemonSet"


def node_of(pod: Mapping[str, Any]) -> tuple[str, bool]:
    """The node of a Pod, and whether it is there: before a DaemonSet's pod is scheduled its affinity names the node.
    "" for a pod that may come anywhere.
    """
    spec = mapping(pod.get("spec"))
    placed = text(spec.get("nodeName"))
    return placed or _pinned_to(spec), bool(placed)


def _pinned_to(spec: Mapping[str, Any]) -> str:
    node_affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = mapping(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    for term in map(mapping, items(required.get("nodeSelectorTerms"))):
        for field in map(mapping, items(term.get("matchFields"))):
            if field.get("key") == "metadata.name":
                return next((text(value) for value in items(field.get("values"))), "")
    return ""


def controller_reference(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a Pod says of its controller, {} without one."""
    rows = map(mapping, items(mapping(pod.get("metadata")).get("ownerReferences")))
    return next((row for row in rows if row.get("controller")), {})


def controller_of(pod: Mapping[str, Any]) -> str:
    """The controller of a Pod: the name of a DaemonSet, ``kind/name`` of another kind, "" without one."""
    owner = controller_reference(pod)
    kind, name = text(owner.get("kind")), text(owner.get("name"))
    return name if kind == DAEMON_SET or not owner else f"{kind}/{name}"
