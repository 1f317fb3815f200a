"""A custom kind as an operator would bring it, and what a person does with it: commands for both labs.

``POLICY`` has what such kinds have: rules, defaults, lists with keys, status and scale, columns, two versions.
"""

from __future__ import annotations

import json
from typing import Any

Raw = dict[str, Any]
GROUP = "story.kgpu.dev"
TEXT: Raw = {"type": "string"}
COUNT: Raw = {"type": "integer", "format": "int32", "minimum": 0}
PORT: Raw = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def thing(properties: Raw, *rules: Raw, **more: Any) -> Raw:
    found: Raw = {"type": "object", "properties": properties, **more}
    return {**found, "x-kubernetes-validations": list(rules)} if rules else found


DRIVER = thing(
    {
        "enabled": {"type": "boolean", "default": True, "description": "Whether the driver is installed."},
        "version": {**TEXT, "maxLength": 30, "pattern": r"^[0-9]+(\.[0-9]+){1,2}$"},
        "repository": {**TEXT, "maxLength": 200, "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "repository can't be changed"},
        ]},
    },
    {"rule": "!self.enabled || has(self.version)", "message": "an enabled driver needs a version"},
    description="The driver's part of the policy.",
)  # fmt: skip
SLICES = {
    "type": "array",
    "maxItems": 8,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
    "items": thing(
        {"name": {**TEXT, "maxLength": 20}, "replicas": {**COUNT, "default": 1}, "port": PORT},
        {
            "rule": "self.replicas <= 16",
            "messageExpression": "'too many slices of ' + self.name",
            "fieldPath": ".replicas",
            "reason": "FieldValueForbidden",
        },
        required=["name"],
    ),
}
SPEC = thing(
    {
        "driver": {**DRIVER, "default": {"version": "580.1"}},
        "mode": {**TEXT, "enum": ["single", "mixed"], "default": "single"},
        "replicas": {**COUNT, "maximum": 9},
        "slices": SLICES,
        "labels": {"type": "object", "additionalProperties": TEXT},
        "extra": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
    {
        "rule": "self.mode == 'mixed' || !has(self.slices) || self.slices.all(s, s.replicas <= 4)",
        "message": "more than four slices need the mixed mode",
    },
    {"rule": "!has(oldSelf.replicas) || has(self.replicas)", "message": "replicas can't be taken back"},
    required=["mode"],
)
STATUS = thing({"state": {**TEXT, "enum": ["ready", "notReady"]}, "replicas": COUNT, "selector": TEXT})
COLUMNS = [
    {"name": "Mode", "type": "string", "jsonPath": ".spec.mode"},
    {"name": "State", "type": "string", "jsonPath": ".status.state", "description": "What it has come to."},
    {"name": "Driver", "type": "string", "jsonPath": ".spec.driver.version", "priority": 1},
    {"name": "Slices", "type": "string", "jsonPath": ".spec.slices[*].name", "priority": 1},
]
PARTS = {
    "status": {},
    "scale": {
        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    },
}  # fmt: skip
VERSION = {
    "name": "v1", "served": True, "storage": True, "subresources": PARTS, "additionalPrinterColumns": COLUMNS,
    "selectableFields": [{"jsonPath": ".spec.mode"}],
    "schema": {"openAPIV3Schema": thing({"spec": SPEC, "status": STATUS}, description="What the GPUs of a cluster get.")},
}  # fmt: skip
OLD = {**VERSION, "name": "v1alpha1", "storage": False, "deprecated": True, "additionalPrinterColumns": []}
POLICY = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"gpupolicies.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Cluster",
        "names": {"plural": "gpupolicies", "kind": "GpuPolicy", "shortNames": ["gp"], "categories": ["story"]},
        "versions": [VERSION, OLD],
    },
}


def policy(name: str, version: str = "v1", **spec: Any) -> Raw:
    return {"apiVersion": f"{GROUP}/{version}", "kind": "GpuPolicy", "metadata": {"name": name}, "spec": spec}


def crd(**names: Any) -> Raw:
    """Another kind of the group."""
    plural = names["plural"]
    spec = {**POLICY["spec"], "names": names, "versions": [{**VERSION, "subresources": {}, "selectableFields": []}]}
    return {**POLICY, "metadata": {"name": f"{plural}.{GROUP}"}, "spec": spec}


Step = tuple[list[str], Raw | None]
APPLY = ["apply", "-f", "-"]
SERVER = ["apply", "--server-side", "-f", "-"]


def merge(name: str, *more: str, **body: Any) -> Step:
    return ["patch", "gp", name, "--type=merge", "-p", json.dumps(body), *more], None


def plain(text: str) -> Step:
    return text.split(), None


def later(default: str) -> str:
    """A patch of the CRD: a field with a default for every version."""
    path = "/spec/versions/{}/schema/openAPIV3Schema/properties/spec/properties/later"
    value = {**TEXT, "default": default}
    return json.dumps([{"op": "add", "path": path.format(number), "value": value} for number in (0, 1)])


