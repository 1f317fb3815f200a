"""The replaced operator's state table, replayed as data: the label, the annotations, and what is made."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kgpu.formats import names
from kgpu.operator.model import ClusterNode, ObservedCluster
from kgpu.operator.plan import plan
from tests.operator.upgrades.fleet import BASE, NEW, asks_for, fleet, operation, pod_of, with_operations
from tests.operator.world import SETTINGS, change_of

ROWS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "states.yaml").read_text())
AUTO = {"autoUpgrade": True}


def cluster(row: dict[str, Any]) -> ObservedCluster:
    upgrade = row.get("upgrade", AUTO)
    labels = {names.DRIVER_UPGRADE_SKIP: "true"} if row.get("skip") else {}
    if "label" in row:
        labels[names.DRIVER_UPGRADE_STATE_LABEL] = row["label"]
    before = fleet("n1", upgrade=upgrade, labels=labels)
    changed = asks_for(before, upgrade=upgrade)
    new = pod_of(changed.daemon_sets[BASE], "n1")
    pods = {
        "old": changed.driver_pods,
        "new": (new,),
        "starting": (dataclasses.replace(new, ready=False),),
        "fresh": (dataclasses.replace(new, fresh=True),),
        "orphan": tuple(dataclasses.replace(pod, daemon_set="") for pod in changed.driver_pods),
        "none": (),
    }[row["pod"]]
    changed = dataclasses.replace(changed, driver_pods=pods)
    if row["pod"] in {"new", "fresh"}:
        changed = dataclasses.replace(changed, nodes=tuple(map(loads_the_new_one, changed.nodes)))
    if "operation" not in row:
        return changed
    # The operation that kgpu itself makes for such a node, with the row's status.
    needy = dataclasses.replace(
        asks_for(fleet("n1", upgrade=upgrade), upgrade=upgrade),
        driver_pods=before.driver_pods,
    )
    (made,) = plan(needy, SETTINGS).upgrades.create
    status = dict(row["operation"])
    if digest := status.pop("digest", ""):
        made["spec"]["driver"]["digest"] = digest
    return with_operations(changed, operation(made, **status))


def loads_the_new_one(node: ClusterNode) -> ClusterNode:
    assert node.report is not None
    return dataclasses.replace(node, report=msgspec.structs.replace(node.report, driver=NEW))


@pytest.mark.parametrize("row", ROWS, ids=[row["source"] for row in ROWS])
def test_the_state_table(row: dict[str, Any]) -> None:
    found = cluster(row)
    made = plan(found, SETTINGS)
    change = change_of(made)
    labels = change.labels if change is not None else found.nodes[0].labels
    annotations = change.annotations if change is not None else found.nodes[0].annotations
    assert labels[names.DRIVER_UPGRADE_STATE_LABEL] == row["state"]
    assert annotations.get(names.DRIVER_UPGRADE_INITIAL) == row.get("initial")
    assert annotations[names.DRIVER_UPGRADE_ENABLED] == "true"
    if "creates" in row:
        assert bool(made.upgrades.create) is row["creates"]
    ready = {status["state"] for status in made.policy_status.values()} == {"ready"}
    runs = row["pod"] in {"new", "fresh"} and row["state"] == "upgrade-done"
    assert ready is runs, "ready means that the wanted driver runs"


def test_every_state_of_the_table_is_replayed() -> None:
    states = {row["state"] for row in ROWS}
    assert states == {
        "upgrade-required", "cordon-required", "wait-for-jobs-required", "pod-deletion-required", "drain-required",
        "pod-restart-required", "validation-required", "uncordon-required", "upgrade-done", "upgrade-failed",
    }  # fmt: skip


@pytest.mark.parametrize("auto", [True, False])
def test_the_annotation_that_keeps_the_driver_pod_from_emptying_its_node(auto: bool) -> None:
    found = fleet("n1", upgrade={"autoUpgrade": auto})
    assert (names.DRIVER_UPGRADE_ENABLED in found.nodes[0].annotations) is auto
    # Without autoUpgrade it is there while an upgrade that a person has approved may be under way.
    changed = asks_for(found, upgrade={"autoUpgrade": auto})
    (made,) = plan(changed, SETTINGS).upgrades.create
    made["spec"]["approved"] = True
    for phase, there in (("Pending", True), ("Acting", True), ("Complete", auto)):
        busy = with_operations(changed, operation(made, phase=phase, result="Succeeded" if phase == "Complete" else ""))
        change = change_of(plan(busy, SETTINGS))
        annotations = found.nodes[0].annotations if change is None else change.annotations
        assert (names.DRIVER_UPGRADE_ENABLED in annotations) is there, phase


def test_what_another_operator_has_left_is_taken_off_where_it_is_wrong() -> None:
    there = fleet("n1", upgrade={"autoUpgrade": False})
    left = dataclasses.replace(there.nodes[0], annotations={names.DRIVER_UPGRADE_ENABLED: "true"})
    change = change_of(plan(dataclasses.replace(there, nodes=(left,)), SETTINGS))
    assert change is not None
    assert change.clear_annotations == (names.DRIVER_UPGRADE_ENABLED,)


def test_the_label_goes_with_the_policy_and_with_the_drivers() -> None:
    there = fleet("n1", upgrade=AUTO)
    assert there.nodes[0].labels[names.DRIVER_UPGRADE_STATE_LABEL] == "upgrade-done"
    change = change_of(plan(dataclasses.replace(there, policies=()), SETTINGS))
    assert change is not None
    assert (dict(change.labels), dict(change.annotations)) == ({}, {})


def test_steps_are_told_as_events_and_adoption_is_not() -> None:
    there = asks_for(fleet("n1", "n2", upgrade=AUTO), upgrade=AUTO)
    assert [one for one in plan(there, SETTINGS).advice if one.reason == names.DRIVER_UPGRADE_EVENT] == []
    (first, _) = plan(there, SETTINGS).upgrades.create
    acting = with_operations(there, operation(first, phase="Acting"))
    told = [one for one in plan(acting, SETTINGS).advice if one.reason == names.DRIVER_UPGRADE_EVENT]
    assert [(one.subject, one.what) for one in told] == [
        ("Node/n1", "node n1: its driver's upgrade is at pod-restart-required")
    ]
    fresh = fleet("n1", upgrade=AUTO)
    bare = dataclasses.replace(
        fresh.nodes[0], labels={k: v for k, v in fresh.nodes[0].labels.items() if k != names.DRIVER_UPGRADE_STATE_LABEL}
    )
    adopted = plan(dataclasses.replace(fresh, nodes=(bare,)), SETTINGS)
    assert all(one.reason != names.DRIVER_UPGRADE_EVENT for one in adopted.advice)
