"""Slices and claims of all versions of the API give the same views; hostile ones give some."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import pytest

from kgpu.base.quantity import Quantity
from kgpu.fit.devices import read
from kgpu.fit.devices.model import AttributeValue, DeviceKey
from tests.fit.devices.generate import Clusters, Json

DETAILS: Final[Json] = {
    "attributes": {
        "model": {"string": "H100"},
        "index": {"int": 1},
        "fast": {"bool": False},
        "v": {"version": "1.0.0"},
    },
    "capacity": {"memory": {"value": "80Gi"}},
    "taints": [{"key": "sick", "effect": "NoSchedule"}],
    "consumesCounters": [{"counterSet": "s", "counters": {"x": {"value": "1"}}}],
    "allowMultipleAllocations": True,
}


def slice_of(*devices: Json, **spec: Any) -> Json:
    pool = {"name": "p", "generation": 3, "resourceSliceCount": 2}
    return {"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": pool, "devices": list(devices), **spec}}


def fields(value: Any) -> Any:
    return dataclasses.asdict(value)


def rule_of(selector: Any, name: str = "r") -> Json:
    taint = {"key": "ruled", "value": name, "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    return {
        "metadata": {"name": name},
        "spec": {"taint": taint} | ({} if selector is None else {"deviceSelector": selector}),
    }


@pytest.mark.parametrize(
    ("selector", "devices"),
    [
        ({}, "ab"),
        ({"driver": "d"}, "ab"),
        ({"driver": "e"}, ""),
        ({"pool": "p", "device": "b"}, "b"),
        ({"driver": "d", "pool": "q"}, ""),
        ({"device": "c"}, ""),
        (None, "ab"),  # the scheduler's weak spot
        ("hostile", "ab"),
    ],
)
def test_rules_taint_the_devices_that_they_select_behind_their_own_taints(selector: Any, devices: str) -> None:
    piece = read.device_slice(slice_of({"name": "a", **DETAILS}, {"name": "b"}))
    rule = read.taint_rule(rule_of(selector))
    assert piece is not None
    assert rule is not None
    assert rule.selects == isinstance(selector, dict)
    found = read.tainted(piece, [rule])
    for before, device in zip(piece.devices, found.devices, strict=True):
        ruled = (rule.taint,) if device.name in devices else ()
        assert device.taints == (*before.taints, *ruled)
    assert read.taint_rule({"spec": {}}) is None


def test_a_device_reads_the_same_in_all_versions() -> None:
    newest = read.device_slice(slice_of({"name": "a", **DETAILS}, nodeName="node-1"))
    oldest = read.device_slice(slice_of({"name": "a", "basic": DETAILS}, nodeName="node-1"))
    assert newest is not None
    assert oldest is not None
    assert fields(newest) == fields(oldest)
    device = newest.devices[0]
    assert device.attributes == {
        "model": AttributeValue("string", "H100"),
        "index": AttributeValue("int", 1),
        "fast": AttributeValue("bool", False),
        "v": AttributeValue("version", "1.0.0"),
    }
    assert device.capacity["memory"].value == Quantity.parse("80Gi")
    assert device.shareable
    assert newest.device_key(device) == DeviceKey("d", "p", "a")
    assert (newest.generation, newest.slice_count, newest.reach.node_name) == (3, 2, "node-1")


def test_a_request_reads_the_same_in_all_versions() -> None:
    ask = {
        "deviceClassName": "gpu",
        "selectors": [{"cel": {"expression": "true"}}],
        "count": 2,
        "adminAccess": True,
        "tolerations": [{"key": "sick", "operator": "Exists"}],
    }
    newest = read.claim_demand("team", "c", {"requests": [{"name": "r", "exactly": ask}]})
    oldest = read.claim_demand("team", "c", {"requests": [{"name": "r", **ask}]})
    assert fields(newest) == fields(oldest)
    found = newest.requests[0].exactly
    assert found is not None
    assert (found.name, found.mode, found.count, found.admin) == ("r", "ExactCount", 2, True)


def test_choices_have_no_admin_access() -> None:
    choices = [{"name": "c", "deviceClassName": "gpu", "adminAccess": True}]
    found = read.claim_demand("team", "c", {"requests": [{"name": "r", "firstAvailable": choices}]})
    assert found.requests[0].exactly is None
    assert [(choice.name, choice.admin, choice.count) for choice in found.requests[0].choices] == [("c", None, 1)]


def test_what_is_held_leaves_out_admin_access() -> None:
    results = [
        {"request": "r", "driver": "d", "pool": "p", "device": "a"},
        {"request": "s", "driver": "d", "pool": "p", "device": "b", "adminAccess": True},
        {"request": "t", "driver": "d", "pool": "p", "device": "c", "shareID": "1", "consumedCapacity": {"x": "2"}},
    ]
    claim = {
        "metadata": {"name": "c", "namespace": "team"},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    taken = read.taken_devices([claim, {"metadata": {"name": "other"}}])
    assert [(one.key.device, one.claim, one.share_id) for one in taken] == [("a", "team/c", ""), ("c", "team/c", "1")]
    assert taken[1].consumed == {"x": Quantity.parse("2")}


def test_what_is_no_quantity_is_told() -> None:
    piece = read.device_slice(slice_of({"name": "a", "capacity": {"memory": {"value": "80GB"}}}))
    assert piece is not None
    assert piece.problems == ("capacity memory of device a is not a quantity",)
    ask = {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "much"}}}
    demand = read.claim_demand("team", "c", {"requests": [{"name": "r", "exactly": ask}]})
    assert demand.problems == ("capacity memory of request r is not a quantity",)


@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, [None], {"a": None}, True])
def test_junk_gives_a_view(junk: Any) -> None:
    case = Clusters("junk").case()
    for obj in case["Slices"]:
        for key in ("pool", "devices", "sharedCounters", "nodeSelector", "driver"):
            assert read.device_slice({**obj, "spec": {**obj["spec"], key: junk}}) is not None
        for device in obj["spec"].get("devices", ()):
            for key in ("attributes", "capacity", "taints", "consumesCounters", "basic", "bindingConditions"):
                assert read.device_slice(slice_of({**device, key: junk})) is not None
    for obj in case["Claims"]:
        devices = obj["spec"]["devices"]
        for key in ("requests", "constraints", "config"):
            read.claim_demand("team", "c", {**devices, key: junk})
        for request in devices["requests"]:
            for key in ("exactly", "firstAvailable", "name"):
                read.claim_demand("team", "c", {"requests": [{**request, key: junk}]})
    read.class_rules("c", {"selectors": junk, "config": junk})
    read.taken_devices([{"status": {"allocation": {"devices": {"results": junk}}}}, {"status": junk}])
    assert read.device_slice({"metadata": junk if isinstance(junk, dict) else {}}) is None
