"""What somebody with an agent's token tries on a Node: what the chart's admission policy refuses, and what it grants."""

from __future__ import annotations

from typing import Any, Final

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
    "its condition": (True, {"status": {"conditions": [{"type": "kgpu.dev/Validated", "status": "Unknown"}]}}),
}
