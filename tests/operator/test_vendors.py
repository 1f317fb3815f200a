"""Nodes of every vendor: who is served, what runs there, and what is said of a cluster that has several."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from kgpu.formats import agent_config, agent_report, names
from kgpu.formats.operands import BY_ROLE, OPERANDS, roles_on
from kgpu.operator.labels import WORK, deploy, is_taken, vendor_of
from kgpu.operator.model import ClusterPlan, Object
from kgpu.operator.nodes import read_node
from kgpu.operator.overview import overview
from kgpu.operator.plan import plan
from kgpu.operator.vendors import SERVED, VENDORS, is_accelerator, seen
from tests.operator.world import (
    FEATURES,
    OPERANDS_LAYOUT,
    PCI,
    SETTINGS,
    change_of,
    condition_of,
    found_nothing,
    healthy_node,
    node_object,
    policy,
    report,
    settle,
    status_of,
    world,
)

EVERY = dataclasses.replace(SETTINGS, vendors=frozenset(VENDORS))
OTHERS = tuple(name for name in VENDORS if name != names.NVIDIA)
BARE = agent_report.role("stopped", "it has nothing to do for accelerators of AMD", "NotForVendor")


def other_node(name: str = "n1", vendor: str = names.AMD, *, count: int = 8, **changes: Any) -> Object:
    """A Node of another vendor, on which everything works unless ``report`` says otherwise."""
    row = VENDORS[vendor]
    roles = {role: BARE for role in BY_ROLE if role not in roles_on(vendor) and role != "features"}
    said = msgspec.structs.replace(report(gpus=8, **roles), vendor=vendor, driver="6.10.5", cuda="")
    changes.setdefault("report", said)
    changes.setdefault("validated", ("True", "Validated", "8 GPUs have passed") if count else None)
    made = node_object(name, gpus=0, labels={row.pci_labels[0]: "true", **changes.pop("labels", {})}, **changes)
    amounts = {"cpu": "8", row.resource: str(count)} if count else {"cpu": "8"}
    made["status"] |= {"capacity": amounts, "allocatable": amounts}
    return made


def fresh(name: str = "n1", vendor: str = names.AMD) -> Object:
    """A Node of another vendor that kgpu has only just found."""
    return other_node(name, vendor, count=0, report=None)


def documents(made: ClusterPlan) -> agent_config.AgentConfig:
    text = next(one for one in made.objects if one["metadata"]["name"] == names.AGENT_CONFIG_MAP)["data"]
    return agent_config.decode(text[names.AGENT_CONFIG_KEY], source="the plan")


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_board_is_known_by_class_and_vendor(vendor: str) -> None:
    for label in VENDORS[vendor].pci_labels:
        assert seen({label: "true"}, None) == vendor
        assert seen({label: "false"}, None) == ""


def test_of_several_vendors_the_first_is_served_whose_driver_is_looked_for_first() -> None:
    labels = {VENDORS[vendor].pci_labels[0]: "true" for vendor in VENDORS}
    assert seen(labels, None) == names.NVIDIA
    assert seen(labels, None, {names.INTEL, names.AMD}) == names.AMD
    assert seen(labels, None, ()) == ""


def test_a_report_counts_where_no_label_is_and_one_of_a_vendor_that_there_is_not_does_not() -> None:
    assert seen({}, msgspec.structs.replace(report(), vendor=names.AMD)) == names.AMD
    assert seen({}, report()) == names.NVIDIA
    assert seen({}, msgspec.structs.replace(report(), vendor="nobody")) == ""
    assert seen({}, report(gpus=0)) == ""


@pytest.mark.parametrize(
    ("resource", "vendor"),
    [
        ("nvidia.com/gpu.shared", names.NVIDIA), ("nvidia.com/mig-1g.10gb", names.NVIDIA), ("amd.com/gpu", names.AMD),
        ("amd.com/cpx_nps4", names.AMD), ("habana.ai/gaudi", names.GAUDI), ("gpu.intel.com/xe", names.INTEL),
        ("amd.com/nic", ""), ("gpu.intel.com/i915_monitoring", ""), ("cpu", ""),
    ],
)  # fmt: skip
def test_resources_that_count_accelerators(resource: str, vendor: str) -> None:
    assert [name for name in VENDORS if is_accelerator(resource, name)] == ([vendor] if vendor else [])
    assert is_accelerator(resource) == bool(vendor)


@pytest.mark.parametrize("vendor", OTHERS)
def test_a_new_node_gets_its_vendor_and_the_operands_that_serve_it(vendor: str) -> None:
    observed = world(fresh(vendor=vendor), settings=EVERY)
    labels = observed.nodes[0].labels
    assert labels[names.LABEL_VENDOR] == vendor
    assert labels[names.AGENT_NODE_LABEL] == "true"
    assert names.LABEL_GPU_PRESENT not in labels
    on = {key for key in labels if key.startswith(names.LABEL_DEPLOY_PREFIX)}
    assert on == {
        deploy(row.deploy) for row in OPERANDS if row.role in roles_on(vendor) and row.deploy and row.role != "dra"
    }
    assert on & WORK
    assert change_of(plan(observed, EVERY)) is None, "and it stays so"


def test_a_node_of_nvidia_has_no_such_label() -> None:
    assert names.LABEL_VENDOR not in world(healthy_node()).nodes[0].labels


@pytest.mark.parametrize(("vendor", "served"), [(names.AMD, True), (names.GAUDI, True), (names.INTEL, False)])
def test_intel_has_to_be_asked_for(vendor: str, served: bool) -> None:
    assert (vendor in SERVED) == served
    assert (names.LABEL_VENDOR in world(fresh(vendor=vendor)).nodes[0].labels) == served


def test_without_nvidia_its_nodes_are_left_alone() -> None:
    settings = dataclasses.replace(SETTINGS, vendors=frozenset({names.AMD}))
    observed = world(node_object("n1"), fresh("n2"), settings=settings)
    assert not [key for key in observed.nodes[0].labels if key.startswith((names.LABEL_DEPLOY_PREFIX, "kgpu.dev/"))]
    assert status_of(plan(observed, settings))["nodes"]["gpu"] == 1


def test_a_node_with_a_card_of_nvidia_whose_vendor_is_not_served_is_served_for_the_other() -> None:
    settings = dataclasses.replace(SETTINGS, vendors=frozenset({names.AMD}))
    node = other_node(labels={PCI: "true"}, count=0, report=None)
    assert world(node, settings=settings).nodes[0].labels[names.LABEL_VENDOR] == names.AMD


def test_what_another_device_plugin_offers_is_left_to_it_until_it_is_gone() -> None:
    theirs = other_node(report=found_nothing(), apart=True)
    assert is_taken(read_node(theirs))
    observed = world(theirs)
    assert names.LABEL_VENDOR not in observed.nodes[0].labels
    made = plan(observed, SETTINGS)
    assert "another device plugin" in condition_of(made, "DevicePluginReady")["message"]
    assert status_of(made)["state"] == "ready"
    gone = dataclasses.replace(observed, nodes=(read_node(fresh()),))
    after = settle(gone)
    assert after.nodes[0].labels[names.LABEL_VENDOR] == names.AMD
    offered = dataclasses.replace(after.nodes[0], allocatable={names.AMD_GPU_RESOURCE: 8})
    assert not is_taken(offered), "what kgpu offers itself is its own"


def test_a_label_that_somebody_else_has_set_goes() -> None:
    """On a node of NVIDIA's it would keep its agent from serving it."""
    node = read_node(healthy_node(labels={names.LABEL_VENDOR: names.AMD}))
    change = change_of(plan(dataclasses.replace(world(), nodes=(node,)), SETTINGS))
    assert change is not None
    assert names.LABEL_VENDOR in change.clear


