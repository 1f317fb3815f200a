"""Every ``helm install`` that the documents print, and what its options do: one test for each row.

The ids in names and comments are those of the checklist of facts; T-nn are its contested statements. Objects are those
that Helm makes of the chart; what the operator does with them is then planned for a small cluster.
"""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats import names
from kgpu.formats.crd import decode
from kgpu.operator.model import NodeLayout
from tests.charts.conftest import NAMESPACE, Chart
from tests.charts.value_sets import FILES, SETS
from tests.operator.world import condition_of, healthy_node, node_object
from tests.seed_facts.support import bare_node, daemon_sets, lacks, planned, told, why

# Helm may have to be built first.
pytestmark = pytest.mark.timeout(900)
PREINSTALLED = ("driver.enabled=false", "toolkit.enabled=false")
TOLERATION = {"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}


def test_c09_d06_e05_the_plain_install_works_on_a_node_with_a_driver(chart: Chart) -> None:
    """The chart with no option at all: GPU nodes that have a driver become ready, and get no driver pod."""
    made = planned(chart().policy, healthy_node())
    assert why(made, "Ready") == ("True", "Reconciled")
    assert set(daemon_sets(made)) == {names.AGENT_DAEMON_SET, names.FINDER_DAEMON_SET}


def test_c09_d05_opr02_the_privileged_namespace_can_be_the_charts_job(chart: Chart) -> None:
    """The documents label the namespace by hand; ``psa.enabled`` has the operator do it."""
    made = planned(chart("psa.enabled=true").policy, healthy_node())
    (namespace,) = (one for one in made.objects if one["kind"] == "Namespace")
    assert namespace["metadata"]["name"] == NAMESPACE
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert not [one for one in planned(chart().policy, healthy_node()).objects if one["kind"] == "Namespace"]


def test_a81_d08_without_driver_and_toolkit_neither_is_brought(chart: Chart) -> None:
    made = planned(chart(*PREINSTALLED).policy, node_object())
    assert (why(made, "DriverReady"), why(made, "ToolkitReady")) == (("True", "Disabled"), ("True", "Disabled"))
    assert set(daemon_sets(made)) == {names.AGENT_DAEMON_SET, names.FINDER_DAEMON_SET}


def test_d08_with_only_the_driver_pre_installed_the_toolkit_is_brought(chart: Chart) -> None:
    made = planned(chart("driver.enabled=false").policy, healthy_node())
    assert (why(made, "DriverReady"), why(made, "ToolkitReady")) == (("True", "Disabled"), ("True", "Ready"))


def test_d08_a_node_without_a_driver_gets_one_by_default(chart: Chart) -> None:
    names_of = set(daemon_sets(planned(chart().policy, bare_node())))
    assert [name for name in names_of if name.startswith("nvidia-driver-daemonset")]


def test_a82_t23_opr13_without_any_gpu_there_is_nothing_to_do_and_it_is_ready(chart: Chart) -> None:
    """No operand is waited for, no Event but the one that says what was looked for."""
    made = planned(chart(*PREINSTALLED).policy, healthy_node("laptop", gpus=0))
    assert made.policy_status["cluster-policy"]["state"] == "ready"
    assert why(made, "Ready") == ("True", "NoGPUNodes")
    said = condition_of(made, "Ready")["message"]
    assert lacks(said, "laptop", "pci-10de.present", "nothing where there are none") == []
    assert {one.reason for one in made.advice} == {"NoGPUNodes"}


def test_a85_the_object_is_called_cluster_policy(chart: Chart) -> None:
    assert chart().one("ClusterPolicy", "cluster-policy")["apiVersion"] == "nvidia.com/v1"


def test_b31_every_option_arrives(chart: Chart) -> None:
    policy = chart(*SETS["B31"]).policy
    assert [policy[section]["enabled"] for section in ("driver", "toolkit", "dcgmExporter")] == [True, True, True]
    assert policy["mig"]["strategy"] == "single"


def test_b31_node_features_are_an_option(chart: Chart) -> None:
    """``nfd.enabled`` decides over the built-in discovery."""

    def told_operator(sets: tuple[str, ...]) -> str:
        pod = chart(*sets).one("Deployment", "gpu-operator")["spec"]["template"]["spec"]
        env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
        return str(env["KGPU_DISCOVERY"])

    assert (told_operator(SETS["B31"]), told_operator(("nfd.enabled=false",))) == ("true", "false")


def test_b103_the_service_monitors_options_arrive(chart: Chart) -> None:
    monitor = chart(*SETS["B103"]).policy["dcgmExporter"]["serviceMonitor"]
    assert (monitor["enabled"], monitor["additionalLabels"]) == (True, {"release": "kube-prometheus"})


def test_b24_cdi_is_on_unless_it_is_switched_off(chart: Chart) -> None:
    """B24: CDI is what containers get their devices by."""
    assert strategy(chart().policy) == "cdi-annotations,cdi-cri"
    assert strategy(chart("cdi.enabled=false").policy) == "envvar"


def strategy(spec: dict[str, Any]) -> str:
    return agent_settings(spec)["roles"]["deviceplugin"]["env"]["DEVICE_LIST_STRATEGY"]


def agent_settings(spec: dict[str, Any]) -> dict[str, Any]:
    """What agents are told under this policy."""
    import json

    made = planned(spec, healthy_node())
    (config,) = (one["data"] for one in made.objects if names.AGENT_CONFIG_KEY in one.get("data", {}))
    return json.loads(config[names.AGENT_CONFIG_KEY])


def test_d07_t21_the_documented_defaults(chart: Chart) -> None:
    """T-21: the MIG strategy is none, as the text says, and not the newer chart's single."""
    policy = chart().policy
    assert {policy[one]["enabled"] for one in ("driver", "toolkit", "dcgmExporter", "cdi")} == {True}
    assert policy["mig"]["strategy"] == "none"
    assert policy["driver"]["version"]


@pytest.mark.parametrize("wanted", ["single", "mixed", "none"])
def test_d22_e06_a52_the_mig_strategy_reaches_plugin_and_labels(chart: Chart, wanted: str) -> None:
    roles = agent_settings(chart(f"mig.strategy={wanted}").policy)["roles"]
    assert {roles[role]["env"]["MIG_STRATEGY"] for role in ("deviceplugin", "labels")} == {wanted}


E06 = (
    "driver.enabled=true", "driver.version=550.54.15", "toolkit.enabled=true", "devicePlugin.enabled=true",
    "dcgmExporter.enabled=true", "gfd.enabled=true", "mig.strategy=mixed",
)  # fmt: skip


def test_e06_every_option_of_the_custom_install_arrives(chart: Chart) -> None:
    policy = chart(*E06).policy
    assert policy["driver"]["version"] == "550.54.15"
    assert {policy[one]["enabled"] for one in ("toolkit", "devicePlugin", "dcgmExporter", "gfd")} == {True}
    assert policy["mig"]["strategy"] == "mixed"


@pytest.mark.parametrize(
    ("switch", "condition"),
    [
        ("toolkit.enabled", "ToolkitReady"), ("devicePlugin.enabled", "DevicePluginReady"),
        ("gfd.enabled", "FeatureDiscoveryReady"), ("dcgmExporter.enabled", "DCGMExporterReady"),
        ("migManager.enabled", "MIGManagerReady"), ("driver.enabled", "DriverReady"),
    ],
)  # fmt: skip
def test_b31_e06_each_switch_is_one(chart: Chart, switch: str, condition: str) -> None:
    on, off = (planned(chart(f"{switch}={value}").policy, healthy_node()) for value in ("true", "false"))
    assert why(off, condition) == ("True", "Disabled")
    assert why(on, condition) != ("True", "Disabled")


@pytest.mark.parametrize("version", ["550.54.15", "550.127.08", "580.65.06", "595.91.07"])
def test_t39_b31_any_driver_version_is_taken_and_run(chart: Chart, version: str) -> None:
    made = planned(chart(f"driver.version={version}").policy, bare_node())
    images = {
        container["image"]
        for one in daemon_sets(made).values()
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert f"nvcr.io/nvidia/driver:{version}-ubuntu24.04" in images


def test_e07_every_key_of_the_values_file_arrives(chart: Chart) -> None:
    """The lesson's file: what it names is in the policy, letter by letter."""
    policy = chart(values=FILES["E07"]).policy
    for section, given in FILES["E07"].items():
        found = {key: policy[section][key] for key in given}
        assert found == given, section
    assert decode.clusterpolicy({"spec": policy}).warnings == ()


def test_e07_ts02_the_config_map_that_the_lesson_never_makes_is_named(chart: Chart) -> None:
    made = planned(chart(values=FILES["E07"]).policy, healthy_node())
    assert why(made, "DevicePluginReady") == ("False", "ConfigMapMissing")
    said = condition_of(made, "DevicePluginReady")["message"]
    assert lacks(said, "gpu-operator/time-slicing-config", "create configmap time-slicing-config") == []


def test_a33_e07_t37_opr24_opr26_images_of_an_older_guide_are_not_run_and_said(chart: Chart) -> None:
    """Toolkit 1.14.3, plugin and GFD 0.14.3: none of them is started, so none can break; each is told."""
    made = planned(chart(values=FILES["E07"]).policy, healthy_node())
    said = told(made, "ImageIgnored")
    versions = {word for one in said for word in one.evidence if word.startswith("v")}
    assert versions == {"v1.14.3-ubuntu20.04", "v0.14.3"}
    assert len(said) == 4  # the exporter is kgpu's own too
    assert all("chart's value image" in one.remedy for one in said)


def test_e07_a41_the_tolerations_of_the_file_are_the_pods(chart: Chart) -> None:
    made = planned(chart(values=FILES["E07"]).policy, healthy_node())
    pod = daemon_sets(made)[names.AGENT_DAEMON_SET]["spec"]["template"]["spec"]
    assert TOLERATION in pod["tolerations"]


def test_d02_direct_storage_is_brought_with_the_driver(chart: Chart) -> None:
    settings = {"GDS_IMAGE": "example.org/nvidia-fs:1"}
    made = chart("gds.enabled=true", *(f"gds.{key}={value}" for key, value in image_of(settings["GDS_IMAGE"]).items()))
    (driver,) = (one for name, one in daemon_sets(planned(made.policy, bare_node())).items() if "driver" in name)
    found = [one["image"] for one in driver["spec"]["template"]["spec"]["containers"]]
    assert "example.org/nvidia-fs:1-ubuntu24.04" in found


def image_of(reference: str) -> dict[str, str]:
    place, _, version = reference.rpartition(":")
    repository, _, image = place.rpartition("/")
    return {"repository": repository, "image": image, "version": f"{version}"}


def test_a38_precompiled_drivers_are_chosen_by_kernel(chart: Chart) -> None:
    made = planned(chart("driver.usePrecompiled=true", "driver.version=580").policy, bare_node())
    (driver,) = (one for name, one in daemon_sets(made).items() if "driver" in name)
    template = driver["spec"]["template"]["spec"]
    assert template["containers"][0]["image"] == "nvcr.io/nvidia/driver:580-6.8.0-40-generic-ubuntu24.04"
    assert template["nodeSelector"][names.NFD_KERNEL_FULL] == "6.8.0-40-generic"


def test_a74_b24_the_nri_plugin_is_an_option_that_needs_cdi(chart: Chart) -> None:
    roles = agent_settings(chart("cdi.nriPluginEnabled=true").policy)["roles"]
    assert roles["toolkit"]["env"]["ENABLE_NRI_PLUGIN"] == "true"
    assert "cdi.enabled=true" in chart("cdi.nriPluginEnabled=true", "cdi.enabled=false").error


B33 = {
    "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset", "nvidia-operator-validator",
    "gpu-feature-discovery",
}  # fmt: skip


def test_b33_e10_a86_daemon_sets_have_the_documented_names_in_their_layout(chart: Chart) -> None:
    """Pods are called after their DaemonSet. A CUDA validator that ends as Completed is not among them: T-09, T-13."""
    spec = chart("layout=operands").policy
    made = planned(spec, bare_node(), layout=NodeLayout.OPERANDS)
    found = set(daemon_sets(made))
    assert found >= {*B33, "nvidia-driver-daemonset"}
    assert not [name for name in found if "cuda-validator" in name]
    assert chart().has("Deployment", "gpu-operator")


def test_d93_pods_carry_the_label_app_that_the_documents_select_by(chart: Chart) -> None:
    made = planned(chart("layout=operands").policy, bare_node(), layout=NodeLayout.OPERANDS)
    labels = {one["spec"]["template"]["metadata"]["labels"]["app"] for one in daemon_sets(made).values()}
    assert labels >= {*B33, "nvidia-driver-daemonset"}


def test_a16_the_plugins_pod_is_privileged_and_has_the_kubelets_folder(chart: Chart) -> None:
    for layout, name in ((NodeLayout.AGENT, "kgpu-agent"), (NodeLayout.OPERANDS, "nvidia-device-plugin-daemonset")):
        pod = daemon_sets(planned(chart().policy, healthy_node(), layout=layout))[name]["spec"]["template"]["spec"]
        paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
        mounted = {paths[mount["name"]] for one in pod["containers"] for mount in one["volumeMounts"]}
        assert "/var/lib/kubelet/device-plugins" in mounted
        assert [one["securityContext"]["privileged"] for one in pod["containers"]] == [True]


def test_opr05_the_operators_memory_is_an_option(chart: Chart) -> None:
    made = chart("operator.resources.limits.memory=1400Mi")
    pod = made.one("Deployment", "gpu-operator")["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["memory"] == "1400Mi"


def test_opr01_an_upgrade_brings_the_definitions_up_to_date(chart: Chart) -> None:
    job = chart().one("Job", "gpu-operator-upgrade-crd")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][:2] == ["crds", "apply"]


def test_b109_opr08_uninstalling_takes_everything_back_first(chart: Chart) -> None:
    job = chart().one("Job", "gpu-operator-cleanup")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][:2] == ["operator", "cleanup"]


def test_opr09_one_value_moves_every_image_of_kgpus_to_a_mirror(chart: Chart) -> None:
    text = chart("image.repository=mirror.local/kgpu", "layout=operands").text
    assert "mirror.local/kgpu" in text
    assert "kgpu.dev/kgpu" not in text
