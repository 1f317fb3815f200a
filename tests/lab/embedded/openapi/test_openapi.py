"""OpenAPI: the index, documents of built-in and custom kinds, and what follows when a CRD changes."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from kgpu.lab.embedded.kinds import Kinds, schema_data
from kgpu.lab.embedded.openapi import OpenApi, recorded
from tests.lab.embedded.crd.asking import Api
from tests.lab.embedded.crd.cases import GROUP, SCHEMAS, arr, crd, obj, version

V1 = f"apis/{GROUP}/v1"


@pytest.fixture(scope="module")
def api() -> Api:
    found = Api()
    for definition in SCHEMAS.values():
        found.install(definition)
    return found


@pytest.fixture(scope="module")
def documents(api: Api) -> OpenApi:
    return OpenApi(api.kinds, api.custom)


def document(documents: OpenApi, path: str) -> dict[str, Any]:
    data = documents.document(path)
    assert data is not None, path
    found: dict[str, Any] = json.loads(data)
    return found


def schema(documents: OpenApi, name: str) -> dict[str, Any]:
    found: dict[str, Any] = document(documents, V1)["components"]["schemas"][f"dev.kgpu.test.crds.v1.{name}"]
    return found


def test_the_index_names_every_recorded_document() -> None:
    assert set(OpenApi(Kinds()).index()["paths"]) == set(recorded.recording().documents)


def test_an_address_carries_the_hash_of_its_document(documents: OpenApi) -> None:
    for path, entry in documents.index()["paths"].items():
        assert entry == {"serverRelativeURL": f"/openapi/v3/{path}?hash={documents.hash_of(path)}"}
        assert re.fullmatch("[0-9A-F]{128}", documents.hash_of(path))


def test_every_document_is_whole(documents: OpenApi) -> None:
    for path in documents.index()["paths"]:
        found = document(documents, path)
        known = found.get("components", {}).get("schemas", {})
        wanted = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(found)))
        assert wanted <= known.keys(), path
        assert found["openapi"] == "3.0.0"


def test_documents_agree_with_the_types_that_objects_are_held_to(documents: OpenApi) -> None:
    for name, one in document(documents, "apis/apps/v1")["components"]["schemas"].items():
        assert set(one.get("properties", ())) == set(schema_data()[name].get("properties", ())), name


def test_no_document_of_an_unknown_path(documents: OpenApi) -> None:
    assert documents.document("apis/nothing/v1") is None
    assert documents.hash_of("apis/nothing/v1") == ""


def test_kubectl_finds_that_patches_can_be_validated(documents: OpenApi) -> None:
    """Else it checks manifests itself, by OpenAPI v2."""
    for path in ("api/v1", "apis/apps/v1", V1):
        found = [item.get("patch", {}) for item in document(documents, path)["paths"].values()]
        patches = [one for one in found if one.get("x-kubernetes-action") == "patch"]
        assert patches
        for patch in patches:
            assert "fieldValidation" in {one["name"] for one in patch["parameters"]}
            assert set(patch["x-kubernetes-group-version-kind"]) == {"group", "version", "kind"}


def test_paths_of_a_custom_kind_are_those_that_it_has(documents: OpenApi) -> None:
    paths = set(document(documents, V1)["paths"])
    root = f"/apis/{GROUP}/v1"
    one = f"{root}/namespaces/{{namespace}}/parts/{{name}}"
    assert {f"{root}/parts", one, f"{one}/status", f"{one}/scale"} <= paths
    assert {path for path in paths if "/wides" in path} == {f"{root}/wides", f"{root}/wides/{{name}}"}


def test_a_custom_object_has_what_every_object_has(documents: OpenApi) -> None:
    part = schema(documents, "Part")
    assert part["x-kubernetes-group-version-kind"] == [{"group": GROUP, "kind": "Part", "version": "v1"}]
    assert part["x-kubernetes-selectable-fields"] == [{"fieldPath": "spec.text"}]
    assert part["properties"]["metadata"]["allOf"] == [
        {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
    ]
    assert schema(documents, "PartList")["properties"]["items"]["items"] == {
        "$ref": "#/components/schemas/dev.kgpu.test.crds.v1.Part"
    }


def test_an_int_or_string_says_so(documents: OpenApi) -> None:
    either = [{"type": "integer"}, {"type": "string"}]
    spec = schema(documents, "Limit")["properties"]["spec"]["properties"]
    assert spec["port"] == {"x-kubernetes-int-or-string": True, "anyOf": either}
    assert spec["size"] == {"x-kubernetes-int-or-string": True, "anyOf": either}


def test_an_embedded_object_needs_its_type(documents: OpenApi) -> None:
    template = schema(documents, "Prune")["properties"]["spec"]["properties"]["strict"]
    assert template["required"] == ["kind", "apiVersion"]
    assert set(template["properties"]) == {"apiVersion", "kind", "metadata", "spec"}


@pytest.mark.parametrize(("kind", "words"), [("Apple", "create an Apple"), ("Pear", "create a Pear")])
def test_operations_are_described(kind: str, words: str) -> None:
    api = Api()
    api.install(crd(f"{kind.lower()}s", [version(obj(spec=obj(a=arr({"type": "string"}))))], kind=kind))
    paths = document(OpenApi(api.kinds, api.custom), V1)["paths"]
    post = paths[f"/apis/{GROUP}/v1/namespaces/{{namespace}}/{kind.lower()}s"]["post"]
    assert post["description"] == words
    assert post["operationId"] == f"createCrdsTestKgpuDevV1Namespaced{kind}"
    assert post["tags"] == ["crdsTestKgpuDev_v1"]


def test_a_changed_crd_has_another_document_and_only_its_own() -> None:
    api = Api()
    made = api.install(SCHEMAS["wides"])
    documents = OpenApi(api.kinds, api.custom)
    before, pods = documents.hash_of(V1), documents.hash_of("api/v1")
    assert "b" not in schema(documents, "Wide")["properties"]["spec"]["properties"]
    changed = copy.deepcopy(made)
    changed["metadata"]["generation"] = 2
    own = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    own["properties"]["spec"]["properties"]["b"] = {"type": "integer"}
    api.crds[:] = [changed]
    api.custom._follow(changed)
    assert documents.hash_of(V1) != before
    assert documents.hash_of("api/v1") == pods
    assert schema(documents, "Wide")["properties"]["spec"]["properties"]["b"] == {"type": "integer"}


def test_a_crd_in_a_group_of_the_real_server_joins_its_document() -> None:
    api = Api()
    annotations = {"api-approved.kubernetes.io": "https://example.test/1"}
    api.install(
        crd(
            "things", [version(obj(spec=obj()))], group="node.k8s.io", kind="Thing",
            metadata={"name": "things.node.k8s.io", "annotations": annotations},
        )
    )  # fmt: skip
    found = document(OpenApi(api.kinds, api.custom), "apis/node.k8s.io/v1")
    assert {"/apis/node.k8s.io/v1/things", "/apis/node.k8s.io/v1/runtimeclasses"} <= set(found["paths"])
    assert {"io.k8s.node.v1.Thing", "io.k8s.api.node.v1.RuntimeClass"} <= set(found["components"]["schemas"])


# --- v2 ------------------------------------------------------------------------------------------------------------


def test_the_older_form_has_the_same_kinds(documents: OpenApi) -> None:
    found = json.loads(documents.v2_document(protobuf=False))
    assert found["swagger"] == "2.0"
    definitions = found["definitions"]
    assert set(recorded.recording().schemas) <= set(definitions)
    assert definitions["dev.kgpu.test.crds.v1.Part"]["properties"]["spec"]["properties"] == {
        "replicas": {"maximum": 100, "type": "integer"},
        "text": {"type": "string"},
    }
    wanted = set(re.findall(r'"#/definitions/([^"]+)"', json.dumps(found)))
    assert wanted <= definitions.keys()
    assert "#/components" not in json.dumps(found)


def test_the_older_form_leaves_open_what_it_cannot_say(documents: OpenApi) -> None:
    definitions = json.loads(documents.v2_document(protobuf=False))["definitions"]
    spec = definitions["dev.kgpu.test.crds.v1.Limit"]["properties"]["spec"]["properties"]
    assert spec["maybe"] == {}
    assert spec["port"] == {"x-kubernetes-int-or-string": True}


OPEN = {"x-kubernetes-preserve-unknown-fields": True}
MAYBE = {"type": "string", "nullable": True}


@pytest.mark.parametrize(
    ("given", "published"),
    [
        # What takes anything says so by saying nothing: kubectl takes properties for all there can be.
        ({"type": "object", **OPEN, "description": "Open", "properties": {"a": {"type": "string"}}}, {"type": "object"}),
        (
            obj(spec={"type": "object", "description": "Spec", **OPEN, "properties": {"a": {"type": "string"}}}),
            {"type": "object", "properties": {"spec": {"description": "Spec", **OPEN}}},
        ),
        (
            obj(spec={**obj(maybe=MAYBE, must={"type": "string"}), "required": ["maybe", "must"]}),
            {
                "type": "object",
                "properties": {
                    "spec": {
                        "type": "object", "properties": {"maybe": {}, "must": {"type": "string"}}, "required": ["must"]
                    }
                },
            },
        ),
        (
            obj(spec={"type": "string", "enum": ["a"], "pattern": "a", "default": "a", "anyOf": [{"minLength": 1}]}),
            {"type": "object", "properties": {"spec": {"type": "string", "enum": ["a"], "pattern": "a"}}},
        ),
        (
            obj(spec={"type": "array", **OPEN, "items": {"type": "string"}}),
            {"type": "object", "properties": {"spec": OPEN}},
        ),
    ],
)  # fmt: skip
def test_a_custom_kind_in_the_older_form(given: dict[str, Any], published: dict[str, Any]) -> None:
    api = Api()
    api.install(crd("shows", [version(given)], kind="Show"))
    documents = OpenApi(api.kinds, api.custom)
    found = json.loads(documents.v2_document(protobuf=False))["definitions"]["dev.kgpu.test.crds.v1.Show"]
    common = {name: found.get("properties", {}).pop(name, None) for name in ("apiVersion", "kind", "metadata")}
    assert all(common.values()) == ("properties" in published)
    assert found.pop("x-kubernetes-group-version-kind") == [{"group": GROUP, "kind": "Show", "version": "v1"}]
    assert found == published


def test_the_hash_of_the_older_form_follows_its_kinds() -> None:
    api = Api()
    documents = OpenApi(api.kinds, api.custom)
    before = documents.v2_hash()
    assert documents.v2_hash() == before
    api.install(crd("shows", [version(obj())], kind="Show"))
    assert documents.v2_hash() != before


def test_the_older_form_as_protobuf_says_the_same(documents: OpenApi) -> None:
    definitions = json.loads(documents.v2_document(protobuf=False))["definitions"]
    (raw,) = fields(documents.v2_document(protobuf=True))[9]
    found = {}
    for member in fields(raw)[1]:
        (name,), (value,) = (fields(member)[number] for number in (1, 2))
        found[name.decode()] = value
    assert set(found) == set(definitions)
    container = fields(found["io.k8s.api.core.v1.Container"])
    expected = definitions["io.k8s.api.core.v1.Container"]
    assert container[4] == [expected["description"].encode()]
    assert [one.decode() for one in container[19]] == expected["required"]
    names = [fields(one)[1][0].decode() for one in fields(container[25][0])[1]]
    assert names == list(expected["properties"])


def fields(data: bytes) -> dict[int, list[bytes]]:
    """The fields of a protobuf message that have a length, by number."""
    found: dict[int, list[bytes]] = {}
    at = 0
    while at < len(data):
        key, at = number(data, at)
        value, at = number(data, at)
        if key & 7 == 2:
            found.setdefault(key >> 3, []).append(data[at : at + value])
            at += value
    return found


def number(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        found |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return found, at
