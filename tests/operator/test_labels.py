"""Labels of Nodes: what is set where, what of a user's is kept, and what goes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import agent_report, names
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, Object
from kgpu.operator.labels import STATE_KEYS, LabelRules, UpgradeMarks, applied, deploy, label_plan
from kgpu.operator.model import ClusterNode, NodeLabels
from kgpu.operator.nodes import read_node
from tests.operator.world import PCI, node_object, policy

RULES = LabelRules.of(policy())
CONTAINER = {
    deploy(name)
    for name in (
        *("driver", "gpu-feature-discovery", "container-toolkit", "device-plugin", "dcgm", "dcgm-exporter"),
        *("node-status-exporter", "operator-validator", "client"),
    )
}
PRESENT = names.LABEL_GPU_PRESENT


def sandbox(**fields: Any) -> LabelRules:
    return LabelRules.of(policy(spec={"sandboxWorkloads": {"enabled": True, **fields}}))


def labels_for(labels: Mapping[str, str], rules: LabelRules = RULES, **fields: Any) -> dict[str, str]:
    node = read_node(node_object(labels=labels, **fields))
    change = label_plan(node, rules)
    return dict(change.labels) if change else {}


def planned(node: ClusterNode, rules: LabelRules = RULES) -> NodeLabels:
    """A plan that there has to be."""
    change = label_plan(node, rules)
    assert change is not None
    return change


def test_a_gpu_node_gets_every_operand_for_containers() -> None:
    assert labels_for({}) == {PRESENT: "true", **dict.fromkeys(CONTAINER, "true")}


@pytest.mark.parametrize("key", names.NFD_PCI_NVIDIA)
def test_each_form_of_the_pci_label_is_a_gpu(key: str) -> None:
    assert PRESENT in labels_for({key: "true"}, gpus=0)


def test_a_node_without_a_gpu_gets_nothing() -> None:
    assert label_plan(read_node(node_object(gpus=0)), RULES) is None


def test_the_agents_word_is_enough_where_no_feature_label_is() -> None:
    said = agent_report.AgentReport(gpus=8)
    node = read_node(node_object(features=False, report=said))
    change = planned(node, RULES)
    assert change.labels[PRESENT] == "true"


def test_opting_out_leaves_the_node_marked_and_starts_nothing() -> None:
    assert labels_for({names.LABEL_DEPLOY_OPERANDS: "false"}) == {PRESENT: "true"}


def test_opting_out_stops_what_somebody_else_has_started() -> None:
    node = read_node(node_object(labels={names.LABEL_DEPLOY_OPERANDS: "false", deploy("dcgm"): "true"}))
    change = planned(node, RULES)
    assert change.clear == (deploy("dcgm"),)


@pytest.mark.parametrize(
    "value", ["false", "pre-installed", "paused-for-driver-upgrade", "x_paused-for-driver-upgrade"]
)
def test_a_value_of_somebody_else_is_kept(value: str) -> None:
    assert deploy("driver") not in labels_for({deploy("driver"): value})


def test_what_a_replaced_mig_manager_has_left_paused_starts_again() -> None:
    paused = {deploy(name): names.PAUSED_FOR_MIG_CHANGE for name in ("device-plugin", "dcgm-exporter", "client")}
    given = labels_for(paused)
    assert {key: given[key] for key in paused} == dict.fromkeys(paused, "true")
    without = LabelRules.of(policy(spec={"migManager": {"enabled": False}}))
    assert not paused.keys() & labels_for(paused, without).keys(), "another manager's, which gives it back"
    after = settled(node_object(labels=paused))
    assert {after.labels[key] for key in paused} == {"true"}


def test_an_empty_value_counts_as_absent() -> None:
    assert labels_for({deploy("driver"): ""})[deploy("driver")] == "true"


def test_when_the_pci_label_is_gone_the_node_is_marked_and_operands_go() -> None:
    node = settled(node_object())
    labels = {key: value for key, value in node.labels.items() if key != PCI}
    change = planned(dataclasses.replace(node, labels=labels), RULES)
    assert change.labels == {PRESENT: "false"}


def test_when_every_feature_label_is_gone_at_once_nothing_changes() -> None:
    node = settled(node_object())
    labels = {key: value for key, value in node.labels.items() if not key.startswith(names.NFD_PREFIX)}
    assert label_plan(dataclasses.replace(node, labels=labels), RULES) is None


@pytest.mark.parametrize(
    ("workload", "mode", "suffixes"),
    [
        (
            "vm-passthrough",
            "kubevirt",
            {"sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager", "cc-manager", "client"},
        ),
        (
            "vm-passthrough",
            "kata",
            {"kata-sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager", "cc-manager", "client"},
        ),
        (
            "vm-vgpu",
            "kubevirt",
            {
                "sandbox-device-plugin",
                "vgpu-manager",
                "vgpu-device-manager",
                "sandbox-validator",
                "cc-manager",
                "client",
            },
        ),
    ],
)
def test_virtual_machine_workloads(workload: str, mode: str, suffixes: set[str]) -> None:
    found = labels_for({names.LABEL_WORKLOAD_CONFIG: workload}, sandbox(mode=mode))
    assert found.keys() - {PRESENT} == set(map(deploy, suffixes))


def test_without_sandbox_workloads_the_workload_label_means_nothing() -> None:
    assert labels_for({names.LABEL_WORKLOAD_CONFIG: "vm-vgpu"}).keys() == {PRESENT, *CONTAINER}


def test_a_workload_that_is_none_counts_as_the_default() -> None:
    rules = sandbox(defaultWorkload="container")
    assert labels_for({names.LABEL_WORKLOAD_CONFIG: "vm-quantum"}, rules).keys() == {PRESENT, *CONTAINER}


def test_changing_the_workload_stops_the_other_operands() -> None:
    node = settled(node_object(labels={deploy("dcgm"): "true"}), rules := sandbox())
    moved = dataclasses.replace(node, labels={**node.labels, names.LABEL_WORKLOAD_CONFIG: "vm-vgpu"})
    change = planned(moved, rules)
    assert (CONTAINER - {deploy("client")}) & change.labels.keys() == set()


def test_changing_the_workload_stops_what_the_replaced_operator_had_started() -> None:
    taken_over = node_object(labels={**dict.fromkeys(CONTAINER, "true"), names.LABEL_WORKLOAD_CONFIG: "vm-vgpu"})
    change = planned(read_node(taken_over), sandbox())
    assert set(change.clear) == CONTAINER - {deploy("client")}


@pytest.mark.parametrize(
    ("labels", "capable"),
    [
        ({names.LABEL_MIG_CAPABLE: "true"}, True),
        ({names.LABEL_MIG_CAPABLE: "false", names.LABEL_GPU_PRODUCT: "NVIDIA-A100"}, False),
        ({names.LABEL_GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3"}, True),
        ({names.LABEL_GPU_PRODUCT: "A30"}, True),
        ({names.LABEL_GPU_PRODUCT: "Tesla-T4"}, False),
        ({names.LABEL_MIG_CAPABLE: "true", names.LABEL_VGPU_HOST_DRIVER_VERSION: "17.1"}, False),
        ({names.LABEL_MIG_CAPABLE: "true", names.LABEL_VGPU_HOST_DRIVER_VERSION: ""}, True),
        ({}, False),
    ],
)
def test_only_where_gpus_can_be_cut_are_they_managed(labels: dict[str, str], capable: bool) -> None:
    found = labels_for(labels)
    assert (deploy("mig-manager") in found, found.get(names.MIG_CONFIG_LABEL)) == (
        capable,
        "all-disabled" if capable else None,
    )


def test_a_users_mig_layout_is_kept() -> None:
    labels = {names.LABEL_MIG_CAPABLE: "true", names.MIG_CONFIG_LABEL: "all-1g.10gb"}
    assert names.MIG_CONFIG_LABEL not in labels_for(labels)


def test_no_default_layout_when_the_policy_says_so() -> None:
    rules = LabelRules.of(policy(spec={"migManager": {"config": {"default": ""}}}))
    assert names.MIG_CONFIG_LABEL not in labels_for({names.LABEL_MIG_CAPABLE: "true"}, rules)


MIG: Final = {names.LABEL_MIG_CAPABLE: "true"}


def with_default(layout: str) -> LabelRules:
    return LabelRules.of(policy(spec={"migManager": {"config": {"default": layout}}}))


def mig_of(node: ClusterNode) -> tuple[str | None, str | None]:
    return node.labels.get(names.MIG_CONFIG_LABEL), node.annotations.get(names.MIG_DEFAULT_ANNOTATION)


def test_what_earlier_versions_have_written_does_not_act_after_an_update() -> None:
    """They wrote ``all-disabled`` on every node, also where somebody had cut GPUs by hand."""
    node = settled(node_object(labels=MIG), RULES)
    assert mig_of(node) == ("all-disabled", None)
    assert label_plan(node, RULES) is None


@pytest.mark.parametrize("layout", ["all-balanced", "all-1g.10gb"])
def test_another_default_acts_on_new_nodes_and_on_those_with_the_former_one(layout: str) -> None:
    assert mig_of(settled(node_object(labels=MIG), with_default(layout))) == (layout, layout)
    assert mig_of(settled(node_object(labels=MIG), RULES, with_default(layout))) == (layout, layout)


def test_a_default_changed_back_acts_too_and_goes_on_doing_so() -> None:
    back = settled(node_object(labels=MIG), with_default("all-balanced"), RULES)
    assert mig_of(back) == ("all-disabled", "all-disabled")
    assert label_plan(back, RULES) is None
    assert mig_of(settled(node_object(labels=MIG), with_default("all-balanced"), with_default(""))) == (None, None)


def test_a_default_never_marks_a_persons_layout() -> None:
    theirs = node_object(labels={**MIG, names.MIG_CONFIG_LABEL: "all-1g.10gb"})
    assert mig_of(settled(theirs, with_default("all-balanced"))) == ("all-1g.10gb", None)


def test_the_mark_of_upgrades_is_on_nodes_whose_driver_kgpu_exchanges_and_on_no_others() -> None:
    """It stops the driver's pod from emptying the node."""
    rules = LabelRules.of(policy(spec={"driver": {"upgradePolicy": {"autoUpgrade": True}}}))
    obj = node_object()
    obj["metadata"]["annotations"][names.DRIVER_UPGRADE_ENABLED] = "true"
    theirs = read_node(obj)
    assert names.DRIVER_UPGRADE_ENABLED not in settled(obj, rules).annotations
    ours = dataclasses.replace(theirs, owned_annotations=frozenset({names.DRIVER_UPGRADE_ENABLED}))
    assert names.DRIVER_UPGRADE_ENABLED not in applied(ours, planned(ours, rules)).annotations
    marks = UpgradeMarks(annotations={names.DRIVER_UPGRADE_ENABLED: "true"})
    change = label_plan(ours, rules, marks=marks)
    assert change is not None
    assert applied(ours, change).annotations[names.DRIVER_UPGRADE_ENABLED] == "true"
    assert label_plan(applied(ours, change), rules, marks=marks) is None


