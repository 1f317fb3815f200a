"""The labs of the documents, played with the operator in the embedded cluster: from no GPU to ten shared ones.

One cluster for all: first without a GPU, as in A's lab on a laptop, then with one T4. The ids in names and comments are
those of the checklist of facts; T-nn are its contested statements.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kgpu.cli.main import main
from kgpu.formats import names
from kgpu.hw.simulator import operate
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.spec import CPU_PROFILE
from kgpu.lab.port import kubectl
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from tests.lab import asking
from tests.seed_facts.test_kubectl import MERGE_CONFIG, NAME, SET_CONFIG

pytestmark = pytest.mark.timeout(300)
WAIT_S = 300.0
PLACE = ("-n", names.GPU_OPERATOR_NAMESPACE)
NODE = "t4-1"
GPU = names.GPU_RESOURCE
SLICED = """
version: v1
flags:
  migStrategy: none
sharing:
  timeSlicing:
    resources:
      - name: nvidia.com/gpu
        replicas: {replicas}
"""
Object = dict[str, Any]


def get(lab: EmbeddedLab, *words: str) -> Object:
    found: Object = asking.get(lab.kubeconfig, *words)
    return found


def until(lab: EmbeddedLab, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            shown = lab.kubectl_run("get", "nodes,pods,clusterpolicies", "-A", "-o", "wide").stdout
            pytest.fail(f"not within {WAIT_S:g} s: {what}\n{shown}")
        time.sleep(0.3)


def ready(lab: EmbeddedLab) -> tuple[str, str]:
    """The policy's state, and the reason of its Ready condition."""
    status = get(lab, *NAME).get("status") or {}
    reasons = [one["reason"] for one in status.get("conditions", []) if one["type"] == "Ready"]
    return status.get("state", ""), "".join(reasons)


def error(lab: EmbeddedLab) -> str:
    """What the policy's Error condition says."""
    found = (get(lab, *NAME).get("status") or {}).get("conditions", [])
    return "".join(one["message"] for one in found if one["type"] == "Error")


def offered(lab: EmbeddedLab) -> dict[str, tuple[str, str]]:
    """``nvidia.com/gpu`` of every node: capacity and allocatable, "" for none."""
    return {
        one["metadata"]["name"]: (one["status"]["capacity"].get(GPU, ""), one["status"]["allocatable"].get(GPU, ""))
        for one in get(lab, "nodes")["items"]
    }


def counts(lab: EmbeddedLab) -> tuple[str, str]:
    """The same of the node with the T4."""
    return offered(lab).get(NODE, ("", ""))


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """The operator and a node without GPUs, settled."""
    if not build.find_kubectl():
        pytest.skip("no kubectl here")
    folder = tmp_path_factory.mktemp("documents") / "lab"
    lab = EmbeddedLab("documents", folder, QuietProgress(), first=FirstNode(profile=CPU_PROFILE), operator=True)
    try:
        lab.up()
        until(lab, lambda: ready(lab)[0] == "ready", "the policy is ready")
        yield lab
    finally:
        lab.down()


@pytest.fixture(scope="module")
def lab(laptop: EmbeddedLab) -> EmbeddedLab:
    """With one T4 as well. Tests before this fixture is asked for see none."""
    manage.add_to_running(laptop.folder, "t4", gpus=1)
    until(laptop, lambda: counts(laptop) == ("1", "1"), "the T4 is offered")
    until(laptop, lambda: ready(laptop)[0] == "ready", "the policy is ready")
    return laptop


@pytest.fixture
def shared(lab: EmbeddedLab) -> Iterator[EmbeddedLab]:
    """The lab's ConfigMap is there and the policy names it by the documents' patch; one GPU is ten."""
    apply_config(lab, any=SLICED.format(replicas=10))
    kubectl(lab, "patch", *NAME, "--type=json", f"-p={SET_CONFIG}")
    until(lab, lambda: counts(lab) == ("10", "10"), "ten GPUs")
    yield lab
    kubectl(lab, "patch", *NAME, "--type=json", '-p=[{"op":"replace","path":"/spec/devicePlugin/config","value":{}}]')
    kubectl(lab, "delete", "configmap", "time-slicing-config", *PLACE)
    until(lab, lambda: counts(lab) == ("1", "1"), "one GPU again")


