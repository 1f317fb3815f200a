"""Where another GPU operator works: kgpu keeps its hands off, and takes over when it is gone, under a running workload.

The other one is a stand-in with its names, labels and field managers, as ``docs/how-to/replace-the-gpu-operator.md``
has it; Helm, the API server, the kubelet and the workload are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.formats import names
from kgpu.formats.crd.definitions import crds
from tests.operator.real.conftest import CHART, NAMESPACE, Object, Site

OLD = Path(__file__).parents[2] / "seed_facts" / "old_release.yaml"
OLD_RELEASE = "gpu-operator"
OLD_PLUGIN = "nvidia-device-plugin-daemonset"
IMAGE = "kgpu.dev/cuda:base"
BESIDE = "kgpu-beside"
KEPT = "nvidia.com/gpu.deploy.dcgm-exporter=false"
SET = ("gpu.present", "gpu.deploy.device-plugin", "gpu.deploy.operator-validator", "gpu.deploy.driver")


def pod(name: str, gpus: int) -> Object:
    limits = {"limits": {names.GPU_RESOURCE: gpus}}
    container = {"name": "c", "image": IMAGE, "command": ["sleep", "3600"], "resources": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


def old_operand(policy: str) -> Object:
    """A DaemonSet as the other operator makes them, of the policy with that uid."""
    app = {"app": OLD_PLUGIN}
    owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": policy}
    template = {
        "metadata": {"labels": app},
        "spec": {"containers": [{"name": "c", "image": IMAGE, "command": ["sleep", "3600"]}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": OLD_PLUGIN, "namespace": NAMESPACE, "labels": app, "ownerReferences": [owner]},
        "spec": {"selector": {"matchLabels": app}, "template": template},
    }


def life(site: Site) -> tuple[str, str, int]:
    """What would change if the workload had been touched."""
    found = site.get("pod", "holder")
    (status,) = found["status"]["containerStatuses"]
    return found["metadata"]["uid"], status["state"]["running"]["startedAt"], status["restartCount"]


@pytest.fixture
def occupied(clean: Site, tmp_path: Path) -> Iterator[Site]:
    """The other operator with a ClusterPolicy, labels, an operand, and a workload that has three GPUs."""
    site = clean
    site.install()
    site.ready()
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(pod("holder", 3)))
    site.until(lambda: site.get("pod", "holder")["status"].get("phase") == "Running", "the workload to run")
    site.uninstall()  # the kubelet remembers what the workload has
    for definition in crds():
        site.lab.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(definition))
    site.lab.kubectl("wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com", "--timeout=30s")
    chart = tmp_path / "old"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: gpu-operator\nversion: v25.10.1\n")
    (chart / "templates" / "all.yaml").write_text(OLD.read_text().replace("busybox:1.36", IMAGE))
    site.helm("install", OLD_RELEASE, str(chart), "--create-namespace")
    policy = site.get("clusterpolicy", "cluster-policy")["metadata"]["uid"]
    site.lab.kubectl("create", "--field-manager=gpu-operator", "-f", "-", stdin=json.dumps(old_operand(policy)))
    labels = [KEPT, *(f"nvidia.com/{key}=true" for key in SET)]
    site.lab.kubectl("label", "node", site.node, "--field-manager=gpu-operator", *labels)
    yield site
    site.lab.kubectl_run("delete", "pod", "holder", "--force", "--grace-period=0")
    site.helm("uninstall", "kgpu", "--namespace", BESIDE, check=False)
    site.helm("uninstall", OLD_RELEASE, check=False)
    site.lab.kubectl_run("label", "node", site.node, *(f"{one.partition('=')[0]}-" for one in labels))
    site.lab.kubectl_run(
        "delete", "crd", "clusterpolicies.nvidia.com", "nvidiadrivers.nvidia.com", "--ignore-not-found"
    )
    site.lab.kubectl_run("delete", "namespace", BESIDE, "--ignore-not-found")


def test_it_keeps_its_hands_off_and_then_takes_over_under_a_running_workload(occupied: Site) -> None:
    site = occupied
    before = life(site)
    policy = site.get("clusterpolicy", "cluster-policy")["metadata"]["uid"]
    words = ("--create-namespace", "--set", "clusterPolicy.deployCR=false")

    # Beside it: in the same namespace Helm refuses, in another one kgpu does nothing and says why.
    refused = site.helm("install", "kgpu", str(CHART), check=False)
    assert "cannot be imported into the current release" in refused.stderr
    site.helm("install", "kgpu", str(CHART), "--namespace", BESIDE, *words)
    site.until(
        lambda: "another GPU operator works" in site.conditions().get("Ready", {}).get("message", ""), "a refusal"
    )
    said = site.conditions()["Error"]
    assert said["reason"] == "ForeignOperator"
    assert f"kubectl -n {NAMESPACE} scale deployment gpu-operator --replicas=0" in said["message"]
    assert site.get("daemonsets", "-n", BESIDE)["items"] == []
    assert site.get("daemonset", OLD_PLUGIN, "-n", NAMESPACE)["metadata"]["labels"] == {"app": OLD_PLUGIN}
    site.helm("uninstall", "kgpu", "--namespace", BESIDE)
    assert site.get("clusterpolicy", "cluster-policy")["metadata"]["uid"] == policy

    # As the document says.
    site.lab.kubectl("-n", NAMESPACE, "delete", "deployment", "gpu-operator", "--wait=true")
    values = ("driver.enabled=false", f"hostPaths.driverInstallDir={site.lab.hw_root}")
    given = [word for value in values for word in ("--set", value)]
    site.helm("upgrade", OLD_RELEASE, str(CHART), *given)
    site.ready()
    assert site.get("clusterpolicy", "cluster-policy")["metadata"]["uid"] == policy
    site.until(lambda: site.get("daemonset", OLD_PLUGIN, "-n", NAMESPACE) is None, "the old operand to make room")
    assert site.node_labels()[KEPT.partition("=")[0]] == "false"
    assert life(site) == before
    assert "Test PASSED" in site.run_pod("rest", gpus=5)
