"""What somebody with an agent's token tries on Nodes and their features: what the chart's policies refuse, and grant."""

from __future__ import annotations

from typing import Any, Final

from kgpu.base.advice import Advice, Severity
from kgpu.kube.events import NodeEvents
from kgpu.kube.fake import FakeApi

Object = dict[str, Any]
OTHER: Final = "another-node"
OWN_LABEL: Final = {"metadata": {"labels": {"nvidia.com/gpu.count": "3"}}}
# What is tried -> whether on the Node's status, the change, a word of the refusal.
REFUSED: Final[dict[str, tuple[bool, Object, str]]] = {
    "a taint": (False, {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, "spec"),
    "unschedulable": (False, {"spec": {"unschedulable": True}}, "spec"),
    "a finalizer": (False, {"metadata": {"finalizers": ["a.b/c"]}}, "finalizers"),
    "an owner": (
        False,
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]}},
        "owners",
    ),
    "a foreign label": (False, {"metadata": {"labels": {"team": "x"}}}, "labels"),
    "a foreign label less": (False, {"metadata": {"labels": {"kubernetes.io/hostname": None}}}, "labels"),
    "what the operator says": (False, {"metadata": {"labels": {"nvidia.com/gpu.deploy.driver": "x"}}}, "labels"),
    "where agents are": (False, {"metadata": {"labels": {"kgpu.dev/agent": "leaving"}}}, "labels"),
    "how its GPUs are handed out": (False, {"metadata": {"labels": {"kgpu.dev/allocation": "dra"}}}, "labels"),
    "a cordon of kgpu's": (False, {"metadata": {"annotations": {"kgpu.dev/cordon": "1"}}}, "annotations"),
    "an order of the operator's": (False, {"metadata": {"annotations": {"kgpu.dev/operation": "1"}}}, "annotations"),
    "the operator's word on its slices": (
        False,
        {"metadata": {"annotations": {"kgpu.dev/mig-operation": "{}"}}},
        "annotations",
    ),
    "which config the policy wants": (
        False,
        {"metadata": {"annotations": {"kgpu.dev/mig-default": "all-disabled"}}},
        "annotations",
    ),
    "a foreign annotation": (False, {"metadata": {"annotations": {"x": "y"}}}, "annotations"),
    "allocatable": (True, {"status": {"allocatable": {"nvidia.com/gpu": "99"}}}, "condition"),
    "capacity": (True, {"status": {"capacity": {"nvidia.com/gpu": "99"}}}, "condition"),
    "a foreign condition": (True, {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "condition"),
    "a label by the status": (True, {"metadata": {"labels": {"team": "x"}}}, "labels"),
}
GRANTED: Final[dict[str, tuple[bool, Object]]] = {
    "labels of the GPUs": (False, OWN_LABEL),
    "labels of features": (False, {"metadata": {"labels": {"feature.node.kubernetes.io/x": "true"}}}),
    "its report": (False, {"metadata": {"annotations": {"kgpu.dev/roles.test": "{}"}}}),
    "its answer to an order": (False, {"metadata": {"annotations": {"kgpu.dev/operation-report": "{}"}}}),
    "its request for slices": (False, {"metadata": {"annotations": {"kgpu.dev/mig-request": "{}"}}}),
    "what has become of its label": (False, {"metadata": {"annotations": {"kgpu.dev/mig-report": "{}"}}}),
    "how far its label is": (False, {"metadata": {"labels": {"nvidia.com/mig.config.state": "pending"}}}),
    "its condition": (True, {"status": {"conditions": [{"type": "kgpu.dev/Validated", "status": "Unknown"}]}}),
}

# Beside its conditions nothing of the Node's status is an agent's: each field that the API server would take.
REFUSED |= {
    f"status.{field}": (True, {"status": {field: value}}, "condition")
    for field, value in (
        ("images", [{"names": ["registry.invalid/x:1"], "sizeBytes": 1}]),
        ("addresses", [{"type": "InternalIP", "address": "192.0.2.7"}]),
        ("daemonEndpoints", {"kubeletEndpoint": {"Port": 4711}}),
        ("volumesInUse", ["kubernetes.io/csi/x"]),
        ("volumesAttached", [{"name": "kubernetes.io/csi/x", "devicePath": "/dev/x"}]),
        ("nodeInfo", {"kernelVersion": "9.9.9"}),
        ("phase", "Terminated"),
    )
}


