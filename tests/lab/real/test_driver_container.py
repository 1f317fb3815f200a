"""A real node whose driver comes in a real container: installed, exchanged under a pod with a GPU, and kept in use.

The image is a stand-in that loads simulated modules; manager, probe, mounts and their propagation are the real ones.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from kgpu.cli.doctor import look, parse_target
from kgpu.cli.preflight import preflight as preflight_command
from kgpu.doctor.preflight import probe
from kgpu.doctor.rules.operator.sentences import PSA
from kgpu.formats.names import (
    DRIVER_MANAGER_ANNOTATION,
    GPU_OPERATOR_NAMESPACE,
    GPU_RESOURCE,
    LABEL_DEPLOY_PREFIX,
    NFD_PCI_NVIDIA,
)
from kgpu.hw.simulator import container_settings
from kgpu.lab import operator
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import bootstrap, kgpu_image
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.images import CUDA_BASE_IMAGES
from kgpu.lab.real.model import NODE_NAME, LabSpec
from tests.lab.real.conftest import until

OLD, NEW = "550.54.15", "570.133.20"
MANAGER = "k8s-driver-manager"
DRIVER = "app.kubernetes.io/component=nvidia-driver"
Object = dict[str, Any]
TRAIN = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "train"},
    "spec": {
        "selector": {"matchLabels": {"app": "train"}},
        "template": {
            "metadata": {"labels": {"app": "train"}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": CUDA_BASE_IMAGES[0], "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", "nvidia-smi --query-gpu=driver_version --format=csv,noheader; sleep 10000"],
                    "resources": {"limits": {GPU_RESOURCE: 1}},
                }],
            },
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def node(real_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealLab]:
    """A lab of its own, with the operator in it, and the old driver wanted; the images are there."""
    folder = tmp_path_factory.mktemp("driver") / "lab"
    spec = LabSpec(name=f"driver-{os.getpid()}", profile="l4", gpus=2, agent=False)
    lab = RealLab(spec, folder=folder, progress=PlainProgress())
    try:
        lab.up()
        bootstrap.import_archive(lab, kgpu_image.ensure_image(PlainProgress()))
        bootstrap.show_machine(lab)
        container_settings.change(lab.hw_root, takes=0.5)
        operator.install(lab.kubeconfig, driver=True)
        # The real machine's bus has no GPU: as node feature discovery would say of the simulated one.
        lab.kubectl("label", "node", NODE_NAME, f"{NFD_PCI_NVIDIA[0]}=true")
        want(lab, OLD)
        until(lambda: f":{OLD}-" in image(lab), "a DaemonSet of the driver")
        bootstrap.import_driver(lab, OLD, NEW, system=image(lab).partition(f":{OLD}-")[2])
        yield lab
    finally:
        lab.down()


def want(lab: RealLab, version: str) -> None:
    change = {"spec": {"driver": {"version": version, "upgradePolicy": {"autoUpgrade": False}}}}
    lab.kubectl("patch", "clusterpolicy", "cluster-policy", "--type", "merge", "--patch", json.dumps(change))


def items(lab: RealLab, path: str) -> list[Object]:
    found: list[Object] = (lab.ask(path) or {}).get("items") or []
    return found


def image(lab: RealLab) -> str:
    """The image of the driver's DaemonSet, "" for none."""
    sets = items(lab, f"/apis/apps/v1/namespaces/{GPU_OPERATOR_NAMESPACE}/daemonsets?labelSelector={DRIVER}")
    return str(sets[0]["spec"]["template"]["spec"]["containers"][0]["image"]) if sets else ""


def driver_pod(lab: RealLab) -> Object:
    """The driver's pod that is not being deleted; {} for none."""
    pods = items(lab, f"/api/v1/namespaces/{GPU_OPERATOR_NAMESPACE}/pods?labelSelector={DRIVER}")
    return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), {})


def is_up(lab: RealLab, version: str) -> bool:
    pod, now = driver_pod(lab), lab.node()
    rows = pod.get("status", {}).get("containerStatuses") or [{}]
    return (
        bool(rows[0].get("ready"))
        and f":{version}-" in pod["spec"]["containers"][0]["image"]
        and now["status"]["allocatable"].get(GPU_RESOURCE) == "2"
        and now["metadata"]["labels"].get("nvidia.com/cuda.driver-version.full") == version
    )


def replace_pod(lab: RealLab) -> None:
    name, uid = driver_pod(lab)["metadata"]["name"], driver_pod(lab)["metadata"]["uid"]
    lab.kubectl("delete", "pod", name, "--namespace", GPU_OPERATOR_NAMESPACE, "--wait=false")
    until(lambda: driver_pod(lab).get("metadata", {}).get("uid", uid) != uid, "another pod of the driver")


def printed(lab: RealLab) -> list[str]:
    """What the pods with a GPU have printed."""
    return lab.kubectl_run("logs", "--selector", "app=train").stdout.split()


