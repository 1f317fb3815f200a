"""Policies, and requests to put to them, for the real API server and the embedded one. Rows of data, no expectations.

Every case has a namespace of its own, ``space``, to which its bindings keep; ``{space}`` stands for it in paths and
expressions. Requests are dry runs, so that one doesn't change what the next one finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Raw = dict[str, Any]
MAPS = "/api/v1/namespaces/{space}/configmaps"
GROUP = "admissionregistration.k8s.io"
ALL = ["CREATE", "UPDATE", "DELETE"]


@dataclass(frozen=True)
class Ask:
    """One request. ``user`` is who is impersonated."""

    method: str
    path: str
    body: Raw | None = None
    user: str = ""
    media: str = "application/json"


@dataclass(frozen=True)
class Case:
    """A policy with its bindings, what is there before, and what is asked then."""

    spec: Raw
    asked: list[Ask]
    bindings: list[Raw] = field(default_factory=lambda: [{}])
    before: list[tuple[str, Raw]] = field(default_factory=list)


def config_map(name: str = "x", data: Raw | None = None, **metadata: Any) -> Raw:
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}
    return {**found, "data": data} if data else found


def post(body: Raw | None = None, **more: Any) -> Ask:
    return Ask("POST", MAPS, body or config_map(), **more)


def rule(*resources: str, groups: str = "", versions: str = "v1", operations: Any = ("CREATE",), **more: Any) -> Raw:
    return {
        "apiGroups": [groups], "apiVersions": [versions], "resources": list(resources), "operations": list(operations),
        **more,
    }  # fmt: skip


def constraints(*rules: Raw, **more: Any) -> Raw:
    return {"resourceRules": list(rules), **more}


def policy(*validations: str | Raw, **spec: Any) -> Raw:
    rows = [{"expression": one} if isinstance(one, str) else one for one in validations]
    found = {"matchConstraints": constraints(rule("configmaps", operations=("CREATE", "UPDATE"))), **spec}
    return {**found, "validations": rows} if rows else found


def simple(expression: str, body: Raw | None = None, **spec: Any) -> Case:
    return Case(policy(expression, **spec), [post(body)])


def pod(name: str = "p", **spec: Any) -> Raw:
    containers = [{"name": "c", "image": "registry.invalid/none"}]
    found = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    return {**found, "spec": {"containers": containers, "schedulerName": "nobody", **spec}}


def deployment(name: str = "d", replicas: int = 1, **metadata: Any) -> Raw:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod()["spec"]}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, **metadata},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip


def role(verbs: list[str], *resources: str) -> list[tuple[str, Raw]]:
    """What alice may do in the namespace, besides writing config maps."""
    base = "/apis/rbac.authorization.k8s.io/v1/namespaces/{space}"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]
    rules.append({"apiGroups": [""], "resources": list(resources), "verbs": verbs})
    subject = {"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"}
    return [
        (f"{base}/roles", {"metadata": {"name": "r"}, "rules": rules}),
        (f"{base}/rolebindings", {"metadata": {"name": "b"}, "roleRef": reference, "subjects": [subject]}),
    ]


MAP_PARAMS: Raw = {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}
LIMIT = "int(object.data.n) <= int(params.data.most)"


def params(name: str, most: str, **metadata: Any) -> tuple[str, Raw]:
    return MAPS, config_map(name, {"most": most}, **metadata)


def reference(**found: Any) -> list[Raw]:
    return [{"paramRef": {"parameterNotFoundAction": "Deny", **found}}]


BIG = post(config_map("big", {"n": "9"}))
SMALL = post(config_map("small", {"n": "2"}))
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
BOUND = {"apiVersion": "policies.test.kgpu.dev/v1", "kind": "Bound"}
WIDE = ("/apis/policies.test.kgpu.dev/v1/bounds", {**BOUND, "metadata": {"name": "wide"}, "spec": {"most": 5}})
CUSTOM = {"paramKind": BOUND}
CRD: Raw = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "bounds.policies.test.kgpu.dev"},
    "spec": {
        "group": "policies.test.kgpu.dev",
        "scope": "Cluster",
        "names": {"plural": "bounds", "singular": "bound", "kind": "Bound"},
        "versions": [
            {
                "name": name, "served": True, "storage": name == "v1",
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.most", "statusReplicasPath": ".status.n"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "most": {"type": "integer"}, "any": {"x-kubernetes-int-or-string": True},
                        "names": {"type": "array", "items": {"type": "string"}},
                    }},
                    "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
                }}},
            }
            for name in ("v1", "v2")
        ],
    },
}  # fmt: skip