def event(node: str, name: str = "", **fields: Any) -> Object:
    """What an agent of ``node`` says of it, in an Event of its own making, with other ``fields``."""
    told = Advice(
        subject="GPU-1", what="marked unhealthy", why="Xid 79", severity=Severity.WARNING, reason="GpuUnhealthy"
    )
    made = NodeEvents(FakeApi(), node=node).event(told, "2026-01-01T00:00:00Z")
    return {**made, "metadata": {**made["metadata"], "name": name or made["metadata"]["name"]}, **fields}


ABOUT_A_POD: Final = {"apiVersion": "v1", "kind": "Pod", "name": "x", "namespace": "default"}


def refused_events(own: str) -> dict[str, tuple[Object, str]]:
    """The Events that the agent of the node ``own`` may neither write nor change, and a word of the refusal."""
    return {
        "of another node": (event(OTHER, "of-another"), "only about the Node that it runs on"),
        "of a pod": (event(own, "of-a-pod", involvedObject=ABOUT_A_POD), "only about the Node that it runs on"),
        "in another's name": (event(own, "as-kubelet", source={"component": "kubelet"}), "only in its own name"),
        "reported by another": (event(own, "by-kubelet", reportingComponent="kubelet"), "only in its own name"),
        "in nobody's name": (event(own, "as-nobody", source={"component": ""}), "only in its own name"),
    }


FEATURES: Final = "nfd.k8s-sigs.io/v1alpha1"
FEATURES_CRD: Final[Object] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodefeatures.nfd.k8s-sigs.io"},
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "names": {"plural": "nodefeatures", "singular": "nodefeature", "kind": "NodeFeature", "listKind": "NodeFeatureList"},
        "scope": "Namespaced",
        "versions": [{
            "name": "v1alpha1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}},
        }],
    },
}  # fmt: skip
"""The kind of node feature discovery, as far as it is of interest here."""


def feature(node: str, *, name: str = "", of: str | None = None, **labels: str) -> Object:
    """What kgpu publishes for ``node``; ``of`` is the node that its label names, "" for none."""
    told = node if of is None else of
    metadata: Object = {"name": name or f"nvidia-features-for-{node}"}
    if told:
        metadata["labels"] = {"nfd.node.kubernetes.io/node-name": told}
    return {"apiVersion": FEATURES, "kind": "NodeFeature", "metadata": metadata, "spec": {"labels": labels}}


def refused_features(own: str) -> dict[str, tuple[Object, str]]:
    """What is tried to publish by the agent of the node ``own``, and a word of the refusal."""
    return {
        "of another node": (feature(OTHER), "may change only the NodeFeature"),
        "under another name": (feature(own, name="x"), "may change only the NodeFeature"),
        "under its name for another node": (feature(own, of=OTHER), "only of the Node that it runs on"),
        "under its name for nobody": (feature(own, of=""), "only of the Node that it runs on"),
        "a foreign label": (feature(own, team="x"), "may publish labels"),
        "where agents are": (feature(own, **{"kgpu.dev/agent": "true"}), "may publish labels"),
        "what the operator says": (feature(own, **{"nvidia.com/gpu.deploy.driver": "x"}), "may publish labels"),
    }


def granted_feature(own: str) -> Object:
    return feature(own, **{"nvidia.com/gpu.count": "8", "feature.node.kubernetes.io/x": "true"})


def devices_of(node: str, name: str = "", *, driver: str = "gpu.nvidia.com", pool: str = "") -> Object:
    """A ResourceSlice with no device, of ``node`` and the driver."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{node}-slice"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    }


def refused_slices(own: str) -> dict[str, tuple[Object, str]]:
    """The ResourceSlices that the agent of the node ``own`` may neither write nor take away, and a word of the refusal."""
    everywhere = devices_of(own, "everywhere")
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    return {
        "of another node": (devices_of(OTHER, "of-another"), "only of the Node that it runs on"),
        "in another's pool": (devices_of(own, "in-another", pool=OTHER), "only of the Node that it runs on"),
        "of all nodes": (everywhere, "only of the Node that it runs on"),
        "of another driver": (devices_of(own, "of-a-driver", driver="nic.example.com"), "only as the driver"),
    }
