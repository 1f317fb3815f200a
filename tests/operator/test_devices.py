"""GPUs that nothing labels, and GPUs that are not allocatable: what is an alarm, and what is only under way."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kgpu.formats import agent_report, names
from kgpu.operator.model import ObservedCluster
from kgpu.operator.plan import plan
from tests.operator.test_breakages import gpu_lost
from tests.operator.world import SETTINGS, condition_of, healthy_node, node_object, report, status_of, world


def without_gpu_labels(**settings: bool) -> ObservedCluster:
    """One node that has nothing but the kubelet's word for its GPUs."""
    return world(node_object(features=False, report=report(gpus=0)), settings=dataclasses.replace(SETTINGS, **settings))


@pytest.mark.parametrize("discovery", [True, False])
def test_gpus_without_a_label_are_told_whoever_labels_nodes(discovery: bool) -> None:
    settings = dataclasses.replace(SETTINGS, discovery=discovery)
    made = plan(without_gpu_labels(discovery=discovery), settings)
    found = condition_of(made, "NodeFeaturesReady")
    assert (found["status"], found["reason"], status_of(made)["state"]) == ("False", "GPULabelsMissing", "notReady")


@pytest.mark.parametrize("resource", ["gpu.intel.com/i915", "gpu.intel.com/xe", "amd.com/gpu"])
def test_devices_of_other_vendors_need_no_label_of_nvidias(resource: str) -> None:
    node = node_object(features=False, report=report(gpus=0), gpus=0)
    node["status"] |= {"capacity": {resource: "1"}, "allocatable": {resource: "1"}}
    assert condition_of(plan(world(node), SETTINGS), "NodeFeaturesReady")["reason"] != "GPULabelsMissing"


def test_a_node_that_has_opted_out_is_not_missed() -> None:
    labels = {names.LABEL_DEPLOY_OPERANDS: "false", "feature.node.kubernetes.io/kernel-version.full": "6.8"}
    node = node_object(features=False, labels=labels, report=report(gpus=0))
    assert status_of(plan(world(node), SETTINGS))["state"] == "ready"


def test_a_symptom_is_not_told_beside_its_cause() -> None:
    observed = gpu_lost().observed
    told = [one.reason for one in plan(observed, SETTINGS).advice if one.subject == "Node/n1"]
    assert told == ["CudaFailed"]


NONE_LEFT = {names.GPU_RESOURCE: "0"}
DEVICES = "DevicePluginReady"


@pytest.mark.parametrize(
    "validated",
    [("True", "Validated", "all passed"), ("Unknown", "PluginPending", "plugin: nothing is allocatable"), None],
    ids=["not looked at yet", "waited for", "not said yet"],
)
def test_devices_that_come_back_in_a_moment_are_no_event(validated: tuple[str, str, str] | None) -> None:
    observed = world(healthy_node(allocatable=NONE_LEFT, validated=validated))
    made = plan(observed, SETTINGS)
    told = [one.reason for one in made.advice if one.subject == "Node/n1"]
    assert (condition_of(made, DEVICES)["reason"], told) == ("NotOfferedYet", [])


def test_devices_that_stay_away_are_told_by_the_validators_cause() -> None:
    words = "plugin: the Node has nvidia.com/gpu, but none of it is allocatable"
    observed = world(healthy_node(allocatable=NONE_LEFT, validated=("False", "PluginFailed", words)))
    told = [one.reason for one in plan(observed, SETTINGS).advice if one.subject == "Node/n1"]
    assert told == ["PluginFailed"]


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": {names.LABEL_DEPLOY_PREFIX + "operator-validator": "false"}},
        {"report": report(validator=agent_report.role("failed", "it crashed"))},
    ],
    ids=["switched off", "failed"],
)
def test_devices_that_nobody_validates_are_told_at_once(changes: dict[str, Any]) -> None:
    observed = world(healthy_node(allocatable=NONE_LEFT, **changes))
    told = [one.reason for one in plan(observed, SETTINGS).advice if one.subject == "Node/n1"]
    assert "DevicesUnhealthy" in told


@pytest.mark.parametrize(
    ("status", "reason", "events"),
    [("Unknown", "ToolkitPending", []), ("False", "ToolkitFailed", ["ToolkitSwitchedOff"])],
)
def test_a_toolkit_that_is_switched_off_is_named_at_once_and_an_event_later(
    status: str, reason: str, events: list[str]
) -> None:
    """Another program may still write a spec, so that it is nothing to wake people for yet."""
    key = names.LABEL_DEPLOY_PREFIX + "container-toolkit"
    made = plan(
        world(healthy_node(labels={key: "false"}, validated=(status, reason, "toolkit: no CDI spec"))), SETTINGS
    )
    told = [one.reason for one in made.advice if one.subject == "Node/n1" and one.severity.notable]
    assert (condition_of(made, "ValidatorReady")["reason"], told) == ("ToolkitSwitchedOff", events)
    assert f"kubectl label node n1 {key}-" in condition_of(made, "Ready")["message"]