def test_a_node_that_lost_all_its_feature_labels_keeps_its_vendor() -> None:
    observed = world(fresh())
    bare = dataclasses.replace(
        observed.nodes[0],
        labels={key: value for key, value in observed.nodes[0].labels.items() if not key.startswith(names.NFD_PREFIX)},
    )
    assert vendor_of(bare) == names.AMD
    looked_at = dataclasses.replace(bare, labels={**bare.labels, **FEATURES})
    assert vendor_of(looked_at) == "", "its card alone is gone"


def test_agents_are_told_what_serves_each_vendor_of_this_cluster() -> None:
    observed = world(fresh("n2"), healthy_node())
    told = documents(plan(observed, SETTINGS))
    assert told.kinds.keys() == {names.AMD}
    kind = told.kinds[names.AMD]
    assert (kind.title, kind.roles.keys()) == ("AMD", roles_on(names.AMD))
    assert told.roles["deviceplugin"].env["DEVICE_LIST_STRATEGY"] == "cdi-annotations,cdi-cri"
    env = kind.roles["deviceplugin"].env
    assert env["DEVICE_LIST_STRATEGY"] == "envvar", "no toolkit has told the engine of CDI there"
    assert "CDI_ENABLED" not in env
    assert not documents(plan(world(healthy_node()), SETTINGS)).kinds


def test_containers_of_their_own_are_told_what_differs_for_a_vendor() -> None:
    observed = world(fresh("n2"), healthy_node(), settings=OPERANDS_LAYOUT)
    kind = documents(plan(observed, OPERANDS_LAYOUT)).kinds[names.AMD]
    assert kind.roles["deviceplugin"].env == {"DEVICE_LIST_STRATEGY": "envvar"}
    assert {role for role, told in kind.roles.items() if told.env} == {"deviceplugin"}


