"""How a node's GPUs are handed out: which program runs, and what is told where that is not what somebody asks for."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import msgspec
import pytest

from kgpu.base.advice import Advice
from kgpu.formats import agent_report, names
from kgpu.kube.kinds import RESOURCE_SLICES, plural_and_group
from kgpu.operator.allocation import AllocationRules, allocation_rules, allocators
from kgpu.operator.labels import deploy
from kgpu.operator.model import Allocation, NodeLayout, ObservedCluster, OperatorSettings
from kgpu.operator.overview import overview
from kgpu.operator.plan import plan
from tests.operator.test_vendors import other_node
from tests.operator.world import (
    HOST_DRIVER,
    SETTINGS,
    condition_of,
    healthy_node,
    policy,
    report,
    settle,
    status_of,
    world,
)  # fmt: skip

LABEL: Final = names.ALLOCATION_LABEL
PLUGIN, DRA = deploy("device-plugin"), deploy("dra-driver")
SERVED: Final = frozenset({plural_and_group(RESOURCE_SLICES)})
CLAIMS: Final = dataclasses.replace(SETTINGS, dra=True)
LAYOUTS: Final = (CLAIMS, dataclasses.replace(CLAIMS, layout=NodeLayout.OPERANDS))


def with_claims(*nodes: Any, settings: OperatorSettings = CLAIMS, **fields: Any) -> ObservedCluster:
    return world(*nodes, settings=settings, kinds=fields.pop("kinds", SERVED), **fields)


def claiming(name: str = "n1", **changes: Any) -> Any:
    """A well node that hands out its GPUs by claims."""
    roles = {"dra": agent_report.role("running", "8 devices in 1 ResourceSlices")}
    return healthy_node(name, labels={LABEL: "dra"}, report=report(**roles), allocatable={"cpu": "8"}, **changes)


def runs(observed: ObservedCluster, name: str = "n1") -> set[str]:
    labels = next(node.labels for node in observed.nodes if node.name == name)
    return {key for key in (PLUGIN, DRA) if labels.get(key) == "true"}


def told(observed: ObservedCluster, settings: OperatorSettings, reason: str) -> list[Advice]:
    return [one for one in plan(observed, settings).advice if one.reason == reason]


@pytest.mark.parametrize("default", Allocation)
@pytest.mark.parametrize("label", [*Allocation, None, "", "DRA", "both"])
def test_the_label_decides_and_what_is_no_choice_counts_as_absent(default: Allocation, label: str | None) -> None:
    labels = {} if label is None else {LABEL: label}
    wanted = Allocation(label) if label in list(Allocation) else default
    assert allocators(labels, AllocationRules(default=default, claims=True)) == {wanted}
    assert allocators(labels, AllocationRules(default=default)) == {Allocation.DEVICE_PLUGIN}


def test_claims_need_the_switch_and_the_api() -> None:
    served, without = ObservedCluster(kinds=SERVED), ObservedCluster()
    assert allocation_rules(CLAIMS, served).claims
    assert not allocation_rules(CLAIMS, without).claims
    assert not allocation_rules(SETTINGS, served).claims


def test_on_each_node_one_of_them_runs() -> None:
    observed = with_claims(claiming(), healthy_node("n2"), healthy_node("cpu", gpus=0, labels={LABEL: "dra"}))
    assert (runs(observed), runs(observed, "n2"), runs(observed, "cpu")) == ({DRA}, {PLUGIN}, set())


def test_a_default_of_claims_is_for_nodes_without_the_label() -> None:
    settings = dataclasses.replace(CLAIMS, allocation=Allocation.DRA)
    observed = with_claims(healthy_node(), healthy_node("n2", labels={LABEL: "device-plugin"}), settings=settings)
    assert (runs(observed), runs(observed, "n2")) == ({DRA}, {PLUGIN})


def test_a_node_that_changes_loses_the_one_as_it_gets_the_other() -> None:
    before = with_claims(healthy_node())
    node = before.nodes[0]
    moved = dataclasses.replace(before, nodes=(dataclasses.replace(node, labels={**node.labels, LABEL: "dra"}),))
    (change,) = plan(moved, CLAIMS).nodes
    assert (change.labels.get(DRA), PLUGIN in change.labels, change.clear) == ("true", False, ())


@pytest.mark.parametrize("settings", LAYOUTS)
def test_a_driver_goes_on_until_its_last_claim_is_taken_back(settings: OperatorSettings) -> None:
    """Its role says so, which is no more wanted there and waits; what it says before it knows that counts, too."""
    apart = settings.layout is NodeLayout.OPERANDS
    observed = with_claims(claiming(apart=apart), settings=settings)
    node = observed.nodes[0]
    assert node.labels[DRA] == "true"
    seen = []
    for state in ("running", "waiting", "waiting", "stopped"):
        assert node.report is not None
        roles = {**node.report.roles, "dra": agent_report.role(state, "pods still have 1 claim", "SwitchedOff")}
        labels = {key: value for key, value in node.labels.items() if key != LABEL}
        node = dataclasses.replace(node, labels=labels, report=msgspec.structs.replace(node.report, roles=roles))
        observed = settle(dataclasses.replace(observed, nodes=(node,)), settings)
        node = observed.nodes[0]
        seen.append((node.labels.get(DRA), node.labels.get(PLUGIN)))
        assert condition_of(plan(observed, settings), "DRADriverReady")["status"] == "True"
        assert "SwitchedOff" not in {one.reason for one in overview(observed, settings).problems}
    assert seen == [("leaving", "true")] * 3 + [(None, "true")]


def test_gpus_that_claims_still_have_are_not_called_unhealthy() -> None:
    fewer = {"cpu": "8", names.GPU_RESOURCE: "7"}
    roles = {"dra": agent_report.role("waiting", "pods still have 1 claim")}
    observed = with_claims(healthy_node(labels={LABEL: "dra"}, report=report(**roles), allocatable=fewer))
    assert status_of(plan(observed, CLAIMS))["state"] == "notReady"  # the driver is wanted and waits
    labels = {**observed.nodes[0].labels, LABEL: "device-plugin"}
    back = settle(dataclasses.replace(observed, nodes=(dataclasses.replace(observed.nodes[0], labels=labels),)), CLAIMS)
    assert back.nodes[0].labels[DRA] == "leaving"
    assert status_of(plan(back, CLAIMS))["state"] == "ready"
    sick = with_claims(healthy_node(allocatable=fewer))
    assert condition_of(plan(sick, CLAIMS), "DevicePluginReady")["reason"] == "DevicesUnhealthy"


def test_a_device_plugin_that_somebody_else_has_asked_for_goes_too() -> None:
    node = claiming()
    node["metadata"]["labels"][PLUGIN] = "true"
    assert runs(with_claims(node)) == {DRA}


@pytest.mark.parametrize("settings", LAYOUTS)
def test_a_node_of_each_kind_is_ready(settings: OperatorSettings) -> None:
    apart = settings.layout is NodeLayout.OPERANDS
    nodes = (claiming(apart=apart), healthy_node("n2", report=report(), apart=apart))
    made = plan(with_claims(*nodes, settings=settings), settings)
    assert [status_of(made)["state"], *(condition_of(made, kind)["message"] for kind in ("DRADriverReady",))] == [
        "ready", "1 of 1 nodes",
    ]  # fmt: skip
    assert condition_of(made, "DevicePluginReady")["message"] == "1 of 1 nodes"
    assert not made.advice


def test_a_driver_that_fails_is_named_with_its_node() -> None:
    failing = report(dra=agent_report.role("failed", "no kubelet"))
    made = plan(with_claims(healthy_node(labels={LABEL: "dra"}, report=failing)), CLAIMS)
    assert status_of(made)["state"] == "notReady"
    assert "node n1: " in condition_of(made, "DRADriverReady")["message"]


def test_a_value_that_is_no_choice_is_told_once_on_its_node() -> None:
    observed = with_claims(healthy_node(labels={LABEL: "DRAA"}), healthy_node("cpu", gpus=0, labels={LABEL: "x"}))
    (advice,) = told(observed, CLAIMS, "InvalidAllocation")
    assert advice.subject == "Node/n1"
    assert f'{LABEL} is "DRAA"' in advice.what
    assert "device-plugin" in advice.why
    assert f"kubectl label node n1 {LABEL}-" in advice.remedy
    assert runs(observed) == {PLUGIN}
    assert status_of(plan(observed, CLAIMS))["state"] == "ready"
    assert told(with_claims(healthy_node(labels={LABEL: "DRAA"}), settings=SETTINGS), SETTINGS, "InvalidAllocation")


def test_the_label_alone_changes_nothing_and_says_so() -> None:
    observed = with_claims(healthy_node(labels={LABEL: "dra"}), settings=SETTINGS)
    (advice,) = told(observed, SETTINGS, "ClaimsSwitchedOff")
    assert "on n1" in advice.what
    assert "dra.enabled=true" in advice.remedy
    assert runs(observed) == {PLUGIN}
    assert condition_of(plan(observed, SETTINGS), "DRADriverReady")["reason"] == "Disabled"


@pytest.mark.parametrize("vendor", [names.AMD, names.GAUDI])
@pytest.mark.parametrize(("label", "reason"), [("draa", "InvalidAllocation"), ("dra", "ClaimsSwitchedOff")])
def test_nodes_of_every_vendor_are_told(vendor: str, label: str, reason: str) -> None:
    node = other_node(vendor=vendor)
    node["metadata"]["labels"][LABEL] = label
    observed = with_claims(node, settings=SETTINGS)
    assert [advice.reason for advice in plan(observed, SETTINGS).advice if LABEL in advice.what] == [reason]
    assert [one.reason for one in overview(observed, SETTINGS).problems if LABEL in one.what] == [reason]


def test_without_the_api_the_device_plugin_goes_on_and_it_is_told_what_is_missing() -> None:
    observed = with_claims(healthy_node(labels={LABEL: "dra"}), kinds=frozenset(), kube_version=(1, 33))
    (advice,) = told(observed, CLAIMS, "ClaimsNotServed")
    assert "no resource.k8s.io" in advice.what
    assert "1.33" in advice.why
    assert "DynamicResourceAllocation" in advice.why
    assert "1.34" in advice.remedy
    assert runs(observed) == {PLUGIN}
    made = plan(observed, CLAIMS)
    assert status_of(made)["state"] == "ready"
    assert "the API server has no resource.k8s.io" in condition_of(made, "DRADriverReady")["message"]


def test_a_label_that_names_no_choice_is_shown_without_what_a_terminal_obeys() -> None:
    observed = with_claims(healthy_node(labels={LABEL: "\x1b[2J" + "x" * 300}))
    (advice,) = told(observed, CLAIMS, "InvalidAllocation")
    assert "\x1b" not in advice.what
    assert len(advice.what) < 300


def test_status_shows_both_and_what_is_missing() -> None:
    found = overview(with_claims(claiming(), healthy_node("n2")), CLAIMS)
    rows = {row.name: row.operands for row in found.nodes}
    assert (rows["n1"]["dra"], rows["n1"]["device-plugin"]) == ("works", "off")
    assert (rows["n2"]["dra"], rows["n2"]["device-plugin"]) == ("off", "works")
    missing = overview(with_claims(healthy_node(), kinds=frozenset()), CLAIMS)
    assert [one.reason for one in missing.problems if one.warning] == ["ClaimsNotServed"]


def test_gates_that_are_off_are_told_where_a_driver_does_without_something() -> None:
    said = "8 devices in 1 ResourceSlices; DRADeviceTaints is off: devices that are not to be used are left out instead"
    nodes = [
        healthy_node(name, labels={LABEL: "dra"}, report=report(dra=agent_report.role("running", said)))
        for name in ("n1", "n2")
    ]
    observed = with_claims(*nodes)
    (advice,) = told(observed, CLAIMS, "FeatureGatesOff")
    assert advice.what.endswith(": DRADeviceTaints is off: devices that are not to be used are left out instead")
    assert "FeatureGatesOff" in [one.reason for one in overview(observed, CLAIMS).problems if one.warning]
    assert not told(with_claims(claiming()), CLAIMS, "FeatureGatesOff")


def test_gates_reach_the_driver_and_the_host_folders_its_pod() -> None:
    spec = {**HOST_DRIVER, "hostPaths": {"kubeletRootDir": "/var/lib/k0s/kubelet"}}
    settings = dataclasses.replace(LAYOUTS[1], dra_gates="DynamicMIG=true")
    observed = with_claims(healthy_node(), settings=settings, policies=(policy(spec=spec),))
    made = plan(observed, settings)
    pod = next(
        one["spec"]["template"]["spec"]
        for one in made.objects
        if (one["kind"], one["metadata"]["name"]) == ("DaemonSet", "kgpu-dra-driver")
    )
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert env["FEATURE_GATES"] == "DynamicMIG=true"
    folder = env["KUBELET_PLUGINS_DIRECTORY_PATH"]
    assert folder == "/var/lib/k0s/kubelet/plugins"
    assert env["KUBELET_REGISTRAR_DIRECTORY_PATH"] == "/var/lib/k0s/kubelet/plugins_registry"
    mounts = {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert {f"{folder}/{driver}" for driver in names.DRA_DRIVERS} < mounts
    assert {env["KUBELET_REGISTRAR_DIRECTORY_PATH"], "/var/run/cdi"} <= mounts
    assert {
        f"/var/lib/kubelet/plugins/{driver}" for driver in names.DRA_DRIVERS
    } < mounts  # where the device plugin looks for claims
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": DRA, "operator": "In", "values": ["true", "leaving"]}]
    folders = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "dra-driver"]
    assert {one["mountPropagation"] for one in folders} == {"Bidirectional"}  # shared memory of MPS daemons
    assert pod["hostPID"] is True
    names_of_volumes = [one["name"] for one in pod["volumes"]]
    assert len(names_of_volumes) == len(set(names_of_volumes))


def test_without_the_switch_nothing_of_it_is_made() -> None:
    for settings in (SETTINGS, dataclasses.replace(SETTINGS, layout=NodeLayout.OPERANDS)):
        made = plan(world(healthy_node(), settings=settings), settings)
        texts = [str(one) for one in made.objects if one["kind"] != "ConfigMap"]
        assert not [text for text in texts if "plugins_registry" in text or "kgpu-dra" in text]
