"""Server-side apply and the account of who owns what, on histories whose outcome the real server has shown."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import names
from kgpu.lab.embedded.kinds import ApiKind, Kinds, schema_data
from kgpu.lab.embedded.patch.apply import server_side_apply
from kgpu.lab.embedded.patch.fieldset import difference, intersection, parsed, paths, union, without_below
from kgpu.lab.embedded.patch.managed import after_write, reset_fields, unchanged
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import ApiError

NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-02T00:00:00Z"
CUSTOM = SchemaNode(
    {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "replicas": {"type": "integer"},
                    "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                    "ports": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["port", "protocol"],
                        "items": {
                            "type": "object",
                            "properties": {
                                "port": {"type": "integer"},
                                "protocol": {"type": "string", "default": "TCP"},
                                "name": {"type": "string"},
                            },
                        },
                    },
                    "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        },
    },
    {},
)


def widget(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "x/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "n"}, "spec": spec}


def apply(live: Any, manager: str, force: bool = False, **spec: Any) -> dict[str, Any]:
    before = copy.deepcopy(live)
    result = server_side_apply(live, widget(**spec), CUSTOM, manager=manager, force=force, api_version="x/v1", now=NOW)
    assert live == before
    return result


def owned(obj: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(one["manager"], one["operation"]): one["fieldsV1"] for one in obj["metadata"].get("managedFields", [])}


def test_what_a_manager_stops_applying_goes_unless_others_own_it() -> None:
    first = apply(None, "a", replicas=1, set=["x", "y"])
    second = apply(first, "b", replicas=1, set=["y"])
    third = apply(second, "a")
    assert third["spec"] == {"replicas": 1, "set": ["y"]}
    assert owned(third) == {
        ("a", "Apply"): {"f:spec": {}},
        ("b", "Apply"): {"f:spec": {"f:replicas": {}, "f:set": {'v:"y"': {}}}},
    }


def test_keys_have_defaults() -> None:
    live = apply(None, "a", ports=[{"port": 80, "name": "x"}])
    assert owned(live)["a", "Apply"] == {
        "f:spec": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:name": {}, "f:port": {}}}}
    }
    same = apply(live, "b", ports=[{"port": 80, "protocol": "TCP"}])
    assert same["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "name": "x"}]


def test_one_conflict_and_several() -> None:
    live = apply(None, "a", replicas=1, ports=[{"port": 80, "name": "x"}])
    with pytest.raises(ApiError) as caught:
        apply(live, "b", replicas=2)
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "a": .spec.replicas'
    assert caught.value.details == {
        "causes": [{"reason": "FieldManagerConflict", "message": 'conflict with "a"', "field": ".spec.replicas"}]
    }
    with pytest.raises(ApiError) as caught:
        apply(live, "b", replicas=2, ports=[{"port": 80, "name": "y"}])
    assert caught.value.message == (
        'Apply failed with 2 conflicts: conflicts with "a":\n'
        '- .spec.replicas\n- .spec.ports[port=80,protocol="TCP"].name'
    )
    forced = apply(live, "b", force=True, replicas=2)
    assert forced["spec"]["replicas"] == 2
    assert ("f:replicas" in owned(forced)["a", "Apply"]["f:spec"]) is False


def test_duplicate_keys_and_unknown_fields_are_refused_as_the_real_server_does() -> None:
    with pytest.raises(ApiError) as caught:
        apply(None, "a", ports=[{"port": 80}, {"port": 80}])
    assert caught.value.code == 500
    assert caught.value.message == (
        "failed to create typed patch object (n/w; x/v1, Kind=Widget): "
        '.spec.ports: duplicate entries for key [port=80,protocol="TCP"]'
    )
    with pytest.raises(ApiError, match=r"\.spec\.foo: field not declared in schema"):
        apply(None, "a", foo=1)


def test_managed_fields_can_not_be_applied() -> None:
    config = widget()
    config["metadata"]["managedFields"] = []
    with pytest.raises(ApiError, match=r"^metadata\.managedFields must be nil$") as caught:
        server_side_apply(None, config, CUSTOM, manager="a", api_version="x/v1", now=NOW)
    assert caught.value.code == 400


def test_a_shared_owner_who_changes_nothing_has_no_time() -> None:
    live = apply(None, "a", replicas=1)
    shared = server_side_apply(live, widget(replicas=1), CUSTOM, manager="b", api_version="x/v1", now=LATER)
    times = {one["manager"]: one.get("time") for one in shared["metadata"]["managedFields"]}
    assert times == {"a": NOW, "b": None}
    again = server_side_apply(live, widget(replicas=1), CUSTOM, manager="a", api_version="x/v1", now=LATER)
    assert again == live
    assert unchanged(live, again)


def test_true_is_not_one_where_the_form_is_open() -> None:
    live = apply(None, "a", open={"x": 1})
    new = copy.deepcopy(live)
    new["spec"]["open"]["x"] = True
    account = after_write(live, new, CUSTOM, manager="b", api_version="x/v1", now=LATER)
    assert [one["manager"] for one in account] == ["b"]


POD = SchemaNode({"$ref": "io.k8s.api.core.v1.Pod"}, schema_data())


def test_a_created_object_is_compared_with_an_empty_one_of_its_type() -> None:
    new = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "resources": {}}]},
        "status": {},
    }
    account = after_write(None, new, POD, manager="m", api_version="v1", now=NOW)
    assert [one["fieldsV1"] for one in account] == [
        {
            "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:spec": {"f:containers": {'k:{"name":"c"}': {".": {}, "f:name": {}, "f:resources": {}}}},
        }
    ]


def test_at_most_ten_updaters() -> None:
    live = widget(replicas=0)
    live["metadata"]["managedFields"] = after_write(None, live, CUSTOM, manager="m", api_version="x/v1", now=NOW)
    for number in range(14):
        new = copy.deepcopy(live)
        new["metadata"].setdefault("labels", {})[f"l{number}"] = "x"
        now = f"2026-01-01T00:00:{number + 1:02}Z"
        new["metadata"]["managedFields"] = after_write(
            live, new, CUSTOM, manager=f"m{number}", api_version="x/v1", now=now
        )
        live = new
    managers = [one["manager"] for one in live["metadata"]["managedFields"]]
    assert len(managers) == 10
    assert managers[0] == "ancient-changes"


def test_an_empty_list_of_owners_forgets_them() -> None:
    live = apply(None, "a", replicas=1)
    new = copy.deepcopy(live)
    new["metadata"]["managedFields"] = []
    assert after_write(live, new, CUSTOM, manager="b", api_version="x/v1", now=LATER) == []
    del new["metadata"]["managedFields"]
    assert (
        after_write(live, new, CUSTOM, manager="b", api_version="x/v1", now=LATER) == live["metadata"]["managedFields"]
    )


def test_status_owns_nothing_of_the_spec() -> None:
    kinds = Kinds()
    deployments = kinds.need("apps", "deployments")
    assert reset_fields(deployments) == (("status",),)
    assert reset_fields(deployments, "status") == (("spec",), ("metadata", "labels"))
    assert reset_fields(kinds.need("", "configmaps")) == ()
    custom = ApiKind(group="x", version="v1", plural="ws", kind="W", custom=True, subresources={"status": {}})
    assert reset_fields(custom, "status") == (("spec",),)


def test_kubectl_takes_over_from_its_client_side_apply() -> None:
    config = widget(replicas=1)
    live = copy.deepcopy(config)
    live["metadata"]["annotations"] = {names.LAST_APPLIED: json.dumps(config)}
    live["metadata"]["managedFields"] = after_write(
        None, live, CUSTOM, manager="kubectl-client-side-apply", api_version="x/v1", now=NOW
    )
    new = apply(live, "kubectl", replicas=3)
    assert new["spec"]["replicas"] == 3
    assert json.loads(new["metadata"]["annotations"][names.LAST_APPLIED])["spec"] == {"replicas": 3}
    with pytest.raises(ApiError, match=r'conflict with "kubectl-client-side-apply" using x/v1: \.spec\.replicas'):
        apply(live, "other", replicas=3)


elements = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"s"', "v:1"])
wire = st.recursive(
    st.just({}), lambda below: st.dictionaries(elements | st.just("."), below, max_size=3), max_leaves=8
)


def as_set(fields: Any) -> set[Any]:
    return set(paths(fields))


@given(wire, wire)
def test_sets_are_sets(left: Any, right: Any) -> None:
    one, two = parsed(left), parsed(right)
    assert one is not None
    assert two is not None
    assert as_set(union(one, two)) == as_set(one) | as_set(two)
    assert as_set(difference(one, two)) == as_set(one) - as_set(two)
    assert as_set(intersection(one, two)) == as_set(one) & as_set(two)
    above = as_set(two)
    assert as_set(without_below(one, two)) == {
        path for path in as_set(one) if not any(path[:length] in above for length in range(1, len(path) + 1))
    }
