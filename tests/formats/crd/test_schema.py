"""Every field of the replaced operator is there with its type, default and bounds, and no other is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.common import LABEL_VALUE
from kgpu.formats.crd.definitions import DEFINITIONS, crds
from kgpu.formats.crd.fields import rows
from kgpu.formats.crd.nvidiadriver import NVIDIADriverSpec
from kgpu.lab.embedded.openapi import recorded
from tests.formats.crd import sheet

Schema = dict[str, Any]
BLOCKS = {"ClusterPolicy": "CLUSTERPOLICY", "NVIDIADriver": "NVIDIADRIVER"}
SCALARS = {"str": "string", "bool": "boolean", "int": "integer", "int32": "integer", "int64": "integer"}
# Sections that the replaced operator requires are optional here, and are always there.
ALWAYS = {
    "operator", "daemonsets", "driver", "toolkit", "devicePlugin", "devicePlugin.config", "dcgm", "dcgmExporter",
    "gfd", "nodeStatusExporter", "migManager", "migManager.config",
}  # fmt: skip


def spec_of(kind: str) -> Schema:
    (found,) = [item for item in crds() if item["spec"]["names"]["kind"] == kind]
    return found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def walk(schema: Schema, path: str = "", *, required: bool = False) -> Iterator[tuple[str, Schema, bool]]:
    """Everything below, as (path, schema, required)."""
    yield path, schema, required
    for name, below in schema.get("properties", {}).items():
        yield from walk(below, f"{path}.{name}".lstrip("."), required=name in schema.get("required", ()))
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from walk(schema[key], path + mark)


def expected(kind: str) -> list[sheet.Entry]:
    return list(sheet.entries(BLOCKS[kind]))


ROWS = [(kind, entry) for kind in BLOCKS for entry in expected(kind)]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, tuple[Schema, bool]]]:
    return {kind: {path: (schema, must) for path, schema, must in walk(spec_of(kind))} for kind in BLOCKS}


@pytest.fixture(scope="module")
def core() -> dict[str, Schema]:
    """Kubernetes' own schemas by kind."""
    schemas = json.loads(recorded.document("api/v1"))["components"]["schemas"]
    return {name.rpartition(".")[2]: schema for name, schema in schemas.items() if name.startswith("io.k8s.api.core")}


@pytest.mark.parametrize(("kind", "entry"), ROWS, ids=[f"{kind}-{entry.path}" for kind, entry in ROWS])
def test_a_field_is_as_in_the_table(found: Any, core: Mapping[str, Schema], kind: str, entry: sheet.Entry) -> None:
    schema, required = found[kind][entry.path]
    assert required == entry.required
    if entry.type.startswith("K:"):
        assert sorted(plain(schema)) == sorted(plain(core[entry.type.removeprefix("K:")], core))
        return
    assert kind_of(schema) == entry.type
    assert set(schema.get("enum", ())) == set(entry.enum)
    assert schema.get("minimum") == entry.minimum
    if entry.pattern:
        assert schema["pattern"] == entry.pattern
    assert (said(schema["default"]) if "default" in schema else None) == entry.default


def said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def kind_of(schema: Schema) -> str:
    """The table's word for a type."""
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity" if "[KMGTPE]i" in schema.get("pattern", "") else "int-or-string"
    if schema["type"] == "integer":
        return schema.get("format", "int")
    if schema["type"] == "string" and "([0-9]+)ms" in schema.get("pattern", ""):
        return "duration"
    return {"string": "str", "boolean": "bool"}[schema["type"]]