def test_a_driver_of_the_host_is_used() -> None:
    said = agent_report.AgentReport(gpus=8, driver="580.65.06", driver_source="host")
    rules = LabelRules.of(policy(spec={"driver": {"enabled": True}}))
    assert labels_for({}, rules, report=said)[deploy("driver")] == names.PRE_INSTALLED


def test_without_a_policy_everything_of_the_operators_goes() -> None:
    change = label_plan(settled(node_object()), LabelRules())
    assert change == NodeLabels(name="n1", labels={})


# Properties. A fake API server plays server-side apply; nothing of the planner's own is used to predict it.


def settled(obj: Object, *rules: LabelRules) -> ClusterNode:
    """The Node after plans under one policy after another have been carried out, twice each."""
    return asyncio.run(_carry_out(obj, [one for one in rules or (RULES,) for _ in range(2)]))


async def _carry_out(obj: Object, all_rules: list[LabelRules]) -> ClusterNode:
    api = FakeApi()
    live = api.put(NODES, obj)
    for rules in all_rules:
        change = label_plan(read_node(live), rules)
        if change is None:
            continue
        if change.clear or change.clear_annotations:
            gone = {"labels": dict.fromkeys(change.clear), "annotations": dict.fromkeys(change.clear_annotations)}
            live = await api.patch(NODES, change.name, {"metadata": gone})
        metadata = {
            "name": change.name, "labels": dict(change.labels), "annotations": dict(change.annotations),
        }  # fmt: skip
        wanted = {"metadata": {key: value for key, value in metadata.items() if value}}
        live = await api.apply(NODES, wanted, manager=names.OPERATOR_FIELD_MANAGER)
    return read_node(live)


