"""Defaults of the core group's kinds other than pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.defaults.fill import both, fixed, whole_milli


def _service(obj: Object) -> None:
    spec = obj["spec"]
    if not spec.get("sessionAffinity"):
        spec["sessionAffinity"] = "None"
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        client = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
        if client.get("timeoutSeconds") is None:
            spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": 10800}}
    if not spec.get("type"):
        spec["type"] = "ClusterIP"
    for port in spec.get("ports", ()):
        if not port.get("protocol"):
            port["protocol"] = "TCP"
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port", 0)
    kind = spec["type"]
    outside = kind in {"LoadBalancer", "NodePort"} or (kind == "ClusterIP" and spec.get("externalIPs"))
    if outside and not spec.get("externalTrafficPolicy"):
        spec["externalTrafficPolicy"] = "Cluster"
    if kind in {"ClusterIP", "NodePort", "LoadBalancer"}:
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
        for entry in obj.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
            if entry.get("ip"):
                entry.setdefault("ipMode", "VIP")


def _namespace(obj: Object) -> None:
    name = obj["metadata"].get("name")
    if name:
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


def _node_status(status: Object) -> None:
    if not status.get("allocatable") and status.get("capacity"):
        status["allocatable"] = dict(status["capacity"])


def _limit_item(item: Object) -> None:
    if item.get("type") != "Container":
        return
    default = dict(item.get("default") or {})
    for name, amount in (item.get("max") or {}).items():
        default.setdefault(name, amount)
    request = dict(item.get("defaultRequest") or {})
    for source in (default, item.get("min") or {}):
        for name, amount in source.items():
            request.setdefault(name, amount)
    for field, amounts in (("default", default), ("defaultRequest", request)):
        if amounts:
            item[field] = amounts


def _replication_controller(obj: Object) -> None:
    spec = obj["spec"]
    labels = (spec.get("template") or {}).get("metadata", {}).get("labels")
    if labels:
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)


DEFAULTS: Final[dict[str, Callable[[Object], None]]] = {
    "core.v1.Service": _service,
    "core.v1.Namespace": _namespace,
    "core.v1.NamespaceStatus": fixed(phase="Active"),
    "core.v1.NodeStatus": both(whole_milli("capacity", "allocatable"), _node_status),
    "core.v1.LimitRangeItem": both(
        _limit_item, whole_milli("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
    ),
    "core.v1.ResourceQuotaSpec": whole_milli("hard"),
    "core.v1.ResourceQuotaStatus": whole_milli("hard", "used"),
    "core.v1.PersistentVolumeSpec": both(
        fixed(persistentVolumeReclaimPolicy="Retain", volumeMode="Filesystem"), whole_milli("capacity")
    ),
    "core.v1.PersistentVolumeStatus": fixed(phase="Pending"),
    "core.v1.PersistentVolumeClaimSpec": fixed(volumeMode="Filesystem"),
    "core.v1.PersistentVolumeClaimStatus": both(fixed(phase="Pending"), whole_milli("capacity", "allocatedResources")),
    "core.v1.Secret": fixed(type="Opaque"),
    "core.v1.EndpointPort": fixed(protocol="TCP"),
    "core.v1.ReplicationController": _replication_controller,
}
