"""One version of a custom kind, from its CRD: the kind that is served, and the schema checks of its objects."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from kgpu.lab.embedded.crd import shape
from kgpu.lab.embedded.crd.rules import SchemaRules, rules_of
from kgpu.lab.embedded.crd.shape import Schema, StructuralSchema
from kgpu.lab.embedded.crd.values import SchemaChecks
from kgpu.lab.embedded.kinds import ApiKind, schema_data
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import Object

OBJECT_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
AGE: Final = {
    "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
    "description": "CreationTimestamp is a timestamp representing the server time when this object was created. "
    "It is not guaranteed to be set in happens-before order across separate operations. "
    "Clients may not set this value. It is represented in RFC3339 form and is in UTC.",
}  # fmt: skip
_PARTS: Final = ("get", "patch", "update")
_VERSION: Final = re.compile(r"v([0-9]+)(?:(alpha|beta)([0-9]+))?")


def priority(version: str) -> tuple[int, int, int, str]:
    """Sort key: v2, v1, v1beta2, v1beta1, v1alpha1, then others by name."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return 3, 0, 0, version
    stage = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return stage, -int(match[1]), -int(match[3] or 0), version


class Version:
    """A served version. Schemas are compiled when an object first needs them."""

    def __init__(self, definition: Object, raw: Object) -> None:
        self.definition = definition
        self.raw = raw
        self.schema: Schema = (raw.get("schema") or {}).get("openAPIV3Schema") or {}
        self.name: str = raw["name"]
        parts = raw.get("subresources") or {}
        self.has_status = parts.get("status") is not None
        self.scale: Object | None = parts.get("scale")
        self.deprecation = _deprecation(definition, raw)

    @functools.cached_property
    def kind(self) -> ApiKind:
        """The row of ``Kinds``, with the accepted names."""
        spec = self.definition["spec"]
        names = {**spec["names"], **(self.definition.get("status") or {}).get("acceptedNames", {})}
        namespaced = spec["scope"] == "Namespaced"
        row = {"groupVersion": f"{spec['group']}/{self.name}", "singularName": "", "namespaced": namespaced}
        parts: dict[str, dict[str, Any]] = {}
        if self.has_status:
            parts["status"] = {
                **row, "name": f"{names['plural']}/status", "kind": names["kind"], "verbs": list(_PARTS)
            }  # fmt: skip
        if self.scale is not None:
            parts["scale"] = {
                **row, "name": f"{names['plural']}/scale", "group": "autoscaling", "version": "v1", "kind": "Scale",
                "verbs": list(_PARTS),
            }  # fmt: skip
        return ApiKind(
            group=spec["group"],
            version=self.name,
            plural=names["plural"],
            kind=names["kind"],
            singular=names.get("singular", ""),
            namespaced=namespaced,
            verbs=VERBS,
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=parts,
            custom=True,
            schema=self.definition["metadata"]["name"],
        )

    @property
    def identity(self) -> str:
        """An identity of the version; it changes with the CRD's spec."""
        meta = self.definition["metadata"]
        return f"{meta.get('uid', '')} {meta.get('generation', 0)} {meta['name']} {self.name}"

    @functools.cached_property
    def node(self) -> SchemaNode:
        """For patches, server-side apply and managed fields: the schema with a whole object's own fields."""
        table = schema_data()
        return SchemaNode(_with_meta(self.schema), table)

    @functools.cached_property
    def shape(self) -> StructuralSchema:
        return shape.root(self.schema)

    @functools.cached_property
    def values(self) -> SchemaChecks:
        return SchemaChecks(self.schema)

    @functools.cached_property
    def status_values(self) -> SchemaChecks | None:
        status = (self.schema.get("properties") or {}).get("status")
        return SchemaChecks(status, "status") if status is not None else None

    @functools.cached_property
    def rules(self) -> SchemaRules | None:
        return rules_of(self.schema, resource=True)

    @property
    def columns(self) -> list[Object]:
        return self.raw.get("additionalPrinterColumns") or [AGE]

    @property
    def selectable(self) -> tuple[str, ...]:
        return tuple(field["jsonPath"].removeprefix(".") for field in self.raw.get("selectableFields") or ())


def _deprecation(definition: Object, raw: Object) -> str:
    if not raw.get("deprecated"):
        return ""
    if raw.get("deprecationWarning") is not None:
        return str(raw["deprecationWarning"])
    spec = definition["spec"]
    group, kind = spec["group"], spec["names"]["kind"]
    own = priority(raw["name"])
    served = [
        version["name"] for version in spec["versions"] if version.get("served") and not version.get("deprecated")
    ]
    better = min((name for name in served if priority(name) < own), key=priority, default="")
    return f"{group}/{raw['name']} {kind} is deprecated" + (f"; use {group}/{better} {kind}" if better else "")


def _with_meta(raw: Schema) -> Schema:
    text = {"type": "string"}
    own = {"apiVersion": text, "kind": text, "metadata": {"$ref": OBJECT_META}}
    return {**raw, "type": "object", "properties": {**(raw.get("properties") or {}), **own}}
