"""JSON, merge and strategic merge patches: results, and the real server's refusals word for word."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.patch import JSON, MERGE, STRATEGIC, apply_patch, unsupported
from kgpu.lab.embedded.schema import ANYTHING, SchemaNode
from kgpu.lab.embedded.status import ApiError

DEPLOYMENT = SchemaNode({"$ref": "io.k8s.api.apps.v1.Deployment"}, schema_data())
CONTAINER = {
    "name": "foo",
    "image": "foo",
    "imagePullPolicy": "Always",
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
LIVE: dict[str, Any] = {
    "metadata": {"name": "d", "labels": {"app": "d"}, "finalizers": ["a/x", "b/x", "c/x"]},
    "spec": {
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"spec": {"containers": [CONTAINER], "tolerations": [{"key": "a"}, {"key": "b"}]}},
    },
}
INVALID = "the server rejected our request due to an error in our request"


def pod_spec(**fields: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": fields}}}


def strategic(patch: Any, live: Any = LIVE) -> Any:
    before = copy.deepcopy((live, patch))
    result = apply_patch(STRATEGIC, live, patch, DEPLOYMENT)
    assert (live, patch) == before
    return result


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab~/-1", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/01", max_size=2), inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(st.text("ab~/01", max_size=2), json_values, max_size=4)


@given(documents, documents)
def test_json_patch_that_turns_one_document_into_another(left: Any, right: Any) -> None:
    patch = jsonpatch.make_patch(left, right).patch
    before = copy.deepcopy(left)
    assert apply_patch(JSON, left, patch, ANYTHING) == right
    assert left == before


@given(documents, documents)
def test_merge_patch_is_idempotent_and_leaves_its_arguments(live: Any, patch: Any) -> None:
    before = copy.deepcopy((live, patch))
    once = apply_patch(MERGE, live, patch, ANYTHING)
    assert apply_patch(MERGE, once, patch, ANYTHING) == once
    assert (live, patch) == before


@pytest.mark.parametrize(
    ("patch", "result"),
    [
        ([{"op": "replace", "path": "/new", "value": 1}], {"list": [1, 2, 3], "a": {"b": 1}, "new": 1}),
        ([{"op": "add", "path": "/list/-1", "value": 9}], {"list": [1, 2, 3, 9], "a": {"b": 1}}),
        ([{"op": "remove", "path": "/list/-1"}], {"list": [1, 2], "a": {"b": 1}}),
        ([{"op": "test", "path": "/nothing", "value": None}], {"list": [1, 2, 3], "a": {"b": 1}}),
        ([{"op": "copy", "from": "/a", "path": "/c"}, {"op": "add", "path": "/c/d", "value": 1}],
         {"list": [1, 2, 3], "a": {"b": 1}, "c": {"b": 1, "d": 1}}),
        ([{"op": "move", "from": "/a/b", "path": "/list/0"}], {"list": [1, 1, 2, 3], "a": {}}),
        ([{"op": "replace", "path": "", "value": {"x": 1}}], {"x": 1}),
    ],
)  # fmt: skip
def test_json_patch_beyond_the_rfc(patch: Any, result: Any) -> None:
    assert apply_patch(JSON, {"list": [1, 2, 3], "a": {"b": 1}}, patch, ANYTHING) == result


@pytest.mark.parametrize(
    ("patch", "code", "message"),
    [
        ([{"op": "test", "path": "/list/0", "value": 2}], 422, INVALID),
        ([{"op": "test", "path": "/list/0", "value": True}], 422, INVALID),
        ([{"op": "remove", "path": "/x"}], 422, INVALID),
        ([{"op": "remove", "path": "/list/x"}], 422, INVALID),
        ([{"op": "add", "path": "/list/4", "value": 1}], 422, INVALID),
        ([{"op": "add", "path": "/x/y/z", "value": 1}], 422, INVALID),
        ([{"op": "add", "path": "x", "value": 1}], 422, INVALID),
        ([{"op": "add", "value": 1}], 422, INVALID),
        ([{"op": "frob", "path": "/x"}], 422, INVALID),
        ([{"path": "/x"}], 422, INVALID),
        ([{"op": "replace", "path": "", "value": 1}], 422, INVALID),
        ({"op": "add"}, 400, "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        ([3], 400, "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        ([{"op": 1}], 400, "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string"),
        ([{"op": "add", "path": "/x"}] * 10001, 413,
         "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"),
    ],
)  # fmt: skip
def test_json_patch_refused(patch: Any, code: int, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        apply_patch(JSON, {"list": [1, 2, 3]}, patch, ANYTHING)
    assert (caught.value.code, caught.value.message) == (code, message)


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ([1], "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"),
        (3, "error decoding patch: json: cannot unmarshal number into Go value of type map[string]interface {}"),
        (None, "Invalid JSON Patch"),
    ],
)
def test_merge_patch_refused(patch: Any, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        apply_patch(MERGE, {}, patch, ANYTHING)
    assert (caught.value.code, caught.value.message) == (400, message)


LISTED = (
    "list element types are not identical: [[map[image:foo imagePullPolicy:Always name:foo resources:map[] "
    "terminationMessagePath:/dev/termination-log terminationMessagePolicy:File]] [x]]"
)


@pytest.mark.parametrize(
    ("patch", "code", "message"),
    [
        ([1], 400, "json: cannot unmarshal array into Go value of type map[string]interface {}"),
        (pod_spec(containers=[{"image": "x"}]), 500, "map: map[image:x] does not contain declared merge key: name"),
        (pod_spec(containers=[{"name": "foo", "$patch": "merge"}]), 500, "merging lists cannot yet be specified in the patch"),
        (pod_spec(containers=[{"name": "foo", "$patch": "frob"}]), 500, "unknown patch type: frob in map: map[$patch:frob name:foo]"),
        (pod_spec(containers=["x"]), 500, LISTED),
        (pod_spec(**{"$patch": "bla"}), 500, "unknown patch type: bla in map: map[$patch:bla]"),
        (pod_spec(**{"$setElementOrder/containers": "a"}), 500, "expected a []interface {}, but received a string"),
        (pod_spec(**{"$setElementOrder": []}), 400, "invalid patch format of setElementOrder list"),
        (pod_spec(**{"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "foo"}]}), 500,
         "The order in patch list:\n[map[name:foo]]\n doesn't match $setElementOrder list:\n[map[name:a]]\n"),
        (pod_spec(**{"$setElementOrder/containers": [{"nam": "a"}], "containers": [{"name": "foo"}]}), 500,
         "map: map[nam:a] does not contain declared merge key: name"),
        ({"metadata": {"$deleteFromPrimitiveList": ["a"]}}, 400, "invalid patch format of primitive list"),
        ({"spec": {"strategy": {"$retainKeys": "a"}}}, 400, "invalid patch format of retainKeys"),
        ({"spec": {"strategy": {"$retainKeys": ["type"], "rollingUpdate": {"maxSurge": 1}}}}, 400,
         "invalid patch format of retainKeys"),
    ],
)  # fmt: skip
def test_strategic_patch_refused(patch: Any, code: int, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        strategic(patch)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_strategic_merges_containers_by_name_and_keeps_their_order() -> None:
    patch = pod_spec(
        containers=[{"name": "new", "image": "n"}, {"name": "foo", "image": "bar", "imagePullPolicy": None}]
    )
    containers = strategic(patch)["spec"]["template"]["spec"]["containers"]
    assert [one["name"] for one in containers] == ["new", "foo"]
    assert containers[1]["image"] == "bar"
    assert "imagePullPolicy" not in containers[1]
    assert containers[1]["terminationMessagePolicy"] == "File"


def test_strategic_set_element_order() -> None:
    live = strategic(pod_spec(containers=[{"name": name, "image": "i"} for name in "abc"]))
    patch = pod_spec(
        **{"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "c", "image": "j"}]}
    )
    containers = strategic(patch, live)["spec"]["template"]["spec"]["containers"]
    assert [one["name"] for one in containers] == ["b", "c", "a", "foo"]
    assert next(one for one in containers if one["name"] == "c")["image"] == "j"


@pytest.mark.parametrize(
    ("patch", "where", "result"),
    [
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b/x"]}}, ("metadata", "finalizers"), ["a/x", "c/x"]),
        ({"metadata": {"finalizers": ["d/x", "a/x"]}}, ("metadata", "finalizers"), ["d/x", "a/x", "b/x", "c/x"]),
        ({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}, ("spec", "strategy"), {"type": "Recreate"}),
        ({"spec": {"strategy": {"$patch": "replace", "type": "Recreate"}}}, ("spec", "strategy"), {"type": "Recreate"}),
        ({"spec": {"strategy": {"$patch": "delete"}}}, ("spec", "strategy"), {}),
        ({"metadata": {"labels": {"app": None, "x": "y"}}}, ("metadata", "labels"), {"x": "y"}),
        (pod_spec(containers=[{"name": "foo", "$patch": "delete"}, {"name": "z"}]), ("spec", "template", "spec", "containers"), [{"name": "z"}]),
        (pod_spec(containers=[{"$patch": "replace"}, {"name": "z"}]), ("spec", "template", "spec", "containers"), [{"name": "z"}]),
        (pod_spec(tolerations=[{"key": "c"}]), ("spec", "template", "spec", "tolerations"), [{"key": "c"}]),
        (pod_spec(nodeSelector={"a": "b", "c": None}), ("spec", "template", "spec", "nodeSelector"), {"a": "b"}),
        (None, ("spec", "strategy", "type"), "RollingUpdate"),
    ],
)  # fmt: skip
def test_strategic_results(patch: Any, where: tuple[str, ...], result: Any) -> None:
    found = strategic(patch)
    for key in where:
        found = found[key]
    assert found == result


def test_content_type_that_nobody_knows() -> None:
    with pytest.raises(ApiError, match="415: Unsupported Media Type"):
        apply_patch("text/plain", {}, {}, ANYTHING)
    assert unsupported(custom=True).message == (
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    )
