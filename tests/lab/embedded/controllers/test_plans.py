"""The controllers' decisions alone: properties that hold for every input."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.kube.port import Object
from kgpu.lab.embedded.controllers.deployment import plan
from kgpu.lab.embedded.controllers.deployment_plan import ChangeSet, CreateSet, resolve, surge_and_unavailable
from kgpu.lab.embedded.controllers.job_failures import Failures
from kgpu.lab.embedded.controllers.job_indexes import first_missing, parse, written
from kgpu.lab.embedded.controllers.meta import merge_patch, selects
from kgpu.lab.embedded.controllers.node_plan import new_taints
from kgpu.lab.embedded.controllers.pods import deletion_order
from kgpu.lab.embedded.controllers.recorder import Correlator, RecordedEvent
from kgpu.lab.embedded.controllers.taints import stays_for

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
AMOUNT = st.one_of(st.integers(0, 5), st.integers(0, 100).map(lambda n: f"{n}%"))


def template(image: str) -> Object:
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}


def rs(name: str, image: str, size: int, available: int, wanted: int) -> Object:
    return {
        "metadata": {
            "name": name, "uid": name, "generation": 1, "creationTimestamp": f"2026-01-01T00:00:0{len(name)}Z",
            "annotations": {"deployment.kubernetes.io/desired-replicas": str(wanted)},
        },
        "spec": {"replicas": size, "template": template(image)},
        "status": {"replicas": size, "readyReplicas": available, "availableReplicas": available, "observedGeneration": 1},
    }  # fmt: skip


@given(st.integers(1, 20), AMOUNT, AMOUNT, st.data())
def test_a_rolling_update_keeps_within_surge_and_availability(
    wanted: int, surge: Any, unavailable: Any, data: st.DataObject
):
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    deployment: Object = {
        "metadata": {"name": "web", "uid": "d", "generation": 1},
        "spec": {"replicas": wanted, "template": template("new"), "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}},
    }  # fmt: skip
    most, least = surge_and_unavailable(deployment)
    old_size = data.draw(st.integers(0, wanted + most))
    new_size = data.draw(st.integers(0, wanted + most - old_size))
    sets = [
        rs("o", "old", old_size, data.draw(st.integers(0, old_size)), wanted),
        rs("nn", "new", new_size, data.draw(st.integers(0, new_size)), wanted),
    ]
    sizes = {"o": old_size, "nn": new_size}
    available = {one["metadata"]["name"]: one["status"]["availableReplicas"] for one in sets}
    for action in plan(deployment, sets, False, NOW).actions:
        assert not isinstance(action, CreateSet)
        if isinstance(action, ChangeSet) and "spec" in action.change:
            name = action.rs["metadata"]["name"]
            fewer = sizes[name] - action.change["spec"]["replicas"]
            unhealthy = sizes[name] - available[name]
            sizes[name] -= fewer
            available[name] -= max(0, fewer - unhealthy)
    assert sum(sizes.values()) <= wanted + most
    before = sum(one["status"]["availableReplicas"] for one in sets)
    assert sum(available.values()) >= min(before, wanted - least)


@given(AMOUNT, st.integers(0, 1000))
def test_percentages_round_in_both_directions(value: Any, total: int):
    up, down = resolve(value, total, up=True), resolve(value, total, up=False)
    assert 0 <= up - down <= 1
    if isinstance(value, str):
        assert down * 100 <= int(value[:-1]) * total <= up * 100


@given(st.sets(st.integers(0, 60)))
def test_indexes_are_read_back_as_written(indexes: set[int]):
    assert parse(written(indexes), 61) == indexes


@pytest.mark.parametrize(
    ("indexes", "text"), [({0, 1, 2}, "0-2"), ({1, 2}, "1,2"), ({0, 2, 3, 4, 9}, "0,2-4,9"), (set(), "")]
)
def test_indexes_are_written_as_the_real_controller_does(indexes: set[int], text: str):
    assert written(indexes) == text


@given(st.sets(st.integers(0, 30)), st.integers(0, 31), st.integers(1, 31))
def test_the_lowest_missing_indexes_come_first(taken: set[int], count: int, completions: int):
    found = first_missing(taken, count, completions)
    missing = [one for one in range(completions) if one not in taken]
    assert found == missing[:count]


@given(st.integers(1, 20))
def test_the_pause_after_failures_doubles_up_to_ten_minutes(count: int):
    assert Failures(count, NOW).pause(NOW) == min(600.0, 10.0 * 2 ** (count - 1))


JSON = st.recursive(
    st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=3)),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.text(max_size=3), JSON, max_size=4)


def merged(old: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        result = (
            {k: v for k, v in result.items() if k != key}
            if value is None
            else {**result, key: merged(result.get(key), value)}
        )
    return result


@given(OBJECT, OBJECT)
def test_a_merge_patch_leads_from_one_to_the_other(old: Object, new: Object):
    assert merged(old, merge_patch(old, new)) == new


def pod(name: str, *, node: str = "n", phase: str = "Running", ready: bool = True, **metadata: Any) -> Object:
    at = "2026-01-01T11:00:00Z"
    found = {"type": "Ready", "status": str(ready), "lastTransitionTime": at}
    return {
        "metadata": {"name": name, "uid": name, "creationTimestamp": at, **metadata},
        "spec": {"nodeName": node},
        "status": {"phase": phase, "conditions": [found]},
    }


def test_pods_are_deleted_in_the_real_order():
    cheap = {"controller.kubernetes.io/pod-deletion-cost": "-5"}
    pods = [
        pod("healthy", node="alone"),
        pod("doubled", node="shared"),
        pod("cheap", node="alone", annotations=cheap),
        pod("unready", ready=False),
        pod("pending", phase="Pending", ready=False),
        pod("unassigned", node="", phase="Pending", ready=False),
    ]
    related = [*pods, pod("other", node="shared"), pod("another", node="shared")]
    order = [one["metadata"]["name"] for one in deletion_order(pods, related, NOW)]
    assert order == ["unassigned", "pending", "unready", "cheap", "doubled", "healthy"]


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_selectors(selector: Object | None, matches: bool):
    assert selects(selector, {"a": "1"}) is matches


def test_taints_follow_the_conditions_and_leave_others_alone():
    other = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    conditions = [{"type": "Ready", "status": "False"}, {"type": "DiskPressure", "status": "True"}]
    node: Object = {
        "metadata": {},
        "spec": {"taints": [other], "unschedulable": True},
        "status": {"conditions": conditions},
    }
    taints = new_taints(node, NOW, evict=True)
    assert taints is not None
    assert [(one["key"].split("/")[1], one["effect"]) for one in taints] == [
        ("gpu", "NoSchedule"), ("not-ready", "NoSchedule"), ("disk-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"), ("not-ready", "NoExecute"),
    ]  # fmt: skip
    settled = {**node, "spec": {**node["spec"], "taints": taints}}
    assert new_taints(settled, NOW, evict=True) is None
    healthy = {**settled, "spec": {"taints": taints}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert new_taints(healthy, NOW, evict=True) == [other]


def test_how_long_a_pod_may_stay():
    taints = [{"key": "a", "effect": "NoExecute"}, {"key": "b", "effect": "NoExecute"}]
    some = [
        {"key": "a", "operator": "Exists", "tolerationSeconds": 30},
        {"key": "b", "operator": "Exists", "tolerationSeconds": 5},
    ]
    assert stays_for(taints, some) == 5
    assert stays_for(taints, some[:1]) == 0
    assert stays_for(taints, [{"operator": "Exists"}]) is None


def test_similar_events_are_combined_and_too_many_dropped():
    correlator = Correlator()
    about = {"metadata": {"name": "rs", "uid": "u"}}
    admitted = [
        correlator.admit(RecordedEvent("c", about, "Warning", "FailedCreate", f"pod {number}"), 0.0)
        for number in range(40)
    ]
    texts = [found[1] for found in admitted if found]
    assert texts[:9] == [f"pod {number}" for number in range(9)]
    assert texts[9] == "(combined from similar events): pod 9"
    assert len(texts) == 25
