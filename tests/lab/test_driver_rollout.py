"""Drivers are upgraded by the operator and the engine of node operations, in the embedded lab: from the wish to Ready."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kgpu.formats.names import (
    DRIVER_UPGRADE_STATE_LABEL,
    GPU_OPERATOR_NAMESPACE,
    GPU_RESOURCE,
    LABEL_DRIVER_OWNER,
)
from kgpu.hw.simulator import container_settings
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.port import kubectl as run_kubectl
from tests.lab import watched
from tests.lab.driver_container import (
    DRIVER_PODS,
    NEW,
    OLD,
    TRAIN,
    Object,
    driver_lab,
    driver_pod,
    get,
    is_up,
    log_of,
    node,
    root,
    until,
)  # fmt: skip

pytestmark = pytest.mark.timeout(600)
OTHER = "575.57.08"


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    del kubectl
    yield from driver_lab(tmp_path_factory.mktemp("rollout"))


def want(lab: EmbeddedLab, version: str, *, auto: bool = True) -> None:
    change = {"spec": {"driver": {"version": version, "upgradePolicy": {"autoUpgrade": auto}}}}
    run_kubectl(lab, "patch", "clusterpolicy", "cluster-policy", "--type", "merge", "--patch", json.dumps(change))


def operations(lab: EmbeddedLab, version: str) -> list[Object]:
    found = get(lab, "nodeoperations")["items"]
    return [one for one in found if one["spec"].get("driver", {}).get("version") == version]


def state(lab: EmbeddedLab) -> str:
    """How far the upgrade is, by the node's label."""
    return str(node(lab)["metadata"]["labels"][DRIVER_UPGRADE_STATE_LABEL])


def outcome(lab: EmbeddedLab, version: str) -> tuple[str, str]:
    """The result and the reason of the only operation for a driver, ("", "") before there is one."""
    found = operations(lab, version)
    assert len(found) <= 1, found
    status = found[0].get("status", {}) if found else {}
    return status.get("result", ""), status.get("reason", "")


def offered(lab: EmbeddedLab) -> str:
    """How many GPUs the node offers, by the kubelet's word."""
    return str(node(lab)["status"]["allocatable"].get(GPU_RESOURCE))


def policy(lab: EmbeddedLab) -> Object:
    found: Object = get(lab, "clusterpolicy", "cluster-policy")["status"]
    return found


def is_ready(lab: EmbeddedLab) -> bool:
    return bool(policy(lab)["state"] == "ready")


def failed_upgrades(lab: EmbeddedLab) -> str:
    """What the operator's metrics say of failed upgrades: the alert GPUOperatorDriverAutoUpgradeFailures asks for it."""
    pods = get(lab, "pods", "--namespace", GPU_OPERATOR_NAMESPACE, "--selector", "app=gpu-operator")["items"]
    path = f"/api/v1/namespaces/{GPU_OPERATOR_NAMESPACE}/pods/{pods[0]['metadata']['name']}:8080/proxy/metrics"
    lines = lab.kubectl_run("get", "--raw", path).stdout.splitlines()
    return next((line.split()[-1] for line in lines if line.startswith("gpu_operator_nodes_upgrades_failed")), "nan")


def test_a_changed_version_reaches_the_node_by_an_operation(lab: EmbeddedLab) -> None:
    want(lab, OLD)
    until(lab, lambda: is_up(lab, OLD) and is_ready(lab), f"driver {OLD} is up")
    run_kubectl(lab, "apply", "--filename", "-", stdin=json.dumps(TRAIN))
    until(lab, lambda: log_of(lab).strip() == OLD, f"a pod on driver {OLD}")
    with watched.allocatable(lab, FIRST_NODE) as seen:
        want(lab, NEW)
        until(lab, lambda: bool(operations(lab, NEW)), "an operation for the node")
        until(lab, lambda: outcome(lab, NEW) == ("Succeeded", "DriverUpgraded"), "it has succeeded")
        none = "no pod is given a GPU while there is no driver"
        until(lab, lambda: any(now.get(GPU_RESOURCE) == "0" for now in list(seen)), none)
    assert offered(lab) == "2"
    until(lab, lambda: is_up(lab, NEW), f"the agent tells of driver {NEW}")
    until(lab, lambda: log_of(lab).strip() == NEW, f"a pod on driver {NEW}")
    until(lab, lambda: is_ready(lab), "the policy is ready")
    assert not node(lab)["spec"].get("unschedulable")
    until(lab, lambda: state(lab) == "upgrade-done", "the label says that it is done")


def test_a_driver_that_can_not_be_built_is_told_and_the_node_goes_back(lab: EmbeddedLab) -> None:
    container_settings.change(root(lab), fail="build")
    want(lab, OTHER)
    until(lab, lambda: outcome(lab, OTHER) == ("PermanentFailure", "DriverFailed"), "it has failed")
    until(lab, lambda: not node(lab)["spec"].get("unschedulable"), "the node is given back")
    [failed] = operations(lab, OTHER)
    assert OTHER in failed["status"]["message"]
    assert not is_ready(lab)
    told = f"node {FIRST_NODE}: the upgrade to driver {OTHER} has failed"
    until(lab, lambda: told in json.dumps(policy(lab)["conditions"]), "the policy tells of it")
    until(lab, lambda: state(lab) == "upgrade-failed", "the label says that it has failed")
    until(lab, lambda: float(failed_upgrades(lab)) == 1, "the operator counts it")
    container_settings.change(root(lab), fail="")
    until(lab, lambda: is_up(lab, OTHER), "the pod tries on, and the driver is there")
    until(lab, lambda: is_ready(lab), "the policy is ready")
    until(lab, lambda: float(failed_upgrades(lab)) == 0, "no upgrade counts as failed")


