"""Which nodes keep their label, and with it their driver, while they are to get another object's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.operator.driver_moves import handed_over, moving
from kgpu.operator.drivers import Assignment
from kgpu.operator.labels import LabelRules
from kgpu.operator.model import NodeDriverPod, Object, ObservedCluster, UpgradeOperation
from kgpu.operator.nodes import read_node
from kgpu.operator.plan import plan
from tests.operator.upgrades.fleet import BASE, NEW, OLD, fleet
from tests.operator.world import SETTINGS, change_of, driver, node_object, policy

OBJECTS = LabelRules(active=True, driver_crd=True)
POLICY = LabelRules(active=True)
OURS, OF_A, OF_B = BASE, "nvidia-gpu-driver-a", "nvidia-gpu-driver-b"


def daemon_set(owner: str) -> Object:
    selector = {names.LABEL_DRIVER_OWNER: owner} if owner else {}
    labels = {names.COMPONENT_LABEL: names.DRIVER_COMPONENT}
    return {"spec": {"template": {"metadata": {"labels": labels}, "spec": {"nodeSelector": selector}}}}


def cluster(owner: str, *pods: NodeDriverPod, upgrades: tuple[UpgradeOperation, ...] = ()) -> ObservedCluster:
    labels = {names.LABEL_DRIVER_OWNER: owner} if owner else {}
    return ObservedCluster(
        nodes=(dataclasses.replace(read_node(node_object("n1", labels=labels)), uid="u1"),),
        daemon_sets={OURS: daemon_set(""), OF_A: daemon_set("a"), OF_B: daemon_set("b")},
        driver_pods=pods,
        upgrades=upgrades,
    )


def pod(daemon_set: str, **given: Any) -> NodeDriverPod:
    return NodeDriverPod(name=f"pod-of-{daemon_set}", node="n1", daemon_set=daemon_set, **given)


def to(owner: str | None) -> Assignment:
    return Assignment(owner=None if owner is None else {"n1": owner} if owner else {})


def act(phase: str = "Acting", **given: Any) -> UpgradeOperation:
    return UpgradeOperation(**{"name": "m", "node": "n1", "node_uid": "u1", "phase": phase, "released": True, **given})


@pytest.mark.parametrize(
    ("observed", "rules", "wanted", "kept"),
    [
        (cluster("a", pod(OF_A)), POLICY, "", {"n1": ""}),
        (cluster("a", pod(OF_A)), OBJECTS, "b", {"n1": "b"}),
        (cluster("", pod(OURS)), OBJECTS, "b", {"n1": "b"}),
        (cluster("", pod("")), OBJECTS, "b", {"n1": "b"}),
        (cluster("a", pod("")), POLICY, "", {"n1": ""}),
        (cluster("a", pod("one that nobody knows")), OBJECTS, "b", {"n1": "b"}),
        # Nothing changes, or nothing could be lost.
        (cluster("a", pod(OF_A)), OBJECTS, "a", {}),
        (cluster("a", pod(OF_A)), OBJECTS, None, {}),
        (cluster("a"), OBJECTS, "b", {}),
        (cluster("a", pod(OF_A, leaving=True)), OBJECTS, "b", {}),
        (cluster("a", pod(OF_A, placed=False)), OBJECTS, "b", {}),
        (cluster("a", pod(OF_B)), OBJECTS, "b", {}),
        (cluster("nonsense", pod(OURS)), POLICY, "", {}),
        # Nobody is to install a driver any more.
        (cluster("a", pod(OF_A)), OBJECTS, "", {}),
        (cluster("a", pod(OF_A)), dataclasses.replace(POLICY, driver=False), "", {}),
    ],
)
def test_a_node_keeps_the_label_that_its_driver_depends_on(
    observed: ObservedCluster, rules: LabelRules, wanted: str | None, kept: Mapping[str, str]
) -> None:
    assert moving(observed, rules, to(wanted)) == kept


@pytest.mark.parametrize(
    ("operation", "kept"),
    [
        (act(), False),
        (act(node_uid=""), False),
        (act("Draining"), True),
        (act("Verifying"), True),
        (act("Restoring"), True),
        (act("Failed"), True),
        (act(released=False), True),
        (act(node="n2"), True),
        (act(node_uid="of the node that had this name before"), True),
    ],
)
def test_the_label_changes_while_an_operation_holds_the_node_empty(operation: UpgradeOperation, *, kept: bool) -> None:
    observed = cluster("a", pod(OF_A), upgrades=(operation,))
    assert bool(moving(observed, OBJECTS, to("b"))) is kept


def test_only_labels_that_drivers_depend_on_are_taken_from_others() -> None:
    assert handed_over(cluster("a"), POLICY) == {"n1"}
    assert handed_over(cluster("a"), OBJECTS) == frozenset()
    assert handed_over(cluster("nonsense"), POLICY) == frozenset()
    assert handed_over(cluster(""), POLICY) == frozenset()


def test_a_label_that_the_replaced_operator_has_set_goes_once_the_node_is_handed_over() -> None:
    there = fleet("n1")
    (node,) = there.nodes
    theirs = dataclasses.replace(node, labels={**node.labels, names.LABEL_DRIVER_OWNER: "a"})
    observed = dataclasses.replace(
        there, nodes=(theirs,), daemon_sets={**there.daemon_sets, OF_A: daemon_set("a")}, driver_pods=()
    )
    change = change_of(plan(observed, SETTINGS))
    assert change is not None
    assert names.LABEL_DRIVER_OWNER in change.clear


def test_the_next_object_s_daemon_set_is_there_before_any_node_is_its_own() -> None:
    there = fleet("n1", "n2")
    switched = policy(spec={"driver": {"enabled": True, "useNvidiaDriverCRD": True}})
    observed = dataclasses.replace(
        there, policies=(switched,), drivers=(driver("d", spec={"default": True, "version": NEW}),)
    )
    made = plan(observed, SETTINGS)
    made_sets = [one["metadata"]["name"] for one in made.objects if one["kind"] == "DaemonSet"]
    assert [name for name in made_sets if name.startswith("nvidia-gpu-driver")] != []
    assert BASE not in made_sets
    assert made.orphan == {BASE}
    assert "state-driver" in made.keep, "its pods need their account"
    assert made.upgrades.create == (), "not before that DaemonSet is there"
    assert all(names.LABEL_DRIVER_OWNER not in one.labels for one in made.nodes)
    (said,) = [one["message"] for one in made.driver_status["d"]["conditions"] if one["type"] == "Ready"]
    assert f"driver {NEW} of NVIDIADriver d is wanted, and {OLD} of another object runs" in said
    assert made.policy_status["cluster-policy"]["state"] == "notReady"