def apply_config(lab: EmbeddedLab, **data: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "time-slicing-config"}, "data": data}
    kubectl(lab, "apply", *PLACE, "-f", "-", stdin=json.dumps(body))


def test_a82_t23_without_a_gpu_every_pod_runs_and_none_was_restarted(laptop: EmbeddedLab) -> None:

    def running() -> set[str]:
        found = get(laptop, "pods", *PLACE)["items"]
        return {pod["metadata"]["labels"]["app"] for pod in found if pod["status"].get("phase") == "Running"}

    # The policy is ready without the finders.
    until(laptop, lambda: running() == {"gpu-operator", names.FINDER_DAEMON_SET}, "both are running")
    assert ready(laptop) == ("ready", "NoGPUNodes")
    pods = get(laptop, "pods", *PLACE)["items"]
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert {one["restartCount"] for pod in pods for one in pod["status"]["containerStatuses"]} == {0}


def test_b104_t13_opr22_waiting_for_all_pods_ends(lab: EmbeddedLab) -> None:
    """T-13: with the replaced operator a validator's Completed pod is never Ready, and this times out."""
    kubectl(lab, *PLACE, "wait", "--for=condition=Ready", "pods", "--all", "--timeout=300s")


def test_e03_t35_the_query_by_pci_label_finds_the_node_with_the_gpu(lab: EmbeddedLab) -> None:
    found = get(lab, "nodes", "-l", "feature.node.kubernetes.io/pci-10de.present=true")["items"]
    assert [one["metadata"]["name"] for one in found] == [NODE]


def test_a20_e08_d93_the_nodes_labels(lab: EmbeddedLab) -> None:
    labels = get(lab, "node", NODE)["metadata"]["labels"]
    wanted = {"gpu.present": "true", "gpu.product": "Tesla-T4", "gpu.count": "1", "mig.capable": "false"}
    assert {key: labels.get(f"nvidia.com/{key}") for key in wanted} == wanted


def test_b34_d93_describe_shows_the_gpu(lab: EmbeddedLab) -> None:
    lines = [line.split() for line in kubectl(lab, "describe", "node", NODE).splitlines() if GPU in line]
    assert lines.count(["nvidia.com/gpu:", "1"]) == 2


def test_b105_capacity_and_allocatable_of_all_nodes(lab: EmbeddedLab) -> None:
    found = offered(lab)
    assert (len(found), found.pop(NODE), set(found.values())) == (2, ("1", "1"), {("", "")})


def test_c04_a_pods_six_steps_with_the_very_gpu_that_its_program_sees(
    lab: EmbeddedLab, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sh", "-c", "nvidia-smi -L; sleep infinity"]
    container = {"name": "c", "image": "nvidia/cuda:12.4.1-base-ubuntu22.04", "command": words,
                 "resources": {"limits": {GPU: 1}}}  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "traced"}, "spec": {"containers": [container]}}
    lab.kubectl_run("apply", "-f", "-", stdin=json.dumps(pod))
    try:
        kubectl(lab, "wait", "--for=condition=Ready", "pod/traced", f"--timeout={WAIT_S:.0f}s")
        until(lab, lambda: "UUID" in kubectl(lab, "logs", "traced"), "the program has looked")
        seen = kubectl(lab, "logs", "traced").partition("UUID: ")[2].partition(")")[0]

        def steps() -> dict[str, Object]:
            main(
                [
                    "kgpu",
                    "doctor",
                    "pod",
                    "default/traced",
                    "--trace",
                    "-o",
                    "json",
                    "--kubeconfig",
                    str(lab.kubeconfig),
                ]
            )
            return {row["step"]: row for row in json.loads(capsys.readouterr().out)["trace"]}

        until(lab, lambda: seen in steps()["allocated"]["said"], "the kubelet's own file has the GPU")
        found = steps()
        assert list(found) == ["admitted", "scheduled", "allocated", "devices injected", "started", "computing"]
        assert [row["state"] for row in found.values()] == ["done"] * 5 + ["unknown"]
        assert NODE in found["scheduled"]["said"]
        assert all(row["evidence"] for row in found.values())
    finally:
        kubectl(lab, "delete", "pod", "traced", "--now")


def test_a83_a84_a87_a88_one_gpu_shared_by_ten(shared: EmbeddedLab) -> None:
    """A's lab as it is printed: ConfigMap, JSON patch, and ten in Capacity and Allocatable, without a restart."""
    lines = [line.split() for line in kubectl(shared, "describe", "node", NODE).splitlines() if GPU in line]
    assert lines.count(["nvidia.com/gpu:", "10"]) == 2