def test_without_auto_upgrade_it_waits_for_a_person(lab: EmbeddedLab) -> None:
    before = driver_pod(lab)["metadata"]["uid"]
    want(lab, NEW, auto=False)
    until(lab, lambda: any(not one["spec"].get("approved", True) for one in operations(lab, NEW)), "one that waits")
    until(lab, lambda: not is_ready(lab), "the policy is not ready")
    assert driver_pod(lab)["metadata"]["uid"] == before
    [waiting] = [one for one in operations(lab, NEW) if not one["spec"].get("approved", True)]
    name = waiting["metadata"]["name"]
    run_kubectl(lab, "patch", "nodeoperation", name, "--type", "merge", "--patch", '{"spec": {"approved": true}}')
    until(lab, lambda: get(lab, "nodeoperation", name)["status"].get("result") == "Succeeded", "it has succeeded")
    assert offered(lab) == "2"
    until(lab, lambda: is_up(lab, NEW), f"the agent tells of driver {NEW}")
    until(lab, lambda: is_ready(lab), "the policy is ready")


BY_OBJECT, BY_POLICY = "580.95.05", "565.57.01"
DRIVER_SETS = ("daemonsets", "--namespace", GPU_OPERATOR_NAMESPACE)
GPU_DRIVER = {
    "apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "newer"},
    "spec": {
        "driverType": "gpu", "default": True, "repository": "nvcr.io/nvidia", "image": "driver", "version": BY_OBJECT,
        "upgradePolicy": {"autoUpgrade": True},
    },
}  # fmt: skip


def driver_sets(lab: EmbeddedLab) -> list[str]:
    found = [one["metadata"]["name"] for one in get(lab, *DRIVER_SETS)["items"]]
    return [name for name in found if name.startswith(("nvidia-driver-daemonset", "nvidia-gpu-driver"))]


def exchanged(lab: EmbeddedLab, version: str) -> bool:
    """Whether the operation has succeeded. Until then no driver pod joins another, and nobody says ready."""
    pods = [pod for pod in get(lab, *DRIVER_PODS)["items"] if pod["spec"].get("nodeName") == FIRST_NODE]
    assert len(pods) <= 1, [pod["metadata"]["name"] for pod in pods]
    # In this order: what is there at the first look takes "ready" away before the second, until the third tells success.
    begun, was_ready = bool(operations(lab, version)), is_ready(lab)
    done = outcome(lab, version) == ("Succeeded", "DriverUpgraded")
    assert done or not was_ready or not begun
    return done


def test_a_node_gets_its_driver_from_another_object_and_back(lab: EmbeddedLab) -> None:
    run_kubectl(lab, "apply", "--filename", "-", stdin=json.dumps(TRAIN))
    until(lab, lambda: bool(log_of(lab).strip()), "a pod with a GPU")
    switch = {"spec": {"driver": {"useNvidiaDriverCRD": True, "upgradePolicy": {"autoUpgrade": True}}}}
    run_kubectl(lab, "apply", "--filename", "-", stdin=json.dumps(GPU_DRIVER))
    run_kubectl(lab, "patch", "clusterpolicy", "cluster-policy", "--type", "merge", "--patch", json.dumps(switch))
    until(lab, lambda: exchanged(lab, BY_OBJECT), "the NVIDIADriver's has taken over")
    assert offered(lab) == "2"
    until(lab, lambda: is_up(lab, BY_OBJECT), "the agent tells of its driver")
    until(lab, lambda: is_ready(lab), "the policy is ready")
    assert node(lab)["metadata"]["labels"][LABEL_DRIVER_OWNER] == "newer"
    until(lab, lambda: len(driver_sets(lab)) == 1, "the policy's DaemonSet is gone")
    [only] = driver_sets(lab)
    assert only.startswith("nvidia-gpu-driver")
    until(lab, lambda: log_of(lab).strip() == BY_OBJECT, "a pod on its driver")
    back = {"spec": {"driver": {"useNvidiaDriverCRD": False, "version": BY_POLICY}}}
    run_kubectl(lab, "patch", "clusterpolicy", "cluster-policy", "--type", "merge", "--patch", json.dumps(back))
    until(lab, lambda: exchanged(lab, BY_POLICY), "the policy's has taken over again")
    assert offered(lab) == "2"
    until(lab, lambda: is_up(lab, BY_POLICY), "the agent tells of its driver")
    until(lab, lambda: is_ready(lab), "the policy is ready")
    until(lab, lambda: driver_sets(lab) == ["nvidia-driver-daemonset"], "the other's DaemonSet is gone")
    until(lab, lambda: LABEL_DRIVER_OWNER not in node(lab)["metadata"]["labels"], "the node is nobody's any more")
    until(lab, lambda: log_of(lab).strip() == BY_POLICY, "a pod on the policy's driver")
    assert not node(lab)["spec"].get("unschedulable")
