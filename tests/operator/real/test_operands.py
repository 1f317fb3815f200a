"""The operands layout on a real cluster: one DaemonSet per operand, under the names that scripts know."""

from __future__ import annotations

import json
import subprocess
import sys

from kgpu.formats.names import STATE_DIR
from tests.operator.real.conftest import Site
from tests.operator.real.picture import difference, take

DAEMON_SETS = {
    "kgpu-node-features",
    "nvidia-container-toolkit-daemonset",
    "nvidia-operator-validator",
    "nvidia-device-plugin-daemonset",
    "nvidia-device-plugin-mps-control-daemon",
    "nvidia-mig-manager",
    "nvidia-dcgm-exporter",
    "kgpu-gpu-health",
    "gpu-feature-discovery",
    "nvidia-node-status-exporter",
}


def test_operands_in_pods_of_their_own(clean: Site) -> None:
    site = clean
    # What the user has set and made stays the user's.
    site.lab.kubectl("label", "node", site.node, "nvidia.com/gpu.deploy.dcgm-exporter=false", "pool=mine")
    site.lab.kubectl("create", "configmap", "mine", "-n", "gpu-operator", "--from-literal=a=b")
    try:
        before = take(site.lab)
        site.install("layout=operands", "nodeStatusExporter.enabled=true", "psa.enabled=true")
        site.ready()
        found = {one["metadata"]["name"]: one for one in site.get("daemonsets", "-n", "gpu-operator")["items"]}
        assert set(found) == DAEMON_SETS
        assert site.node_labels()["nvidia.com/gpu.deploy.dcgm-exporter"] == "false"
        namespace = site.get("namespace", "gpu-operator")["metadata"]["labels"]
        assert namespace["pod-security.kubernetes.io/enforce"] == "privileged"
        # What a document tells its readers to do.
        site.lab.kubectl("rollout", "restart", "daemonset", "nvidia-device-plugin-daemonset", "-n", "gpu-operator")
        site.lab.kubectl(
            "rollout", "status", "daemonset", "nvidia-device-plugin-daemonset", "-n", "gpu-operator", "--timeout=110s"
        )
        # And kgpu's own commands, which take the same names.
        assert "registered with the kubelet" in kgpu(site, "logs", "device-plugin", "--node", site.node)
        assert "1 of 1 new ready" in kgpu(site, "restart", "nvidia-device-plugin-daemonset")
        site.ready()
        assert "Test PASSED" in site.run_pod("operands", gpus=8)
        site.uninstall()
        site.until(lambda: not site.get("pods", "-n", "gpu-operator")["items"], "the last pods to go")
        assert difference(before, take(site.lab)) == []
    finally:
        site.lab.kubectl("label", "node", site.node, "nvidia.com/gpu.deploy.dcgm-exporter-", "pool-")
        site.lab.kubectl("delete", "configmap", "mine", "-n", "gpu-operator")


def test_the_layout_can_be_changed_under_a_running_workload(clean: Site) -> None:
    site = clean
    site.install()
    site.ready()
    holder = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "c",
                    "image": "kgpu.dev/cuda:base",
                    "command": ["sleep", "3600"],
                    "resources": {"limits": {"nvidia.com/gpu": 3}},
                }
            ],
        },
    }
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(holder))
    try:
        site.until(lambda: site.get("pod", "holder")["status"].get("phase") == "Running", "the workload to run")
        started = site.get("pod", "holder")["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        site.install("layout=operands", verb="upgrade", words=("--wait",))
        site.until(
            lambda: (
                [one["metadata"]["name"] for one in site.get("daemonsets", "-n", "gpu-operator")["items"]]
                and not site.get("daemonset", "kgpu-agent", "-n", "gpu-operator")
            ),
            "the agents to make room",
        )
        site.ready()
        assert site.get("pod", "holder")["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] == started
        assert site.get("pod", "holder")["status"]["containerStatuses"][0]["restartCount"] == 0
        assert "Test PASSED" in site.run_pod("rest", gpus=5)
    finally:
        site.lab.kubectl("delete", "pod", "holder", "--force", "--grace-period=0")
    assert agents_files(site) != ""
    site.uninstall()
    site.until(lambda: not site.get("pods", "-n", "gpu-operator")["items"], "the last pods to go")
    assert agents_files(site) == ""


def kgpu(site: Site, *words: str) -> str:
    """What the command prints; it must end well."""
    command = [sys.executable, "-m", "kgpu", *words, "--kubeconfig", str(site.lab.paths.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def agents_files(site: Site) -> str:
    """What an agent for the whole node has left in the folder of the node's state."""
    return site.shell(f"find {STATE_DIR} -maxdepth 1 -type f")


def test_definitions_that_somebody_uses_stay(clean: Site) -> None:
    """A definition that was there before, or has objects of others, is not ours to remove."""
    site = clean
    site.install("clusterPolicy.deployCR=false")
    mine = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "mine"}, "spec": {}}
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(mine))
    try:
        site.until(lambda: site.get("clusterpolicy", "mine").get("status", {}).get("state"), "the policy to be seen")
        site.uninstall()
        assert site.get("clusterpolicy", "mine")["metadata"]["name"] == "mine"
        assert site.get("crd", "nvidiadrivers.nvidia.com") is None
    finally:
        site.lab.kubectl("delete", "crd", "clusterpolicies.nvidia.com", "--ignore-not-found")