KEYS = st.sampled_from(
    [
        *sorted(STATE_KEYS),
        *(PCI, PRESENT, names.LABEL_DEPLOY_OPERANDS, names.LABEL_WORKLOAD_CONFIG, names.MIG_CONFIG_LABEL),
        *(names.LABEL_MIG_CAPABLE, names.LABEL_DRIVER_OWNER, "example.org/mine"),
    ]
)
VALUES = st.sampled_from(
    [
        "true",
        "false",
        "",
        "pre-installed",
        "paused-for-driver-upgrade",
        "paused-for-mig-change",
        "vm-vgpu",
        "all-1g.10gb",
    ]
)
LABELS = st.dictionaries(KEYS, VALUES, max_size=8)
ALL_RULES = st.builds(
    LabelRules,
    active=st.just(True),
    sandbox=st.booleans(),
    workload=st.sampled_from(["container", "vm-passthrough", "vm-vgpu"]),
    mode=st.sampled_from(["kubevirt", "kata"]),
    driver_crd=st.booleans(),
    mig_manager=st.booleans(),
    mig_default=st.sampled_from(["", "all-disabled", "all-balanced"]),
)
NODE_OBJECTS = st.builds(lambda labels, gpus: node_object(labels=labels, gpus=gpus), LABELS, st.sampled_from([0, 8]))


