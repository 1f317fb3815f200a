"""kgpu's operator in embedded labs with accelerators of other vendors: pods get them, and everything of NVIDIA's stays off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.formats.mig_request import read_report
from kgpu.formats.names import (
    AGENT_DAEMON_SET,
    ALLOCATION_LABEL,
    AMD_DEVICECONFIG_FINALIZER,
    AMD_GPU_RESOURCE,
    AMD_PROFILE_LABEL,
    DRA_AMD_DRIVER,
    DRA_GAUDI_DRIVER,
    GAUDI_RESOURCE,
    GPU_OPERATOR_NAMESPACE,
    GPU_RESOURCE,
    LABEL_GPU_PRESENT,
    LABEL_VENDOR,
    PARTITION_REPORT_ANNOTATION,
    ROLES_ANNOTATION,
    SERVICE_NAME_LABEL,
)
from kgpu.hw.simulator import operate
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from tests import polling
from tests.lab.vendors_story import NVIDIAS, SEES, XE, MixedLab
from tests.operator.test_device_configs import AMDS_DEFAULT
from tools import lab_operator

pytestmark = pytest.mark.timeout(600)
PCI = "node-feature-discovery.worker.config.sources.pci"
NVIDIAS_DISCOVERY = (f"{PCI}.deviceClassWhitelist={{02,0200,0207,0300,0302}}", f"{PCI}.deviceLabelFields={{vendor}}")
"""What NVIDIA's chart tells its node feature discovery: it makes no label of an accelerator of AMD or Gaudi."""
WITHOUT_NVIDIA = ("vendors={amd,gaudi,intel}", *(f"{section}.enabled=false" for section in NVIDIAS), *NVIDIAS_DISCOVERY)
POLICY = ("clusterpolicy", "cluster-policy")
OTHERS = {FIRST_NODE: (AMD_GPU_RESOURCE, "8"), "gaudi3-1": (GAUDI_RESOURCE, "8"), "arc-1": (XE, "2")}


@pytest.fixture(scope="module")
def lab(helm: str, kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedLab]:
    """Nodes of AMD, Gaudi and Intel, and the chart with everything of NVIDIA's switched off."""
    del kubectl
    folder = tmp_path_factory.mktemp("vendors") / "lab"
    made = EmbeddedLab("vendors", folder, QuietProgress(), first=FirstNode(profile="mi300x"), operator=True)
    try:
        made.up()
        install(MixedLab(made), helm, *WITHOUT_NVIDIA)
        manage.add_to_running(folder, "gaudi3")
        manage.add_to_running(folder, "arc")
        yield MixedLab(made)
    finally:
        made.down()


