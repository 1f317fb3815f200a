"""NVIDIADrivers: which node is whose, and what is wrong with which."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.operator.drivers import Assignment, assign
from kgpu.operator.model import NvidiaDriver, ObservedCluster
from kgpu.operator.nodes import read_node
from kgpu.operator.plan import plan
from tests.operator.upgrades.fleet import pod_of
from tests.operator.world import SETTINGS, change_of, driver, node_object, policy, settle

POOL = {"nodeSelector": {"pool": "special"}}
BY_CRD = {"driver": {"enabled": True, "useNvidiaDriverCRD": True}}
NODES = tuple(
    read_node(node_object(name, labels=labels))
    for name, labels in (("n1", {}), ("n2", {"pool": "special"}), ("n3", {"pool": "special", "rack": "r7"}))
)


def owners(*drivers: NvidiaDriver) -> Any:
    return assign(drivers, NODES).owner


def test_a_specific_one_wins_over_the_default() -> None:
    found = owners(driver("all", spec={"default": True}), driver("special", spec=POOL))
    assert found == {"n1": "all", "n2": "special", "n3": "special"}


def test_without_a_default_the_others_have_none() -> None:
    assert owners(driver("special", spec=POOL)) == {"n2": "special", "n3": "special"}


def test_one_without_a_selector_is_for_all() -> None:
    assert owners(driver("all", spec={})) == {"n1": "all", "n2": "all", "n3": "all"}


def test_one_that_is_being_deleted_has_no_nodes() -> None:
    assert owners(driver("special", spec=POOL, deleting=True)) == {}


def test_node_affinity_selects_too() -> None:
    term = {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r7"]}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert owners(driver("rack", spec={"nodeAffinity": affinity})) == {"n3": "rack"}


def conflict() -> Assignment:
    return assign([driver("a", spec=POOL), driver("b", spec={"nodeSelector": {"rack": "r7"}})], NODES)


def test_two_that_select_one_node_change_nothing_anywhere() -> None:
    assert [conflict().of(name) for name in ("n1", "n2", "n3")] == [None, None, None]


@pytest.mark.parametrize(("name", "other"), [("a", "b"), ("b", "a")])
def test_both_of_a_conflict_are_told_the_other_and_the_node(name: str, other: str) -> None:
    problem = conflict().problems[name]
    assert (problem.reason, f"{name} and {other} both select n3" in problem.what) == (
        "ConflictingNodeSelector",
        True,
    )


def test_two_defaults_change_nothing_anywhere() -> None:
    assert owners(driver("a", spec={"default": True}), driver("b", spec={"default": True})) is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodeSelector": {names.LABEL_DRIVER_OWNER: "x"}}, "is reserved for the operator"),
        ({"default": True, **POOL}, "can't have a nodeSelector"),
        ({"usePrecompiled": True, "gds": {"enabled": True}}, "GPUDirect Storage can't be used with precompiled"),
        ({"usePrecompiled": True, "gdrcopy": {"enabled": True}}, "GDRCopy can't be used with precompiled"),
        ({"gds": {"enabled": True, "version": "2.17.5"}}, "needs the open kernel modules"),
        ({"gds": {"enabled": True, "version": "v2.26.6"}, "kernelModuleType": "auto"}, "kernelModuleType: open"),
        ({"gds": {"enabled": True, "version": "sha256:" + "0" * 64}}, "needs the open kernel modules"),
    ],
)
def test_what_is_wrong_with_one(spec: dict[str, Any], words: str) -> None:
    assert words in assign([driver("d", spec=spec)], NODES).problems["d"].sentence


@pytest.mark.parametrize(
    "spec",
    [
        {"gds": {"enabled": True, "version": "v2.17.4"}},
        {"gds": {"enabled": True, "version": "v2.26.6"}, "kernelModuleType": "open"},
        {"gds": {"enabled": False, "version": "v2.26.6"}},
        {"usePrecompiled": True, "gds": {"enabled": False}},
    ],
)
def test_what_is_fine(spec: dict[str, Any]) -> None:
    assert assign([driver("d", spec=spec)], NODES).problems == {}


def test_a_mistake_in_a_selector_leaves_its_nodes_with_it() -> None:
    node = read_node(node_object("n1", labels={names.LABEL_DRIVER_OWNER: "d"}))
    wrong = driver("d", spec={"nodeSelector": {names.LABEL_DRIVER_OWNER: "d"}})
    assert assign([wrong], [node]).owner == {"n1": "d"}


def cluster(*drivers: NvidiaDriver, spec: Any = BY_CRD) -> ObservedCluster:
    return ObservedCluster(policies=(policy(spec=spec),), drivers=drivers, nodes=NODES)


def test_nodes_are_labelled_with_their_driver() -> None:
    made = plan(cluster(driver("special", spec=POOL)), SETTINGS)
    change = change_of(made, "n2")
    assert (change.labels if change else {})[names.LABEL_DRIVER_OWNER] == "special"


def test_a_driver_is_ready_when_its_pods_are() -> None:
    observed = settle(cluster(driver("special", spec=POOL)))
    assert plan(observed, SETTINGS).driver_status["special"]["state"] == "ready"


def test_a_driver_waits_for_its_pods() -> None:
    observed = settle(cluster(driver("special", spec=POOL)))
    named = {name: {**one, "status": {"desiredNumberScheduled": 2}} for name, one in observed.daemon_sets.items()}
    made = plan(dataclasses.replace(observed, daemon_sets=named), SETTINGS)
    assert made.driver_status["special"]["state"] == "notReady"


def test_without_the_policys_switch_drivers_are_disabled_and_say_so() -> None:
    status = plan(cluster(driver("d", spec=POOL), spec={}), SETTINGS).driver_status["d"]
    assert (status["state"], "driver.useNvidiaDriverCRD: true" in status["conditions"][0]["message"]) == (
        "disabled",
        True,
    )


def test_a_conflict_is_an_event_of_each() -> None:
    made = plan(cluster(driver("a", spec=POOL), driver("b", spec={"nodeSelector": {"rack": "r7"}})), SETTINGS)
    assert {"NVIDIADriver/a", "NVIDIADriver/b"} <= {one.subject for one in made.advice if one.severity.notable}


def test_drivers_that_run_survive_when_the_policy_asks_for_precompiled_ones() -> None:
    before = settle(ObservedCluster(policies=(policy(spec={"driver": {"enabled": True}}),), nodes=NODES))
    wish = policy(spec={"driver": {"enabled": True, "usePrecompiled": True, "version": "580"}})
    pods = (pod_of(before.daemon_sets["nvidia-driver-daemonset"], NODES[0].name),)
    made = plan(dataclasses.replace(before, policies=(wish,), driver_pods=pods), SETTINGS)
    names_of = {one["metadata"]["name"] for one in made.objects if one["kind"] == "DaemonSet"}
    assert "state-driver" in made.keep, "the account of pods that are left"
    assert {name for name in names_of if name.startswith("nvidia-driver-daemonset-")}
    assert made.orphan == {"nvidia-driver-daemonset"}


def test_the_policys_own_driver_pods_survive_the_move_to_nvidia_drivers() -> None:
    before = settle(ObservedCluster(policies=(policy(spec={"driver": {"enabled": True}}),), nodes=NODES))
    made = plan(dataclasses.replace(before, policies=(policy(spec=BY_CRD),)), SETTINGS)
    ours = {name for name in before.daemon_sets if name.startswith("nvidia-driver-daemonset")}
    assert (made.orphan, bool(ours)) == (ours, True)
