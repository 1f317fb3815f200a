"""The schemas of kinds that an API server serves only with a feature gate, in the form of ``data/schemas.json``.

Source: api/resource/v1alpha3 of Kubernetes 1.35. Data only.
"""

from __future__ import annotations

from typing import Any, Final

_V: Final = "io.k8s.api.resource.v1alpha3."
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1."
_TEXT: Final[Any] = {"type": "string"}
_HEAD: Final[Any] = {"apiVersion": _TEXT, "kind": _TEXT}


def _gvk(kind: str) -> list[Any]:
    return [{"group": "resource.k8s.io", "kind": kind, "version": "v1alpha3"}]


SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    f"{_V}DeviceTaint": {
        "properties": {
            "effect": {"default": "", "enum": ["NoExecute", "NoSchedule", "None"], "type": "string"},
            "key": {"default": "", "type": "string"},
            "timeAdded": {"$ref": f"{_META}Time"},
            "value": _TEXT,
        },
        "required": ["key", "effect"],
        "type": "object",
    },
    f"{_V}DeviceTaintSelector": {
        "properties": {"device": _TEXT, "driver": _TEXT, "pool": _TEXT},
        "type": "object",
    },
    f"{_V}DeviceTaintRuleSpec": {
        "properties": {
            "deviceSelector": {"$ref": f"{_V}DeviceTaintSelector"},
            "taint": {"$ref": f"{_V}DeviceTaint", "default": {}},
        },
        "required": ["taint"],
        "type": "object",
    },
    f"{_V}DeviceTaintRuleStatus": {
        "properties": {
            "conditions": {
                "items": {"$ref": f"{_META}Condition", "default": {}},
                "type": "array",
                "x-kubernetes-list-map-keys": ["type"],
                "x-kubernetes-list-type": "map",
                "x-kubernetes-patch-merge-key": "type",
                "x-kubernetes-patch-strategy": "merge",
            }
        },
        "type": "object",
    },
    f"{_V}DeviceTaintRule": {
        "properties": {
            **_HEAD,
            "metadata": {"$ref": f"{_META}ObjectMeta", "default": {}},
            "spec": {"$ref": f"{_V}DeviceTaintRuleSpec", "default": {}},
            "status": {"$ref": f"{_V}DeviceTaintRuleStatus", "default": {}},
        },
        "required": ["spec"],
        "type": "object",
        "x-kubernetes-group-version-kind": _gvk("DeviceTaintRule"),
    },
    f"{_V}DeviceTaintRuleList": {
        "properties": {
            **_HEAD,
            "items": {"items": {"$ref": f"{_V}DeviceTaintRule", "default": {}}, "type": "array"},
            "metadata": {"$ref": f"{_META}ListMeta", "default": {}},
        },
        "required": ["items"],
        "type": "object",
        "x-kubernetes-group-version-kind": _gvk("DeviceTaintRuleList"),
    },
}