def install(lab: MixedLab, helm: str, *values: str) -> None:
    """The chart with these values."""
    classes = ("resource.k8s.io/v1/DeviceClass",)
    objects = lab_operator.made(helm, "deviceConfigs.enabled=true", *values, kinds=classes)
    run_kubectl(lab.lab, "apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=objects)


def until(lab: MixedLab, condition: Any, what: str) -> None:
    if not polling.holds(condition, seconds=200.0):
        shown = "\n".join(
            lab.lab.kubectl_run(*words).stdout
            for words in (
                ("get", "nodes,pods", "--all-namespaces"),
                ("get", *POLICY, "--output", "jsonpath={.status}"),
                ("logs", "--namespace", GPU_OPERATOR_NAMESPACE, "deployment/gpu-operator", "--tail", "40"),
            )
        )
        pytest.fail(f"not within 200 s: {what}\n{shown}")


def ready(lab: MixedLab) -> bool:
    return (lab.get(*POLICY).get("status") or {}).get("state") == "ready"


def condition(lab: MixedLab, kind: str) -> str:
    """The message of a condition of the policy."""
    return next(str(one["message"]) for one in lab.get(*POLICY)["status"]["conditions"] if one["type"] == kind)


def settled(lab: MixedLab) -> None:
    def offered() -> bool:
        return all(lab.allocatable(node, resource) == count for node, (resource, count) in OTHERS.items())

    until(lab, lambda: offered() and ready(lab), "every accelerator is offered and the policy is ready")


def node_of(lab: MixedLab, name: str) -> Any:
    """Its metadata; without labels until it is there."""
    found = lab.get("nodes", "--field-selector", f"metadata.name={name}")["items"]
    return found[0]["metadata"] if found else {"labels": {}}


def running(lab: MixedLab, node: str) -> set[str]:
    """The roles that run on a node, by its agent's word; the policy is ready without some of them."""
    roles = json.loads(node_of(lab, node)["annotations"].get(ROLES_ANNOTATION) or "{}").get("roles", {})
    return {name for name, role in roles.items() if role["state"] == "running"}


def test_each_pod_gets_its_vendors_devices(lab: MixedLab) -> None:
    settled(lab)
    for node, (resource, _) in OTHERS.items():
        name = f"on-{node}"
        lab.run(name, resource)
        landed, devices = lab.seen(name)
        assert landed == node
        assert devices


def test_labels_roles_and_conditions_are_those_of_the_vendor(lab: MixedLab) -> None:
    settled(lab)
    for node, vendor in ((FIRST_NODE, "amd"), ("gaudi3-1", "gaudi"), ("arc-1", "intel")):
        own = {"device-config-manager"} if vendor == "amd" else set()
        wanted = own | {"deviceplugin", "exporter", "features", "health", "labels", "probe", "validator"}
        until(lab, lambda node=node, wanted=wanted: running(lab, node) == wanted, f"{sorted(wanted)} on {node}")
        found = node_of(lab, node)
        assert found["labels"][LABEL_VENDOR] == vendor
        assert LABEL_GPU_PRESENT not in found["labels"]
        roles = json.loads(found["annotations"][ROLES_ANNOTATION])["roles"]
        assert {roles[name]["why"] for name in ("toolkit", "mig-manager", "mps")} == {"NotForVendor"}
    amd_gpu = "feature.node.kubernetes.io/amd-gpu"
    until(lab, lambda: node_of(lab, FIRST_NODE)["labels"].get(amd_gpu) == "true", "what the agent finds of its node")
    labels = node_of(lab, FIRST_NODE)["labels"]
    assert labels["amd.com/gpu.product-name"] == "AMD_Instinct_MI300X_OAM"
    conditions = {one["type"]: one for one in lab.get(*POLICY)["status"]["conditions"]}
    assert conditions["DevicePluginReady"]["message"].startswith("3 of 3 nodes")
    assert {conditions[kind]["reason"] for kind in ("DriverReady", "ToolkitReady", "MIGManagerReady")} == {"Disabled"}
    assert "kgpu has no program for the devices of its vendor" in conditions["Ready"]["message"]


def test_nvidias_config_of_node_features_counts_and_hides_no_other_vendors_accelerators(lab: MixedLab) -> None:
    settled(lab)
    pci = "feature.node.kubernetes.io/pci-1200_1002.present"
    until(lab, lambda: pci in node_of(lab, FIRST_NODE)["labels"], "the label of its class and vendor")
    labels = node_of(lab, FIRST_NODE)["labels"]
    assert "feature.node.kubernetes.io/pci-1002.present" not in labels


def test_metrics_are_on_the_agents_pod(lab: MixedLab) -> None:
    settled(lab)
    until(lab, lambda: lab.serves(FIRST_NODE, "gpu_package_power{"), "its metrics")


def test_a_faulty_accelerator_is_withdrawn_alone_and_the_policy_says_where(lab: MixedLab) -> None:
    settled(lab)
    root = manage.hw_root(lab.folder, FIRST_NODE)
    operate.inject(root, "ecc", gpu=2)
    try:
        until(lab, lambda: lab.allocatable(FIRST_NODE, AMD_GPU_RESOURCE) == "7", "it to be withdrawn")
        said = f"{AMD_GPU_RESOURCE}: 7 of 8 allocatable"
        until(lab, lambda: said in condition(lab, "DevicePluginReady"), "the condition of the device plugin to say so")
        until(lab, lambda: FIRST_NODE in condition(lab, "Ready"), "the policy to name the node")
        assert not ready(lab)
    finally:
        operate.clear(root)
    settled(lab)


def served_kind(lab: MixedLab) -> bool:
    return lab.lab.kubectl_run("get", "crd", "deviceconfigs.amd.com").returncode == 0


def behind(lab: MixedLab, service: str) -> list[str]:
    """The addresses of the ready endpoints of a Service."""
    label = f"{SERVICE_NAME_LABEL}={service}"
    found = lab.get("endpointslices", "--namespace", GPU_OPERATOR_NAMESPACE, "--selector", label)["items"]
    ends = [end for one in found for end in one["endpoints"] if end["conditions"]["ready"]]
    return sorted(address for end in ends for address in end["addresses"])


def agent_address(lab: MixedLab, node: str) -> str:
    pods = lab.get("pods", "--namespace", GPU_OPERATOR_NAMESPACE, "--selector", f"app={AGENT_DAEMON_SET}")["items"]
    return next(str(pod["status"]["podIP"]) for pod in pods if pod["spec"]["nodeName"] == node)


def config(spec: Any) -> str:
    about = {"name": "default", "namespace": GPU_OPERATOR_NAMESPACE, "finalizers": [AMD_DEVICECONFIG_FINALIZER]}
    return json.dumps({"apiVersion": "amd.com/v1alpha1", "kind": "DeviceConfig", "metadata": about, "spec": spec})


def test_amds_default_device_config_is_followed_and_goes(lab: MixedLab) -> None:
    """And what it asks for comes: other names of resources, and a Service at another port."""
    settled(lab)
    amd_metrics = {"devicePluginArguments": {"resource_naming_strategy": "mixed"}}
    spec = {**AMDS_DEFAULT, "devicePlugin": {**AMDS_DEFAULT["devicePlugin"], **amd_metrics}}
    where = ("gpue", "default", "--namespace", GPU_OPERATOR_NAMESPACE)

    def said(kind: str) -> str:
        found = {one["type"]: one for one in (lab.get(*where).get("status") or {}).get("conditions", [])}
        return f"{found[kind]['status']} {found[kind]['reason']}" if kind in found else ""

    until(lab, lambda: served_kind(lab), "the kind to be made")
    run_kubectl(lab.lab, "apply", "--filename", "-", stdin=config(spec))
    until(lab, lambda: lab.allocatable(FIRST_NODE, "amd.com/spx_nps1") == "8", "the names of `mixed`")
    until(lab, lambda: said("Ready") == "True OperatorReady", "it to be ready")
    assert node_of(lab, FIRST_NODE)["labels"]["kgpu.dev/device-config"] == "default"
    status = lab.get(*where)["status"]
    one = {"nodesMatchingSelectorNumber": 1, "desiredNumber": 1, "availableNumber": 1}
    assert (status["devicePlugin"], status["metricsExporter"]) == (one, one)
    until(lab, lambda: lab.serves(FIRST_NODE, "gpu_package_power{"), "its metrics")
    until(
        lab, lambda: behind(lab, "default-metrics-exporter") == [agent_address(lab, FIRST_NODE)], "its Service's agent"
    )
    service = lab.get("service", "default-metrics-exporter", "--namespace", GPU_OPERATOR_NAMESPACE)
    assert [port["port"] for port in service["spec"]["ports"]] == [5000]
    run_kubectl(lab.lab, "delete", *where, "--wait=true", "--timeout=60s")
    until(lab, lambda: "kgpu.dev/device-config" not in node_of(lab, FIRST_NODE)["labels"], "its label to go")
    until(lab, lambda: lab.allocatable(FIRST_NODE, AMD_GPU_RESOURCE) == "8", "the names of `single`")
    assert served_kind(lab), "the kind stays"
    until(lab, lambda: not behind(lab, "default-metrics-exporter"), "its Service's endpoints to go")
    service_of = ("get", "service", "default-metrics-exporter", "--namespace", GPU_OPERATOR_NAMESPACE)
    until(lab, lambda: lab.lab.kubectl_run(*service_of).returncode != 0, "its Service to go")


PROFILES = "modes-of-ours"
MINE = {"mine": {"profiles": [{"computePartition": "DPX", "memoryPartition": "NPS1", "numGPUsAssigned": 8}]}}


def profiles(lab: MixedLab, text: str) -> None:
    about = {"name": PROFILES, "namespace": GPU_OPERATOR_NAMESPACE}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"config.json": text}}
    run_kubectl(lab.lab, "apply", "--filename", "-", stdin=json.dumps(made))