def test_the_driver_is_installed_and_its_gpus_are_offered(node: RealLab) -> None:
    until(lambda: is_up(node, OLD), f"driver {OLD} to be up")
    node.kubectl("apply", "-f", "-", stdin=json.dumps(TRAIN))
    until(lambda: printed(node) == [OLD], f"a pod on driver {OLD}")


def test_another_driver_takes_its_place_and_the_node_is_given_back(node: RealLab) -> None:
    want(node, NEW)
    until(lambda: f":{NEW}-" in image(node), f"driver {NEW} to be wanted")
    assert is_up(node, OLD), "the pod is replaced by hand alone"
    replace_pod(node)
    until(lambda: is_up(node, NEW), f"driver {NEW} to be up")
    until(lambda: printed(node) == [NEW], f"a pod on driver {NEW}")
    now = node.node()
    assert not now["spec"].get("unschedulable")
    assert DRIVER_MANAGER_ANNOTATION not in now["metadata"].get("annotations", {})
    assert now["metadata"]["labels"][f"{LABEL_DEPLOY_PREFIX}device-plugin"] == "true"


def preflight(lab: RealLab, *options: str) -> Object:
    """What ``kgpu preflight --probe`` says of the lab's node, without a registry."""
    words = [
        "--kubeconfig",
        str(lab.kubeconfig),
        "--probe",
        "--no-registry",
        "--node",
        NODE_NAME,
        "-o",
        "json",
        *options,
    ]
    done = CliRunner().invoke(preflight_command, words)
    assert done.exit_code in (0, 1), done.output
    found: Object = json.loads(done.stdout)
    return found


def left_of_probes(lab: RealLab) -> list[str]:
    """The names of a preflight's pods and accounts that are there, in any namespace."""
    rows = [row for kind in ("pods", "serviceaccounts") for row in items(lab, f"/api/v1/{kind}")]
    return [row["metadata"]["name"] for row in rows if row["metadata"]["name"].startswith(probe.NAME)]


def test_a_probe_looks_at_the_nodes_own_files_and_leaves_nothing(node: RealLab) -> None:
    found = preflight(node, "-n", GPU_OPERATOR_NAMESPACE, "--timeout", "300")
    assert [one for one in found["predictions"] if one["level"] == "problem"] == []
    verdicts = found["verdicts"][NODE_NAME]
    assert (verdicts["nouveau"], verdicts["disk"]) == ("fine", "fine"), found
    assert left_of_probes(node) == []


def test_a_namespace_without_privileged_pods_is_predicted_and_takes_none(node: RealLab) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": {PSA: "baseline"}}}
    node.kubectl("apply", "-f", "-", stdin=json.dumps(space))
    until(lambda: node.ask("/api/v1/namespaces/strict/serviceaccounts/default"), "the namespace's account")
    found = preflight(node, "-n", "strict")
    (said,) = (one for one in found["predictions"] if one["level"] == "problem")
    assert said["id"] == "OPR-02"
    assert any("violates PodSecurity" in row for row in said["evidence"]), said
    assert left_of_probes(node) == []
    (driver,) = items(node, f"/apis/apps/v1/namespaces/{GPU_OPERATOR_NAMESPACE}/daemonsets?labelSelector={DRIVER}")
    about = {key: driver["metadata"][key] for key in ("name", "labels")} | {"namespace": "strict"}
    copy = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": about, "spec": driver["spec"]}
    copy["spec"]["template"]["spec"]["serviceAccountName"] = "default"
    node.kubectl("apply", "-f", "-", stdin=json.dumps(copy))

    def refused() -> bool:
        events = items(node, "/api/v1/namespaces/strict/events")
        return any("violates PodSecurity" in str(one.get("message")) for one in events)

    until(refused, "the API server to refuse the driver's pods")
    assert items(node, "/api/v1/namespaces/strict/pods") == []
    report = asyncio.run(look(parse_target((), ""), "", str(node.kubeconfig), ""))
    assert "OPR-02" in [one.id for one in report.findings]
    node.kubectl("delete", "namespace", "strict", "--wait=false")


def test_a_driver_that_is_kept_in_use_is_told_by_the_managers_last_words(node: RealLab) -> None:
    container_settings.change(node.hw_root, fail="manager")
    want(node, OLD)
    until(lambda: f":{OLD}-" in image(node), f"driver {OLD} to be wanted")
    replace_pod(node)

    def last_words() -> str:
        rows = driver_pod(node).get("status", {}).get("initContainerStatuses") or [{}]
        ended = [state.get("terminated") or {} for key in ("state", "lastState") if (state := rows[0].get(key))]
        return next((str(end["message"]) for end in ended if end.get("message")), "")

    until(lambda: "the driver is in use and can't be unloaded" in last_words(), "the manager to say what is wrong")
    container_settings.change(node.hw_root, fail="")
    until(lambda: is_up(node, OLD), f"driver {OLD} to be up")
