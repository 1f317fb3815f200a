"""What the documents say of nodes: discovery's labels, taints, runtimes, versions, which node gets what.

The ids in names and comments are those of the checklist of facts; T-nn are its contested statements.
"""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.features.plan import plan as features
from kgpu.formats import agent_report, names
from kgpu.formats.operands import OPERANDS
from kgpu.operator.model import ObservedCluster
from kgpu.operator.nodes import read_node
from kgpu.operator.plan import plan
from tests.operator.world import (
    HOST_DRIVER,
    SETTINGS,
    change_of,
    condition_of,
    healthy_node,
    node_object,
    policy,
    report,
)
from tests.seed_facts.support import AS_OPERANDS, bare_node, daemon_sets, lacks, planned, told, why

NFD = "feature.node.kubernetes.io/"


def pci(vendor: str, pci_class: str = "0302") -> FeatureSet:
    return FeatureSet(instances={"pci.device": ({"class": pci_class, "vendor": vendor},)})


def test_a20_e03_t35_both_forms_of_the_pci_label() -> None:
    """T-35: the query of the lesson finds the node, and so does the one for discovery's own default."""
    found = features(pci("10de"))
    assert (found[f"{NFD}pci-10de.present"], found[f"{NFD}pci-0302_10de.present"]) == ("true", "true")


@pytest.mark.parametrize("label", [f"{NFD}pci-10de.present", f"{NFD}pci-0302_10de.present"])
def test_a20_e08_the_operator_selects_the_node_by_either(label: str) -> None:
    """``nvidia.com/gpu.present`` and the operands' labels are the operator's."""
    made = plan(
        ObservedCluster(policies=(policy(),), nodes=(read_node(node_object(gpus=0, labels={label: "true"})),)), SETTINGS
    )
    change = change_of(made)
    assert change is not None
    assert change.labels["nvidia.com/gpu.present"] == "true"
    assert change.labels["nvidia.com/gpu.deploy.device-plugin"] == "true"


@pytest.mark.parametrize(
    ("vendor", "pci_class", "label"),
    [("10de", "0302", "pci-10de"), ("1002", "0380", "pci-1002"), ("1da3", "1200", "pci-1da3"),
     ("8086", "0380", "pci-8086")],
)  # fmt: skip
def test_a04_c02_fleets_of_several_vendors_are_labelled(vendor: str, pci_class: str, label: str) -> None:
    """NVIDIA, AMD, Gaudi, Intel; only the first is the operator's to label further."""
    assert features(pci(vendor, pci_class))[f"{NFD}{label}.present"] == "true"


@pytest.mark.parametrize("vendor", ["1002", "1da3", "8086"])
def test_a04_a_node_of_another_vendor_gets_no_nvidia_label(vendor: str) -> None:
    node = node_object(gpus=0, labels={f"{NFD}pci-{vendor}.present": "true"})
    made = plan(ObservedCluster(policies=(policy(),), nodes=(read_node(node),)), SETTINGS)
    assert change_of(made) is None


def test_b10_the_labels_of_cpu_and_kernel() -> None:
    cpu, kernel = {"vendor_id": "Intel", "family": "6", "id": "106"}, {"full": "5.15.0-1041-azure", "major": "5"}
    found = features(FeatureSet(attributes={"cpu.model": cpu, "kernel.version": kernel}))
    assert found[f"{NFD}cpu-model.vendor_id"] == "Intel"
    assert found[f"{NFD}kernel-version.major"] == "5"


def tainted(value: str = "", **changes: Any) -> Any:
    taint = {"key": names.GPU_RESOURCE, "effect": "NoSchedule", **({"value": value} if value else {})}
    return healthy_node(taints=[taint], **changes)


@pytest.mark.parametrize("value", ["present", ""])
def test_a40_a41_c11_d50_the_documents_taints_keep_no_operand_away(value: str) -> None:
    """``nvidia.com/gpu=present:NoSchedule`` (A, D) and ``nvidia.com/gpu:NoSchedule`` (C)."""
    made = planned(HOST_DRIVER, tainted(value))
    assert made.policy_status["cluster-policy"]["state"] == "ready"