def said_of_profile(lab: MixedLab) -> tuple[str, str, str]:
    """Profile, state and reason of what the AMD node's agent says."""
    annotations = node_of(lab, FIRST_NODE).get("annotations", {})
    told = read_report(annotations, PARTITION_REPORT_ANNOTATION)
    return (told.config, told.state, told.reason) if told is not None else ("", "", "")


def test_a_device_config_says_by_which_profiles_its_nodes_are_parted(lab: MixedLab) -> None:
    settled(lab)
    where = ("gpue", "default", "--namespace", GPU_OPERATOR_NAMESPACE)
    until(lab, lambda: served_kind(lab), "the kind to be made")
    managed = {"selector": {}, "configManager": {"enable": True, "config": {"name": PROFILES}}}
    run_kubectl(lab.lab, "apply", "--filename", "-", stdin=config(managed))

    def said() -> Any:
        return {one["type"]: one for one in (lab.get(*where).get("status") or {}).get("conditions", [])}

    def asked(profile: str) -> None:
        run_kubectl(lab.lab, "label", "node", FIRST_NODE, "--overwrite", f"{AMD_PROFILE_LABEL}={profile}")

    try:
        until(lab, lambda: PROFILES in said().get("Ready", {}).get("message", ""), "it to say that the map is missing")
        asked("mine")
        refused = ("mine", "failed", "PartitionConfigRefused")
        until(lab, lambda: said_of_profile(lab) == refused, "the agent to say so")
        profiles(lab, "{no JSON")
        until(lab, lambda: PROFILES not in said().get("Ready", {}).get("message", ""), "the map to be there")
        assert said_of_profile(lab) == refused
        assert lab.allocatable(FIRST_NODE, AMD_GPU_RESOURCE) == "8"
        profiles(lab, json.dumps({"gpu-config-profiles": MINE}))
        until(
            lab, lambda: said_of_profile(lab) == ("mine", "success", "PartitionApplied"), "the profile to be in force"
        )
        until(lab, lambda: lab.allocatable(FIRST_NODE, AMD_GPU_RESOURCE) == "16", "its parts")
        until(lab, lambda: said().get("Ready", {}).get("status") == "True", "it to be ready")
        counts = {"nodesMatchingSelectorNumber": 1, "desiredNumber": 1, "availableNumber": 1}
        assert lab.get(*where)["status"]["configManager"] == counts
    finally:
        run_kubectl(lab.lab, "delete", *where, "--wait=true", "--timeout=60s")
        asked("default")
    until(lab, lambda: said_of_profile(lab) == ("default", "success", "PartitionApplied"), "whole GPUs")
    run_kubectl(lab.lab, "label", "node", FIRST_NODE, f"{AMD_PROFILE_LABEL}-")
    settled(lab)