@given(NODE_OBJECTS, ALL_RULES)
def test_what_has_been_carried_out_is_not_planned_again(obj: Object, rules: LabelRules) -> None:
    assert label_plan(settled(obj, rules), rules) is None


@given(NODE_OBJECTS, ALL_RULES, ALL_RULES)
def test_a_changed_policy_converges_too(obj: Object, before: LabelRules, after: LabelRules) -> None:
    assert label_plan(settled(obj, before, after), after) is None


@given(NODE_OBJECTS, ALL_RULES)
def test_a_users_value_of_an_operands_label_never_changes(obj: Object, rules: LabelRules) -> None:
    before = obj["metadata"]["labels"]
    nobodys = {"", "true", names.PAUSED_FOR_MIG_CHANGE if rules.mig_manager else ""}
    users = {key: value for key, value in before.items() if key in STATE_KEYS and value not in nobodys}
    after = settled(obj, rules).labels
    assert {key: after.get(key) for key in users} == users


@given(NODE_OBJECTS, ALL_RULES)
def test_what_is_not_the_operators_business_never_changes(obj: Object, rules: LabelRules) -> None:
    free = {names.LABEL_GPU_PRESENT, names.LABEL_DRIVER_OWNER, names.MIG_CONFIG_LABEL}
    before = {
        key: value for key, value in obj["metadata"]["labels"].items() if key not in STATE_KEYS and key not in free
    }
    after = settled(obj, rules).labels
    assert {key: after.get(key) for key in before} == before


@given(NODE_OBJECTS, ALL_RULES)
def test_leaving_takes_back_all_that_was_added(obj: Object, rules: LabelRules) -> None:
    node = settled(obj, rules)
    change = label_plan(node, LabelRules())
    left = node.labels.keys() - (node.owned if change is not None else frozenset())
    assert left <= obj["metadata"]["labels"].keys()