def test_a_mixed_cluster_is_ready_and_says_what_nobody_has_proven() -> None:
    observed = settle(world(healthy_node("n1"), fresh("n2"), settings=SETTINGS))
    working = settle(dataclasses.replace(observed, nodes=(observed.nodes[0], relabelled(observed.nodes[1]))))
    made = plan(working, SETTINGS)
    status = status_of(made)
    assert status["state"] == "ready"
    assert status["nodes"] == {"total": 2, "gpu": 2, "validated": 2}
    ready = condition_of(made, "Ready")["message"]
    assert ready.startswith("ClusterPolicy is ready as all resources have been successfully reconciled")
    assert "nothing has computed on n2: kgpu has no program for the devices of its vendor" in ready
    assert condition_of(made, "ToolkitReady")["message"].startswith("1 of 1 nodes")
    for kind in ("ValidatorReady", "DevicePluginReady"):
        assert condition_of(made, kind)["message"].startswith("2 of 2 nodes")
    written = dataclasses.replace(policy(), status={**status, "conditions": []})
    shown = overview(dataclasses.replace(working, policies=(written,)), SETTINGS)
    assert "2 GPU nodes, all validated, nothing computed on 1 node of other vendors" in shown.headline


def relabelled(node: Any) -> Any:
    """The node once its agent has begun to work."""
    working = read_node(other_node(node.name))
    return dataclasses.replace(working, labels=node.labels, owned=node.owned)


@pytest.mark.parametrize(("allocatable", "reason"), [(8, "Ready"), (7, "DevicesUnhealthy"), (0, "NotOfferedYet")])
def test_what_the_kubelet_offers_is_looked_at(allocatable: int, reason: str) -> None:
    working = relabelled(world(fresh()).nodes[0])
    short = dataclasses.replace(working, allocatable={names.AMD_GPU_RESOURCE: allocatable})
    observed = settle(dataclasses.replace(world(), nodes=(short,)))
    assert condition_of(plan(observed, SETTINGS), "DevicePluginReady")["reason"] == reason


def test_an_agent_without_a_driver_keeps_the_policy_from_being_ready() -> None:
    no_driver = agent_report.role("waiting", "no accelerator driver was found", "Waiting")
    said = msgspec.structs.replace(report(gpus=0, deviceplugin=no_driver), vendor=names.AMD)
    node = world(fresh()).nodes[0]
    waiting = dataclasses.replace(read_node(other_node(report=said, count=0)), labels=node.labels, owned=node.owned)
    made = plan(settle(dataclasses.replace(world(), nodes=(waiting,))), SETTINGS)
    assert status_of(made)["state"] == "notReady"
    assert "no accelerator driver was found" in condition_of(made, "DevicePluginReady")["message"]


def test_a_switch_of_a_node_counts_for_every_vendor() -> None:
    key = deploy("device-plugin")
    observed = world(other_node(labels={key: "false"}, count=0, report=None))
    assert observed.nodes[0].labels[key] == "false"
    made = plan(observed, SETTINGS)
    assert (
        f"switched off by node label on {observed.nodes[0].name}" in condition_of(made, "DevicePluginReady")["message"]
    )


@pytest.mark.parametrize(
    "listed", [(), ({"key": "team", "operator": "Exists"},)], ids=["by default", "beside the user's list"]
)
@pytest.mark.parametrize(
    ("vendor", "key", "effect"),
    [
        (names.AMD, "amd.com/gpu", "NoSchedule"),
        (names.AMD, "amd-dcm", "NoExecute"),
        (names.GAUDI, "habana.ai/gaudi", "NoSchedule"),
        (names.INTEL, "gpu.intel.com/i915", "NoSchedule"),
        (names.INTEL, "gpu.intel.com/xe", "NoSchedule"),
    ],
)
def test_the_usual_taint_of_a_vendors_nodes_keeps_no_agent_away(
    *, vendor: str, key: str, effect: str, listed: tuple[Object, ...]
) -> None:
    tainted = other_node(vendor=vendor, taints=[{"key": key, "value": "present", "effect": effect}])
    asked = policy(spec={"daemonsets": {"tolerations": list(listed)}})
    made = plan(settle(world(tainted, policies=(asked,)), EVERY), EVERY)
    assert made.policy_status["cluster-policy"]["state"] == "ready", condition_of(made, "Error")["message"]
    agent = next(
        one for one in made.objects if one["metadata"]["name"] == names.AGENT_DAEMON_SET and one["kind"] == "DaemonSet"
    )
    borne = agent["spec"]["template"]["spec"]["tolerations"]
    assert {"key": key, "operator": "Exists", "effect": effect} in borne