CONFLICTING = crd(plural="others", kind="GpuPolicy", shortNames=["gp", "ot"])
BAD = {**POLICY, "spec": {**POLICY["spec"], "versions": [{**VERSION, "schema": {"openAPIV3Schema": thing(
    {"spec": thing({"a": TEXT}, {"rule": "self.b == 1"}, {"rule": "size(self.a)"})}
)}}]}}  # fmt: skip
FINE = policy("fine", mode="mixed", replicas=2, slices=[{"name": "a", "replicas": 8}, {"name": "b"}], labels={"x": "y"})
WITH_SLICE = policy("fine", mode="mixed", slices=[{"name": "c", "port": "http"}])

STORY: list[Step] = [
    (["apply", "--dry-run=server", "-f", "-"], BAD),
    (APPLY, POLICY),
    plain(f"wait --for=condition=Established crd/gpupolicies.{GROUP} --timeout=30s"),
    (APPLY, CONFLICTING),
    plain(f"wait --for=condition=NamesAccepted=False crd/others.{GROUP} --timeout=30s"),
    (["get", "crd", f"others.{GROUP}", "-o", "jsonpath={.status.acceptedNames}{.status.conditions[*].message}"], None),
    plain(f"delete crd others.{GROUP}"),
    plain(f"api-resources --api-group={GROUP}"),
    plain(f"explain gpupolicies.{GROUP} --recursive"),
    plain(f"explain gpupolicies.{GROUP}.spec.driver"),
    (APPLY, FINE),
    (APPLY, FINE),
    (APPLY, policy("small")),
    (APPLY, policy("old", "v1alpha1", mode="single")),
    (APPLY, policy("unknown", mode="single", modes=1)),
    (["apply", "--validate=warn", "-f", "-"], policy("warned", mode="single", modes=1, extra={"any": [1]})),
    (APPLY, policy("wrong", mode="some", replicas=10, driver={"version": "x"})),
    (APPLY, policy("wrong", mode="single", slices=[{"name": "a", "replicas": 17}])),
    (APPLY, policy("wrong", mode="single", slices=[{"name": "a", "replicas": 5}])),
    (APPLY, policy("wrong", mode="mixed", slices=[{"name": "a"}, {"name": "a"}])),
    (APPLY, policy("wrong", mode="mixed", slices=[{"port": 1.5}])),
    (APPLY, policy("wrong", mode="single", driver={"enabled": True})),
    (APPLY, policy("Wrong_Name", mode="single")),
    plain("get gp"),
    plain("get gp -o wide"),
    plain("get story"),
    plain("get gp --field-selector spec.mode=mixed"),
    plain("get gp --field-selector spec.replicas=2"),
    plain(f"get gpupolicies.v1alpha1.{GROUP}"),
    (["get", "gp", "fine", "-o", "jsonpath={.spec}{.metadata.generation}"], None),
    plain("describe gp fine"),
    (SERVER, WITH_SLICE),
    (["apply", "--server-side", "--force-conflicts", "-f", "-"], WITH_SLICE),
    (["get", "gp", "fine", "-o", "jsonpath={.spec.slices}"], None),
    (["apply", "--server-side", "--field-manager=other", "-f", "-"], policy("fine", mode="single")),
    plain("scale gp fine --replicas=5"),
    plain("scale gp fine --replicas=3 --current-replicas=9"),
    plain("scale gp fine --replicas=12"),
    plain("get gp fine --subresource=scale -o jsonpath={.spec}{.status}"),
    merge("fine", "--subresource=status", status={"state": "ready", "replicas": 5, "selector": "a=b"}),
    merge("fine", "--subresource=status", status={"state": "gone"}),
    plain("get gp fine --subresource=status"),
    plain("get gp fine --subresource=scale -o jsonpath={.spec}{.status}"),
    merge("fine", status={"state": "notReady"}),
    merge("fine", spec={"replicas": None}),
    merge("fine", spec={"mode": "single", "nothing": 1}),
    merge("fine", spec={"driver": {"repository": "one"}}),
    merge("fine", spec={"driver": {"repository": "two"}}),
    (["patch", "gp", "fine", "-p", "{}"], None),
    (["patch", "gp", "fine", "--type=json", "-p", '[{"op":"remove","path":"/spec/labels"}]'], None),
    (["get", "gp", "fine", "-o", "jsonpath={.spec.driver}{.status}{.metadata.generation}"], None),
    plain("label gp fine a=b"),
    plain("annotate gp fine a=b"),
    plain("get gp -l a=b"),
    # A default that comes later is in what was stored before; one that has gone stays in what was written with it.
    (["patch", "crd", f"gpupolicies.{GROUP}", "--type=json", "-p", later("A")], None),
    plain("wait --for=jsonpath={.spec.later}=A gp/small --timeout=30s"),
    merge("small", metadata={"labels": {"a": "b"}}),
    (["patch", "crd", f"gpupolicies.{GROUP}", "--type=json", "-p", later("B")], None),
    plain("wait --for=jsonpath={.spec.later}=B gp/fine --timeout=30s"),
    (["get", "gp", "small", "-o", "jsonpath={.spec}{.metadata.generation}"], None),
    (["get", "gp", "fine", "-o", "jsonpath={.spec.later}{.metadata.generation}"], None),
    plain("delete gp small"),
    plain(f"delete crd gpupolicies.{GROUP} --timeout=30s"),
    plain(f"get gpupolicies.{GROUP}"),
]
