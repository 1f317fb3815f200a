"""The chart on a real cluster of AMD alone, with everything of NVIDIA's switched off: what a pod and its owner see."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kgpu.formats import names
from kgpu.lab.real.model import LabSpec
from tests.lab.vendors_story import AMD_PROFILE, NVIDIAS, MixedLab
from tests.operator.real.conftest import NAMESPACE, Site, made

VALUES = ("vendors={amd}", "deviceConfigs.enabled=true", *(f"{section}.enabled=false" for section in NVIDIAS))


@pytest.fixture(scope="module")
def amd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One node with eight MI300X, and the chart."""
    spec = LabSpec(name=f"operator-amd-{os.getpid()}", profile=AMD_PROFILE, agent=False)
    with made(spec, tmp_path_factory.mktemp("operator-amd")) as site:
        site.install(*VALUES)
        site.until(lambda: site.allocatable(names.AMD_GPU_RESOURCE) == "8", "8 GPUs to be allocatable")
        site.until(lambda: site.policy_status().get("state") == "ready", "the ClusterPolicy to be ready")
        yield site


def test_a_pod_gets_its_device_nodes_and_no_other(amd: Site) -> None:
    lab = MixedLab(amd.lab)
    lab.run("two", names.AMD_GPU_RESOURCE, 2)
    node, devices = lab.seen("two")
    lab.delete("two")
    assert node == amd.node
    cards = [int(device.removeprefix("dri/card")) for device in devices if device.startswith("dri/card")]
    assert len(cards) == 2
    assert sorted(devices) == sorted(
        [*(f"dri/{kind}" for n in cards for kind in (f"card{n}", f"renderD{128 + n}")), "kfd"]
    )


def test_labels_roles_and_conditions_are_those_of_amd(amd: Site) -> None:
    labels, node = amd.node_labels(), amd.lab.node()
    assert labels[names.LABEL_VENDOR] == names.AMD
    assert labels[names.LABEL_AMD_GPU_PRODUCT_NAME] == "AMD_Instinct_MI300X_OAM"
    assert names.LABEL_GPU_PRESENT not in labels
    roles = json.loads(node["metadata"]["annotations"][names.ROLES_ANNOTATION])["roles"]
    assert {roles[name]["why"] for name in ("toolkit", "mig-manager", "mps")} == {"NotForVendor"}
    conditions = amd.conditions()
    assert conditions["DevicePluginReady"]["message"].startswith("1 of 1 nodes")
    assert {conditions[kind]["reason"] for kind in ("DriverReady", "ToolkitReady", "MIGManagerReady")} == {"Disabled"}


def test_the_validator_asked_every_gpu_and_says_that_nothing_has_computed(amd: Site) -> None:
    conditions = {one["type"]: one for one in amd.lab.node()["status"]["conditions"]}
    assert conditions[names.VALIDATED_CONDITION]["status"] == "True"
    assert amd.conditions()["ValidatorReady"]["status"] == "True"
    assert "kgpu has no program for the devices of its vendor" in amd.conditions()["Ready"]["message"]


def test_metrics_of_every_gpu_are_on_the_agents_pod(amd: Site) -> None:
    shown = MixedLab(amd.lab).metrics(amd.node, 9400)
    assert len([line for line in shown.splitlines() if line.startswith("gpu_package_power{")]) == 8


def test_status_shows_the_node_and_that_all_is_well(amd: Site) -> None:
    command = [sys.executable, "-m", "kgpu", "status", "--kubeconfig", str(amd.lab.kubeconfig)]
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=wide)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith(amd.node)]
    assert re.split(r"  +", row)[:4] == [amd.node, "AMD", "8/8", "AMD-Instinct-MI300X-OAM"]


def test_a_device_configs_service_answers_with_its_nodes_metrics(amd: Site) -> None:
    """Last, as it changes the port: kube-proxy leads to the pods that the operator's EndpointSlice names."""
    about = {"name": "default", "namespace": NAMESPACE}
    spec = {"selector": {}, "metricsExporter": {"enable": True, "port": 5000}}
    made_of = {"apiVersion": "amd.com/v1alpha1", "kind": "DeviceConfig", "metadata": about, "spec": spec}
    amd.until(lambda: amd.get("crd", "deviceconfigs.amd.com"), "the kind to be made")
    amd.lab.kubectl("apply", "-f", "-", stdin=json.dumps(made_of))
    service = amd.until(lambda: amd.get("service", "default-metrics-exporter", "-n", NAMESPACE), "the Service")
    address = service["spec"]["clusterIP"]
    ask = f"{sys.executable} -c 'import urllib.request as r; print(r.urlopen(\"http://{address}:5000/metrics\", timeout=5).read().decode())'"
    shown = amd.until(lambda: "gpu_package_power{" in amd.shell(f"{ask} 2>/dev/null || true"), "its metrics")
    assert shown
    amd.lab.kubectl("delete", "deviceconfig", "default", "-n", NAMESPACE, "--timeout=60s")
    amd.until(lambda: amd.get("service", "default-metrics-exporter", "-n", NAMESPACE) is None, "the Service to go")