@pytest.mark.parametrize("settings", [SETTINGS, AS_OPERANDS], ids=lambda one: one.layout.value)
def test_a41_every_daemon_set_has_the_toleration_with_exists(settings: Any) -> None:
    every = daemon_sets(planned({}, bare_node(), layout=settings.layout))
    wanted = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    lacking = [name for name, one in every.items() if wanted not in one["spec"]["template"]["spec"]["tolerations"]]
    assert (bool(every), lacking) == (True, [])


def test_d50_tolerations_of_the_users_own_are_added_to_it() -> None:
    """A list that forgets the documents' taint does not lock the operands out."""
    spec = {**HOST_DRIVER, "daemonsets": {"tolerations": [{"key": "other", "operator": "Exists"}]}}
    assert planned(spec, tainted("present")).policy_status["cluster-policy"]["state"] == "ready"


def test_d50_a_taint_of_another_name_is_told_with_the_toleration_to_write() -> None:
    made = planned(HOST_DRIVER, node_object(taints=[{"key": "team", "value": "ml", "effect": "NoSchedule"}]))
    said = condition_of(made, "Error")["message"]
    assert lacks(said, "n1", "team=ml:NoSchedule", "{key: team, operator: Exists, effect: NoSchedule}") == []


@pytest.mark.parametrize(
    ("runtime", "supported"),
    [("containerd://1.7.31", True), ("containerd://1.7.29", False), ("containerd://2.0.5", False),
     ("containerd://2.1.4", True), ("containerd://2.2.0", True), ("cri-o://1.34.1", False)],
)  # fmt: skip
def test_a01_a36_a74_a97_t01_where_the_nri_plugin_can_be_on(runtime: str, supported: bool) -> None:
    """Quiz 8: on for staging (containerd 1.7.31), off for production (CRI-O). T-01: 2.0 is none of them."""
    spec = {**HOST_DRIVER, "cdi": {"enabled": True, "nriPluginEnabled": True}}
    made = planned(spec, healthy_node(runtime=runtime))
    said = told(made, "UnsupportedVersion")
    assert (why(made, "SupportedVersions")[0] == "True") is supported
    assert bool(said) is not supported
    assert all(lacks(one.one_line(), "n1", "cdi.nriPluginEnabled: false") == [] for one in said)


@pytest.mark.parametrize(
    ("kube", "supported"), [((1, 31), False), ((1, 32), True), ((1, 35), True), ((1, 36), True), ((1, 37), False)]
)
def test_a34_opr06_versions_of_kubernetes(kube: tuple[int, int], supported: bool) -> None:
    made = planned(HOST_DRIVER, healthy_node(), kube_version=kube)
    assert (why(made, "SupportedVersions")[0] == "True") is supported


@pytest.mark.parametrize(
    ("runtime", "supported"),
    [("containerd://1.6.33", False), ("containerd://1.7.0", True), ("containerd://2.2.5", True)],
)
def test_a35_opr06_versions_of_containerd(runtime: str, supported: bool) -> None:
    made = planned(HOST_DRIVER, healthy_node(runtime=runtime))
    assert (why(made, "SupportedVersions")[0] == "True") is supported


@pytest.mark.parametrize("driver", ["570.124.06", "570.133.20", "570.148.08", "570.158.01"])
def test_a53_a73_t03_the_drivers_that_break_mig_are_named_with_the_way_out(driver: str) -> None:
    said = agent_report.AgentReport(
        generation=1, gpus=8, driver=driver, driver_source="host", roles=report().roles, version="1"
    )
    node = healthy_node(report=said, labels={names.LABEL_MIG_CAPABLE: "true"})
    (one,) = told(planned({**HOST_DRIVER, "mig": {"strategy": "mixed"}}, node), "UnsupportedVersion")
    assert lacks(one.one_line(), driver, "580.65.06", "570.172.08", "570.86.15") == []


def test_opr06_what_is_outside_of_the_matrix_holds_nothing_up() -> None:
    made = planned(HOST_DRIVER, healthy_node(runtime="containerd://1.6.33"))
    assert made.policy_status["cluster-policy"]["state"] == "ready"


def driver_pods(*nodes: Any, **spec: Any) -> dict[str, Any]:
    found = daemon_sets(planned({"driver": spec}, *nodes))
    return {name: one for name, one in found.items() if name.startswith("nvidia-driver-daemonset")}


