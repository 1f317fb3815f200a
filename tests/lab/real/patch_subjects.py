"""The kinds that the patch comparison writes: maps, lists by key, sets, atomic parts, defaults, a status."""

from __future__ import annotations

import random
from typing import Any

from kgpu.lab.embedded.kinds import ApiKind, Kinds, schema_data
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.types.rules import BuiltinRules
from kgpu.lab.embedded.types.shape import shape
from tests.lab.real.patch_play import LETTERS, Object, Subject

KINDS = Kinds()
RULES = BuiltinRules()


def some(r: random.Random, chance: float = 0.5) -> list[str]:
    return [key for key in LETTERS if r.random() < chance]


def shuffled(r: random.Random, items: list[Any]) -> list[Any]:
    r.shuffle(items)
    return items


def maybe(r: random.Random, chance: float, **fields: Any) -> Object:
    return fields if r.random() < chance else {}


def config_map(r: random.Random) -> Object:
    data: Object = {key: r.choice("123") for key in some(r)}
    return {
        **maybe(r, 0.8, data=data),
        **maybe(r, 0.2, binaryData={key.upper(): "AAAA" for key in some(r)}),
        **maybe(r, 0.1, immutable=None),
    }


def container(r: random.Random, name: str) -> Object:
    ports = [
        {"containerPort": port, **maybe(r, 0.5, protocol=r.choice(["TCP", "UDP"])), **maybe(r, 0.3, hostIP="1.1.1.1")}
        for port in (80, 81)
        if r.random() < 0.4
    ]
    return {
        "name": name,
        "image": f"image:{r.choice('12')}",
        **maybe(r, 0.5, env=shuffled(r, [{"name": key.upper(), "value": r.choice("12")} for key in some(r)])),
        **maybe(r, 0.3, ports=ports),
        **maybe(r, 0.2, args=some(r)),
        **maybe(
            r, 0.2, resources={"limits": {key: r.choice(["1", 2]) for key in ("cpu", "memory") if r.random() < 0.6}}
        ),
        **maybe(r, 0.2, securityContext={"runAsUser": r.choice([1, 2]), **maybe(r, 0.3, privileged=False)}),
        **maybe(r, 0.1, imagePullPolicy=r.choice(["Always", None])),
    }


def pod_template(r: random.Random) -> Object:
    spec = {
        **maybe(r, 0.8, containers=shuffled(r, [container(r, name) for name in some(r)])),
        **maybe(r, 0.2, nodeSelector={key: r.choice("12") for key in some(r)}),
        **maybe(r, 0.2, tolerations=[{"key": key, "operator": "Exists"} for key in some(r)]),
        **maybe(r, 0.2, volumes=[{"name": key, "emptyDir": {}} for key in some(r)]),
        **maybe(r, 0.2, imagePullSecrets=[{"name": key} for key in some(r)]),
        **maybe(r, 0.2, securityContext={"fsGroup": r.choice([1, 2])}),
        **maybe(r, 0.2, hostAliases=[{"ip": "1.1.1.1", "hostnames": some(r)}]),
        **maybe(r, 0.2, terminationGracePeriodSeconds=r.choice([1, 2, None])),
    }
    return {"template": {"spec": spec, **maybe(r, 0.3, metadata={"labels": {key: r.choice("12") for key in some(r)}})}}


def service(r: random.Random) -> Object:
    ports = [
        {"name": f"p{port}{protocol[0].lower()}", "port": port, "protocol": protocol, "targetPort": r.choice([1, 2])}
        for port in (80, 81)
        for protocol in ("TCP", "UDP")
        if r.random() < 0.35
    ]
    for port in ports:
        if port["protocol"] == "TCP" and r.random() < 0.5:
            del port["protocol"]
    return {
        "spec": {
            **maybe(r, 0.7, ports=shuffled(r, ports)),
            **maybe(r, 0.3, selector={key: r.choice("12") for key in some(r)}),
            **maybe(r, 0.2, sessionAffinity=r.choice(["None", "ClientIP"])),
            **maybe(r, 0.2, loadBalancerSourceRanges=None),
        }
    }


def widget(r: random.Random) -> Object:
    items = [
        {"name": key, **maybe(r, 0.5, port=r.choice([80, 81])), **maybe(r, 0.6, text=r.choice("12"))} for key in some(r)
    ]
    spec = {
        **maybe(r, 0.4, replicas=r.choice([1, 2])),
        **maybe(r, 0.4, names=shuffled(r, some(r))),
        **maybe(r, 0.5, items=shuffled(r, items)),
        **maybe(r, 0.3, whole=[r.choice([1, 2]) for _ in range(r.randrange(3))]),
        **maybe(r, 0.3, pair={key: r.choice("12") for key in some(r)}),
        **maybe(r, 0.4, map={key: {"deep": r.choice("12")} for key in some(r)}),
        **maybe(r, 0.4, open={key: r.choice([1, "x", {"y": 1}, [1, 2], {}, True]) for key in some(r)}),
        **maybe(r, 0.2, either=r.choice([1, "50%"])),
    }
    return maybe(r, 0.9, spec=spec)