def claim(name: str, driver: str) -> str:
    """A claim of one device of a driver's class, and a pod that has it."""
    main = {
        "name": "main", "image": "busybox:1", "command": ["sh", "-c", SEES], "resources": {"claims": [{"name": "mine"}]}
    }  # fmt: skip
    claimed = {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": driver}}]}}
    pod = {
        "restartPolicy": "Never",
        "containers": [main],
        "resourceClaims": [{"name": "mine", "resourceClaimName": name}],
    }
    rows = (("resource.k8s.io/v1", "ResourceClaim", claimed), ("v1", "Pod", pod))
    made = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": what} for version, kind, what in rows
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": made})


def test_claims_are_served_where_a_device_config_or_a_nodes_label_asks_for_them(lab: MixedLab, helm: str) -> None:
    settled(lab)
    install(lab, helm, *WITHOUT_NVIDIA, "dra.enabled=true")
    by_claims = {"selector": {}, "devicePlugin": {"enableDevicePlugin": False}, "draDriver": {"enable": True}}
    run_kubectl(lab.lab, "apply", "--filename", "-", stdin=config(by_claims))
    run_kubectl(lab.lab, "label", "node", "gaudi3-1", f"{ALLOCATION_LABEL}=dra")
    try:
        for driver, node, sees in ((DRA_AMD_DRIVER, FIRST_NODE, "kfd"), (DRA_GAUDI_DRIVER, "gaudi3-1", "accel/")):
            name = driver.replace(".", "-")
            run_kubectl(lab.lab, "apply", "--filename", "-", stdin=claim(name, driver))
            landed, devices = lab.seen(name)
            assert landed == node
            assert any(device.startswith(sees) for device in devices)
            lab.delete(name)
    finally:
        run_kubectl(lab.lab, "label", "node", "gaudi3-1", f"{ALLOCATION_LABEL}-")
        run_kubectl(lab.lab, "delete", "gpue", "default", "--namespace", GPU_OPERATOR_NAMESPACE, "--timeout=60s")
    settled(lab)


def test_a_node_of_nvidia_is_served_once_it_is_wanted(lab: MixedLab, helm: str) -> None:
    """Last, as it changes the lab."""
    settled(lab)
    manage.add_to_running(lab.folder, "l4", gpus=2)
    until(lab, lambda: "feature.node.kubernetes.io/pci-10de.present" in node_of(lab, "l4-1")["labels"], "its features")
    assert lab.allocatable("l4-1", GPU_RESOURCE) in ("", "0")
    assert "kgpu.dev/agent" not in node_of(lab, "l4-1")["labels"]
    install(lab, helm, "vendors={nvidia,amd,gaudi,intel}", *(f"{section}.enabled=true" for section in NVIDIAS))
    until(lab, lambda: lab.allocatable("l4-1", GPU_RESOURCE) == "2", "its GPUs to be offered")
    settled(lab)