def test_d37_d96_t33_a_changed_config_map_is_noticed_without_a_restart(shared: EmbeddedLab) -> None:
    apply_config(shared, any=SLICED.format(replicas=4))
    until(shared, lambda: counts(shared) == ("4", "4"), "four GPUs")
    restarts = {
        one["restartCount"]
        for pod in get(shared, "pods", *PLACE)["items"]
        for one in pod["status"]["containerStatuses"]
    }
    assert restarts == {0}


def test_d34_d36_the_merge_patch_and_the_labels_of_a_shared_t4(lab: EmbeddedLab) -> None:
    apply_config(lab, any=SLICED.format(replicas=4))
    kubectl(lab, "patch", *NAME, "--type=merge", "-p", MERGE_CONFIG)
    until(lab, lambda: counts(lab) == ("4", "4"), "four GPUs")

    def labels() -> tuple[str | None, str | None]:
        found = get(lab, "node", NODE)["metadata"]["labels"]
        return found.get("nvidia.com/gpu.replicas"), found.get("nvidia.com/gpu.product")

    until(lab, lambda: labels() == ("4", "Tesla-T4-SHARED"), "the labels of a shared T4")


def test_d35_a_nodes_label_chooses_its_configuration(shared: EmbeddedLab) -> None:
    apply_config(shared, **{"any": SLICED.format(replicas=10), "tesla-t4": SLICED.format(replicas=3)})
    kubectl(shared, "label", "node", NODE, "nvidia.com/device-plugin.config=tesla-t4")
    try:
        until(shared, lambda: counts(shared) == ("3", "3"), "three GPUs")
    finally:
        kubectl(shared, "label", "node", NODE, "nvidia.com/device-plugin.config-")


def test_a86_d96_pods_of_the_plugin_can_be_restarted_by_hand_all_the_same(shared: EmbeddedLab) -> None:
    """T-33: not needed. In this layout the DaemonSet is kgpu-agent; NVIDIA's names are in layout=operands."""
    kubectl(shared, "rollout", "restart", "daemonset", names.AGENT_DAEMON_SET, *PLACE)
    kubectl(shared, "rollout", "status", "daemonset", names.AGENT_DAEMON_SET, *PLACE, "--timeout=300s")
    until(shared, lambda: counts(shared) == ("10", "10"), "ten GPUs after the restart")


def test_c10_c37_t45_a_gpu_on_which_cuda_fails_is_withheld_told_and_tried_again(lab: EmbeddedLab) -> None:
    """The node stays schedulable for other work; the policy says which GPU of which node, and why."""
    root = next(one.root for one in lab.hardware() if one.node == NODE)
    operate.set_values(root, {"compute-mode": "prohibited"}, gpu=0)
    try:
        # A validator that starts tries every GPU anew.
        agent = ("-l", f"app={names.AGENT_DAEMON_SET}", "--field-selector", f"spec.nodeName={NODE}")
        kubectl(lab, "delete", "pod", *PLACE, *agent)
        until(lab, lambda: "Prohibited" in error(lab), "the policy says why")
        assert (ready(lab)[0], NODE in error(lab)) == ("notReady", True)
        until(lab, lambda: counts(lab)[1] == "0", "the GPU is withheld")
        assert not get(lab, "node", NODE)["spec"].get("unschedulable")
    finally:
        operate.set_values(root, {"compute-mode": "default"}, gpu=0)
    until(lab, lambda: counts(lab) == ("1", "1"), "the GPU is offered again")
    until(lab, lambda: ready(lab)[0] == "ready", "the policy is ready again")


def test_d04_a_deleted_daemon_set_comes_back(lab: EmbeddedLab) -> None:
    words = ("daemonset", names.AGENT_DAEMON_SET, *PLACE)
    before = get(lab, *words)["metadata"]["uid"]
    kubectl(lab, "delete", *words)
    until(
        lab,
        lambda: lab.kubectl_run("get", *words, "-o", "jsonpath={.metadata.uid}").stdout not in {"", before},
        "another DaemonSet",
    )
    until(lab, lambda: counts(lab) == ("1", "1") and ready(lab)[0] == "ready", "all as before")
