"""Ready means that the wanted driver runs on every node; anything else is said with node, versions and cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from kgpu.cli.status import render
from kgpu.formats import names
from kgpu.operator.model import ObservedCluster, OperatorSettings
from kgpu.operator.overview import overview
from kgpu.operator.plan import plan
from tests.operator.upgrades.fleet import NEW, OLD, asks_for, fleet, operation, with_operations
from tests.operator.world import SETTINGS, condition_of

AUTO = {"autoUpgrade": True}
BY_HAND = {"autoUpgrade": False}


def with_status(upgrade: Mapping[str, Any], approved: bool | None = None, **status: Any) -> ObservedCluster:
    found = asks_for(fleet("n1", "n2", upgrade=upgrade), upgrade=upgrade)
    ops = []
    for obj in plan(found, SETTINGS).upgrades.create:
        if approved is not None:
            obj["spec"]["approved"] = approved
        ops.append(operation(obj, **status))
    return with_operations(found, *ops)


def driver_message(found: ObservedCluster, settings: OperatorSettings = SETTINGS) -> str:
    made = plan(found, settings)
    assert {status["state"] for status in made.policy_status.values()} == {"notReady"}
    assert condition_of(made, "Ready")["status"] == "False"
    told = condition_of(made, "DriverReady")
    assert (told["status"], f"driver {NEW} is wanted, and {OLD} runs" in told["message"]) == ("False", True)
    return str(told["message"])


def test_it_was_ready_before() -> None:
    made = plan(fleet("n1", "n2", upgrade=AUTO), SETTINGS)
    assert {status["state"] for status in made.policy_status.values()} == {"ready"}


def test_one_that_waits_for_approval_is_told_per_node() -> None:
    found = with_status(BY_HAND)
    message = driver_message(found)
    for one in found.upgrades:
        assert f"kgpu operations approve {one.name}" in message
    told = [one for one in plan(found, SETTINGS).advice if one.reason == "DriverUpgradeWaits"]
    assert {one.subject for one in told} == {"Node/n1", "Node/n2"}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({}, "its upgrade waits for its turn"),
        ({"phase": "Draining"}, "pods with GPUs are being evicted"),
        ({"phase": "Acting"}, "the driver is being exchanged"),
        ({"phase": "Verifying"}, "the new driver is being checked"),
    ],
)
def test_while_it_goes_on_nothing_is_asked_of_anybody(status: Mapping[str, Any], words: str) -> None:
    found = with_status(AUTO, **status)
    assert words in driver_message(found)
    reasons = {one.reason for one in plan(found, SETTINGS).advice}
    assert not {reason for reason in reasons if reason.startswith("Driver")}


def test_before_the_operations_are_there() -> None:
    found = asks_for(fleet("n1", upgrade=AUTO), upgrade=AUTO)
    assert "its upgrade is about to be asked for" in driver_message(found)


def test_a_failure_names_its_cause_and_what_to_do() -> None:
    why = "container nvidia-driver-ctr has exited with 1: no kernel headers for 6.8.0-40"
    found = with_status(AUTO, phase="Failed", result="PermanentFailure", message=why)
    (status,) = plan(found, SETTINGS).policy_status.values()
    text = str(status["conditions"])
    assert f"the upgrade to driver {NEW} has failed: {why}" in text
    assert "kgpu node upgrade-driver n1" in text
    assert plan(found, SETTINGS).metrics["gpu_operator_nodes_upgrades_failed"] == 2.0


def test_a_rollout_that_has_stopped_says_so() -> None:
    found = with_status(AUTO, reason="RolloutStopped", message="2 upgrades in a row have failed, on n7 and n8")
    message = driver_message(found)
    assert "its rollout has stopped: 2 upgrades in a row have failed, on n7 and n8" in message
    assert any(one.reason == "DriverRolloutStopped" for one in plan(found, SETTINGS).advice)


def test_cancelled_and_skipped() -> None:
    cancelled = with_status(AUTO, phase="Failed", result="Cancelled")
    assert "its upgrade was cancelled" in driver_message(cancelled)
    plain = asks_for(fleet("n1", upgrade=AUTO, labels={names.DRIVER_UPGRADE_SKIP: "true"}), upgrade=AUTO)
    assert f"kubectl label node n1 {names.DRIVER_UPGRADE_SKIP}-" in driver_message(plain)


def test_operations_switched_off_is_told_and_nothing_is_made() -> None:
    off = dataclasses.replace(SETTINGS, operations=False)
    found = asks_for(fleet("n1", upgrade=AUTO), upgrade=AUTO)
    assert "set operations.enabled=true in the chart's values" in driver_message(found, off)
    made = plan(found, off)
    assert made.upgrades.create == ()
    assert made.metrics["gpu_operator_driver_auto_upgrade_enabled"] == 0.0


def test_a_cluster_without_the_kind_is_told() -> None:
    found = dataclasses.replace(asks_for(fleet("n1", upgrade=AUTO), upgrade=AUTO), kinds=frozenset())
    assert "kgpu crds apply" in driver_message(found)
    assert plan(found, SETTINGS).upgrades.create == ()


def test_what_the_api_server_refuses_is_told() -> None:
    found = asks_for(fleet("n1", upgrade=AUTO), upgrade=AUTO)
    refused = dataclasses.replace(found, apply_errors={"NodeOperation/driver-n1-0": "you may not"})
    text = str(plan(refused, SETTINGS).policy_status)
    assert "the API server refuses NodeOperation/driver-n1-0: you may not" in text


def test_the_metrics_are_true() -> None:
    prefix = "gpu_operator_nodes_upgrades_"

    def figures(found: ObservedCluster) -> dict[str, float]:
        metrics = plan(found, SETTINGS).metrics
        return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}

    none = {"in_progress": 0.0, "done": 0.0, "failed": 0.0, "pending": 0.0, "available": 0.0}
    assert figures(fleet("n1", "n2", upgrade=AUTO)) == {**none, "done": 2.0, "available": 1.0}
    assert figures(with_status(AUTO)) == {**none, "pending": 2.0, "available": 1.0}
    assert figures(with_status(BY_HAND)) == {**none, "pending": 2.0}
    assert figures(with_status(AUTO, phase="Acting")) == {**none, "in_progress": 2.0}
    assert plan(with_status(AUTO), SETTINGS).metrics["gpu_operator_driver_auto_upgrade_enabled"] == 1.0
    assert plan(with_status(BY_HAND), SETTINGS).metrics["gpu_operator_driver_auto_upgrade_enabled"] == 0.0


def test_a_template_that_changed_alone_leaves_it_ready() -> None:
    found = fleet("n1", upgrade=AUTO)
    sets = {
        name: {**one, "status": {**one["status"], "updatedNumberScheduled": 0}} if "driver" in name else one
        for name, one in found.daemon_sets.items()
    }
    made = plan(dataclasses.replace(found, daemon_sets=sets), SETTINGS)
    assert {status["state"] for status in made.policy_status.values()} == {"ready"}


def test_status_has_a_section_while_not_every_node_runs_what_is_wanted() -> None:
    found = overview(with_status(BY_HAND), SETTINGS)
    assert not found.ready
    assert any("its upgrade waits for approval" in problem.what for problem in found.problems)
    shown = render(found, width=200)
    assert "Driver upgrades: 0 of 2 nodes run the driver that is asked for; 2 waiting for approval:" in shown
    assert f"  n1: {OLD} → {NEW}: waits for approval (driver-n1-" in shown
    ready = render(overview(fleet("n1", "n2", upgrade=AUTO), SETTINGS), width=200)
    assert "Driver upgrades" not in ready


@pytest.mark.parametrize(
    ("status", "words", "state"),
    [
        ({}, "2 to come", "upgrade-required"),
        ({"phase": "Acting"}, "2 under way", "pod-restart-required"),
        ({"phase": "Failed", "result": "PermanentFailure"}, "2 failed", "upgrade-failed"),
    ],
)
def test_the_section_counts_what_is_under_way_and_what_has_failed(
    status: Mapping[str, Any], words: str, state: str
) -> None:
    shown = render(overview(with_status(AUTO, **status), SETTINGS), width=200)
    assert f"the driver that is asked for; {words}:" in shown
    assert f"n2: {OLD} → {NEW}: {state} (driver-n2-" in shown


@pytest.mark.parametrize(
    ("phase", "ready", "said", "row"),
    [
        ("Acting", False, f"driver {NEW} is wanted; the driver is being exchanged", f"no driver → {NEW}: pod-restart-"),
        ("Verifying", True, f"driver {NEW} is loaded; the new driver is being checked", f"{NEW}: validation-"),
        ("Failed", False, f"the upgrade to driver {NEW} has failed", f"no driver → {NEW}: upgrade-failed"),
    ],
)
def test_a_pod_that_was_exchanged_runs_its_driver_once_it_is_ready(
    phase: str, ready: bool, said: str, row: str
) -> None:
    found = with_status(AUTO, phase=phase, result="PermanentFailure" if phase == "Failed" else "")
    wanted = {one.node: one.spec["driver"] for one in found.upgrades}
    pods = tuple(
        dataclasses.replace(pod, digest=wanted[pod.node]["digest"], image=wanted[pod.node]["image"], ready=ready)
        for pod in found.driver_pods
    )
    found = dataclasses.replace(found, driver_pods=pods)
    told = condition_of(plan(found, SETTINGS), "DriverReady")["message"]
    assert said in told
    assert "other settings" not in told
    assert f"  n1: {row}" in render(overview(found, SETTINGS), width=200)