def plain(schema: Schema, core: Mapping[str, Schema] | None = None, path: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a schema of Kubernetes' or of ours, as (path with marks of required fields, type)."""
    for link in schema.get("allOf", [schema] if "$ref" in schema else []):
        schema = (core or {})[link["$ref"].rpartition(".")[2]]
    for name, below in schema.get("properties", {}).items():
        yield from plain(below, core, f"{path}.{name}{'!' if name in schema.get('required', ()) else ''}")
    if "items" in schema:
        yield from plain(schema["items"], core, path + "[]")
    if schema["type"] not in {"object", "array"}:
        yield path, f"{schema['type']} {schema.get('format', '')}"


@pytest.mark.parametrize("kind", BLOCKS)
def test_there_is_no_other_field(found: Any, kind: str) -> None:
    table = {entry.path: entry for entry in expected(kind)}
    core = tuple(path for path, entry in table.items() if entry.type.startswith("K:"))
    leaves = {
        path
        for path, (schema, _) in found[kind].items()
        if schema.get("type") not in {"object", "array"} and not path.startswith(core)
    }
    assert leaves == set(table) - set(core)


def test_required_sections_of_the_replaced_operator_are_always_there(found: Any) -> None:
    empty = {path for path, (schema, _) in found["ClusterPolicy"].items() if path and schema.get("default") == {}}
    assert empty == ALWAYS


@pytest.mark.parametrize("kind", BLOCKS)
def test_nothing_is_required_but_in_lists_and_core_blocks(found: Any, kind: str) -> None:
    table = {entry.path for entry in expected(kind) if entry.type.startswith("K:")}
    required = {path for path, (_, must) in found[kind].items() if must and not path.startswith(tuple(table))}
    assert all("[]" in path for path in required), required


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_field_says_what_it_is(found: Any, kind: str) -> None:
    silent = [
        path for path, (schema, _) in found[kind].items() if not schema.get("description") and path[-1:] not in "]}"
    ]
    assert silent == []


@pytest.mark.parametrize("kind", BLOCKS)
def test_no_object_may_have_any_shape(found: Any, kind: str) -> None:
    loose = [
        path
        for path, (schema, _) in found[kind].items()
        if schema.get("type") == "object" and not {"properties", "additionalProperties"} & set(schema)
    ]
    assert loose == []
    assert "x-kubernetes-preserve-unknown-fields" not in json.dumps(crds())


# kgpu's own rules: they refuse nothing that has ever worked.
_ABSOLUTE = ["self == '' || self.startsWith('/')"]
OWN_RULES = {
    "ClusterPolicy": {
        "daemonsets.rollingUpdate.maxUnavailable": ["self == '' || self.matches('^[0-9]*[1-9][0-9]*%?$')"],
        "driver.upgradePolicy.maxUnavailable": ["type(self) == string || self >= 0"],
        "migManager.config.default": [rule for rule, _ in LABEL_VALUE],  # any layout, and not all-disabled alone
        **{f"hostPaths.{name}": _ABSOLUTE for name in ("rootFS", "driverInstallDir", "kubeletRootDir")},
    },
    "NVIDIADriver": {"upgradePolicy.maxUnavailable": ["type(self) == string || self >= 0"]},
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_validation_rules_are_the_replaced_operators_and_few_more(found: Any, kind: str) -> None:
    rules = {
        path: [rule["rule"] for rule in schema["x-kubernetes-validations"]]
        for path, (schema, _) in found[kind].items()
        if "x-kubernetes-validations" in schema
    }
    same = ["self == oldSelf"]
    default = ["!self.default || !has(self.nodeSelector) || size(self.nodeSelector) == 0"]
    wanted = {"": default, "driverType": same, "usePrecompiled": same} if kind == "NVIDIADriver" else {}
    assert rules == {**wanted, **OWN_RULES[kind]}


@pytest.mark.parametrize("struct", [ClusterPolicySpec, NVIDIADriverSpec])
def test_structs_and_schema_have_the_same_defaults(struct: type[msgspec.Struct]) -> None:
    wrong = []

    def check(kind: type[msgspec.Struct]) -> None:
        for row in rows(kind):
            if not row.required:
                value = getattr(msgspec.convert(least(kind), kind), row.attribute)
                default = row.default if row.default != {} else row.type.struct and row.type.struct()
                wrong.extend([] if value == default or (not value and default is None) else [(kind, row.name)])
            for below in (row.type, row.type.items):
                if below and below.struct:
                    check(below.struct)

    check(struct)
    assert wrong == []


def least(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The smallest mapping that can be read."""
    samples: dict[type, Any] = {str: "x", int: 1, bool: True}
    return {
        row.name: least(row.type.struct)
        if row.type.struct
        else []
        if row.type.items
        else samples[row.type.scalar or str]
        for row in rows(kind)
        if row.required
    }


def test_definitions_are_named_as_users_know_them() -> None:
    found = {
        item["metadata"]["name"]: (
            item["spec"]["scope"],
            item["spec"]["names"]["kind"],
            item["spec"]["names"]["singular"],
            item["spec"]["names"].get("shortNames", []),
            [version["name"] for version in item["spec"]["versions"]],
            [
                column["name"]
                for column in item["spec"]["versions"][0]["additionalPrinterColumns"]
                if not column.get("priority")
            ],
            item["spec"]["versions"][0].get("subresources"),
        )
        for item in crds()
    }
    status: Schema = {"status": {}}
    assert found == {
        "clusterpolicies.nvidia.com": (
            "Cluster", "ClusterPolicy", "clusterpolicy", [], ["v1"], ["Status", "Age"], status,
        ),
        "nvidiadrivers.nvidia.com": (
            "Cluster", "NVIDIADriver", "nvidiadriver", ["nvd", "nvdriver", "nvdrivers"], ["v1alpha1"],
            ["Status", "Default", "Age"], status,
        ),
        "nodeoperations.kgpu.dev": (
            "Cluster", "NodeOperation", "nodeoperation", ["nodeop", "nodeops"], ["v1alpha1"],
            ["Node", "Type", "Phase", "Result", "Since", "Age"], status,
        ),
        "gpuusagepolicies.kgpu.dev": (
            "Cluster", "GPUUsagePolicy", "gpuusagepolicy", ["gup"], ["v1alpha1"],
            ["Mode", "Idle", "Warned", "Acting", "Frozen", "Age"], status,
        ),
        "gpuusageoverrides.kgpu.dev": (
            "Namespaced", "GPUUsageOverride", "gpuusageoverride", ["guo"], ["v1alpha1"], ["Mode", "Age"], None,
        ),
    }  # fmt: skip


def test_status_says_how_it_is() -> None:
    every = [item["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].get("status") for item in crds()]
    status = [item for item in every if item is not None]
    assert [item.get("required") for item in status] == [["state"], ["state"], None, None]
    assert [item["properties"]["state"]["enum"] for item in status[:2]] == [
        ["ignored", "notReady", "ready"],
        ["disabled", "ignored", "notReady", "ready"],
    ]
    for item in status:
        condition = item["properties"]["conditions"]["items"]
        assert set(condition["required"]) == {"type", "status", "reason", "message", "lastTransitionTime"}


def test_every_call_gives_objects_of_its_own() -> None:
    first = crds()
    before = json.dumps(crds())
    first[0]["spec"]["versions"].clear()
    first[1]["spec"]["names"]["shortNames"].append("x")
    assert json.dumps(crds()) == before
    assert len(DEFINITIONS) == len(first)