WIDGET_SCHEMA: Object = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "replicas": {"type": "integer"},
                "names": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "items": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name", "port"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "port": {"type": "integer", "default": 80},
                            "text": {"type": "string"},
                        },
                    },
                },
                "whole": {"type": "array", "items": {"type": "integer"}},
                "pair": {
                    "type": "object",
                    "x-kubernetes-map-type": "atomic",
                    "additionalProperties": {"type": "string"},
                },
                "map": {
                    "type": "object",
                    "additionalProperties": {"type": "object", "properties": {"deep": {"type": "string"}}},
                },
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "either": {"x-kubernetes-int-or-string": True},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "phase": {"type": "string"},
                "conditions": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["type"],
                    "items": {
                        "type": "object",
                        "required": ["type"],
                        "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                    },
                },
            },
        },
    },
}
GROUP = "patches.kgpu.dev"
WIDGET_CRD: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"widgets.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "singular": "widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": WIDGET_SCHEMA},
                "additionalPrinterColumns": [
                    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                    {"name": "Phase", "type": "string", "jsonPath": ".status.phase", "priority": 1},
                    {"name": "Names", "type": "string", "jsonPath": ".spec.names[*]"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
            }
        ],
    },
}


def widget_status(r: random.Random) -> Object:
    conditions = [{"type": key, "status": r.choice(["True", "False"])} for key in some(r)]
    return {**maybe(r, 0.6, phase=r.choice("12")), **maybe(r, 0.6, conditions=conditions)}


def pod_status(r: random.Random) -> Object:
    conditions = [{"type": f"kgpu.dev/{key}", "status": r.choice(["True", "False"])} for key in some(r)]
    return {**maybe(r, 0.5, message=r.choice("12")), **maybe(r, 0.6, conditions=conditions)}


def settle_widget(obj: Object) -> None:
    shape("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").settle(obj["metadata"])
    for item in obj.get("spec", {}).get("items") or ():
        item.setdefault("port", 80)


def builtin(plural: str, **fields: Any) -> Subject:
    kind = KINDS.need("", plural)

    def settle(obj: Object) -> None:
        shape(kind.schema).settle(obj)
        RULES.default(kind, obj)
        if kind.kind == "Pod":
            obj["status"].setdefault("qosClass", "BestEffort")

    return Subject(kind=kind, schema=SchemaNode({"$ref": kind.schema}, schema_data()), settle=settle, **fields)


CONTAINERS = [{"name": "a", "image": "image:1"}]
SUBJECTS = {
    "ConfigMap": builtin("configmaps", base=lambda: {"data": {"a": "1", "z": "1"}}, config=config_map),
    "PodTemplate": builtin(
        "podtemplates", base=lambda: {"template": {"spec": {"containers": [dict(CONTAINERS[0])]}}}, config=pod_template
    ),
    "Service": builtin(
        "services",
        base=lambda: {"spec": {"ports": [{"name": "p80t", "port": 80, "targetPort": 1}], "selector": {"a": "1"}}},
        config=service,
        admitted=(("spec", "clusterIP"), ("spec", "clusterIPs"), ("spec", "ipFamilies"), ("spec", "ipFamilyPolicy")),
    ),
    "Pod": builtin(
        "pods",
        base=lambda: {
            "spec": {
                "containers": [dict(CONTAINERS[0])],
                "schedulerName": "nobody",
                "automountServiceAccountToken": False,
                "priority": None,
            }
        },
        config=lambda r: {},
        status=pod_status,
        admitted=(
            ("spec", "priority"),
            ("spec", "preemptionPolicy"),
            ("spec", "tolerations"),
            ("spec", "serviceAccount"),
            ("spec", "serviceAccountName"),
            ("status", "qosClass"),
        ),
    ),
    "Widget": Subject(
        kind=ApiKind(
            group=GROUP, version="v1", plural="widgets", kind="Widget", custom=True, subresources={"status": {}},
            schema=f"{GROUP}/v1/Widget",
        ),
        schema=SchemaNode(WIDGET_SCHEMA, {}),
        base=lambda: {"spec": {"replicas": 1}},
        config=widget,
        settle=settle_widget,
        status=widget_status,
    ),
}  # fmt: skip