def test_d05_drv29_workers_may_have_different_systems() -> None:
    """The text demands one system; here each system gets a driver of its own."""
    one = bare_node("a")
    other = bare_node("b", labels={names.NFD_OS_VERSION: "22.04"})
    images = {
        pod["spec"]["template"]["spec"]["containers"][0]["image"].rpartition("-")[2]
        for pod in driver_pods(one, other).values()
    }
    assert images == {"ubuntu24.04", "ubuntu22.04"}


def test_c36_the_driver_is_a_privileged_container() -> None:
    (pod,) = driver_pods(bare_node()).values()
    assert pod["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] is True


def test_d08_a_node_whose_host_has_a_driver_gets_none() -> None:
    made = planned({}, healthy_node())
    assert why(made, "DriverReady")[0] == "True"
    assert driver_pods(healthy_node()) == {}


def test_d03_states_are_listed_in_the_order_of_the_text() -> None:
    """NFD, then driver and toolkit, then the plugin, then GFD, DCGM exporter and MIG manager; exporter first here."""
    made = planned({}, healthy_node())
    listed = [one["type"] for one in made.policy_status["cluster-policy"]["conditions"]]
    wanted = ["NodeFeaturesReady", "DriverReady", "ToolkitReady", "DevicePluginReady"]
    assert [one for one in listed if one in wanted] == wanted
    last = {"FeatureDiscoveryReady", "DCGMExporterReady", "MIGManagerReady"}
    assert min(map(listed.index, last)) > listed.index("DevicePluginReady")


B30_C08 = {
    "driver", "toolkit", "device-plugin", "gfd", "dcgm-exporter", "mig-manager", "validator", "features",
}  # fmt: skip


def test_b30_c08_d02_every_component_has_a_condition() -> None:
    made = planned({}, healthy_node())
    types = {one["type"] for one in made.policy_status["cluster-policy"]["conditions"]}
    assert {one.condition for one in OPERANDS if one.name in B30_C08} <= types
    assert {one.name for one in OPERANDS} >= B30_C08


def test_d04_what_somebody_has_deleted_is_wanted_again() -> None:
    """Desired and actual state are compared on every pass."""
    before = planned(HOST_DRIVER, healthy_node())
    without = plan(ObservedCluster(policies=(policy(),), nodes=(read_node(healthy_node()),), daemon_sets={}), SETTINGS)
    assert daemon_sets(without) == daemon_sets(before)
    assert why(without, "ToolkitReady")[0] == "False"


def test_e04_opr23_beside_another_node_feature_discovery_the_built_in_one_stands_back() -> None:
    """Two of them would write the same labels; the one that is there is used. Label by label: ``discovery.features``."""
    made = planned(HOST_DRIVER, healthy_node(), foreign_nfd=True)
    found = condition_of(made, "NodeFeaturesReady")
    assert (found["status"], found["reason"]) == ("True", "Ready")
    assert "another node feature discovery works in this cluster and is used" in found["message"]
    assert made.policy_status["cluster-policy"]["state"] == "ready"


def test_b83_a_label_that_a_user_has_set_by_hand_stays() -> None:
    """Operands' labels are the operator's only while nobody else has said otherwise."""
    key = f"{names.LABEL_DEPLOY_PREFIX}dcgm-exporter"
    node = read_node(node_object(labels={key: "false"}))
    change = change_of(plan(ObservedCluster(policies=(policy(),), nodes=(node,)), SETTINGS))
    assert change is not None
    assert key not in {*change.labels, *change.clear}


def test_c39_b11_nodes_that_can_be_cut_are_marked_for_the_mig_manager() -> None:
    nodes = (
        node_object("a100", labels={names.LABEL_GPU_PRODUCT: "NVIDIA-A100-SXM4-80GB"}),
        node_object("t4", labels={names.LABEL_GPU_PRODUCT: "Tesla-T4"}),
    )
    made = plan(ObservedCluster(policies=(policy(),), nodes=tuple(map(read_node, nodes))), SETTINGS)
    key = f"{names.LABEL_DEPLOY_PREFIX}mig-manager"
    found = {name: change.labels.get(key) for name in ("a100", "t4") if (change := change_of(made, name))}
    assert found == {"a100": "true", "t4": None}
