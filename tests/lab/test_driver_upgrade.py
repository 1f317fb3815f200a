"""A node whose driver comes in a container, in the embedded lab: it is installed, exchanged, and fails in each phase."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kgpu.formats.names import (
    DRIVER_MANAGER_ANNOTATION,
    GPU_RESOURCE,
    LABEL_DEPLOY_PREFIX,
    PRE_INSTALLED,
    ROLES_ANNOTATION,
)
from kgpu.hw.simulator import container_driver, container_settings, modules
from kgpu.hw.simulator.driver_image import WORDS
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import manage
from kgpu.lab.port import kubectl as run_kubectl
from tests.lab.driver_container import (
    DRIVER,
    DRIVER_PODS,
    MANAGER,
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
    status,
    until,
)  # fmt: skip

pytestmark = pytest.mark.timeout(600)
ON_HOST = "l4-1"


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    del kubectl
    yield from driver_lab(tmp_path_factory.mktemp("driver"))


def want(lab: EmbeddedLab, version: str) -> None:
    """Ask for a driver, and exchange the pod by hand once the DaemonSet asks for it."""
    change = {"spec": {"driver": {"version": version, "upgradePolicy": {"autoUpgrade": False}}}}
    run_kubectl(lab, "patch", "clusterpolicy", "cluster-policy", "--type", "merge", "--patch", json.dumps(change))

    def is_asked() -> bool:
        sets = get(lab, "daemonsets", *DRIVER_PODS[1:3])["items"]
        images = [row["image"] for one in sets for row in one["spec"]["template"]["spec"]["containers"]]
        return any(f":{version}-" in image for image in images)

    until(lab, is_asked, f"a DaemonSet with driver {version}")
    replace_pod(lab)


def replace_pod(lab: EmbeddedLab) -> None:
    pod = driver_pod(lab)
    run_kubectl(lab, "delete", "pod", pod["metadata"]["name"], *DRIVER_PODS[1:3], "--wait=false")
    uid = pod["metadata"]["uid"]
    until(lab, lambda: driver_pod(lab).get("metadata", {}).get("uid", uid) != uid, "another driver pod")


def test_a_driver_is_installed_where_the_host_has_none(lab: EmbeddedLab) -> None:
    want(lab, OLD)
    until(lab, lambda: is_up(lab, OLD), f"driver {OLD} is up")
    assert not (root(lab) / "usr/bin/nvidia-smi").exists()
    assert (root(lab) / container_driver.ROOT / "usr/bin/nvidia-smi").exists()
    assert (root(lab) / "run/nvidia/validations/.driver-ctr-ready").exists()
    until(lab, lambda: get(lab, "clusterpolicy", "cluster-policy")["status"]["state"] == "ready", "the policy is ready")


def test_another_driver_takes_its_place_and_pods_with_gpus_come_back_on_it(lab: EmbeddedLab) -> None:
    run_kubectl(lab, "apply", "--filename", "-", stdin=json.dumps(TRAIN))
    until(lab, lambda: log_of(lab).strip() == OLD, f"a pod on driver {OLD}")
    want(lab, NEW)
    until(lab, lambda: is_up(lab, NEW), f"driver {NEW} is up")
    until(lab, lambda: log_of(lab).strip() == NEW, f"a pod on driver {NEW}")
    now = node(lab)
    assert not now["spec"].get("unschedulable")
    assert DRIVER_MANAGER_ANNOTATION not in now["metadata"]["annotations"]
    assert now["metadata"]["labels"][f"{LABEL_DEPLOY_PREFIX}device-plugin"] == "true"
    manager = run_kubectl(lab, "logs", *DRIVER_PODS[1:], "--container", MANAGER)
    assert "unload: another driver is wanted" in manager


def test_the_same_driver_again_costs_no_pod_its_gpu(lab: EmbeddedLab) -> None:
    before = get(lab, "pods", "--selector", "app=train")["items"][0]["metadata"]["uid"]
    replace_pod(lab)
    until(lab, lambda: is_up(lab, NEW), f"driver {NEW} is up again")
    assert "the wanted driver is loaded" in run_kubectl(lab, "logs", *DRIVER_PODS[1:], "--container", MANAGER)
    assert [pod["metadata"]["uid"] for pod in get(lab, "pods", "--selector", "app=train")["items"]] == [before]
    run_kubectl(lab, "delete", "deployment", "train")


@pytest.mark.parametrize("phase", ["pull", "manager", "build", "probe", "crash"])  # the others fail as build does
def test_a_driver_that_fails_is_told_in_the_words_of_its_container(lab: EmbeddedLab, phase: str) -> None:
    # The digest of what is loaded would spare the container its work.
    (root(lab) / "run/nvidia/nvidia-driver.state").write_text("another\n")
    container_settings.change(root(lab), fail=phase)
    replace_pod(lab)
    try:
        until(lab, lambda: _fails_so(lab, phase), f"the driver's pod fails in phase {phase}")
    finally:
        container_settings.change(root(lab), fail="")
        replace_pod(lab)
    until(lab, lambda: is_up(lab, NEW), f"driver {NEW} is up again")
    assert not node(lab)["spec"].get("unschedulable")


def _fails_so(lab: EmbeddedLab, phase: str) -> bool:
    pod = driver_pod(lab)
    driver, manager = status(pod, DRIVER), status(pod, MANAGER)
    if phase == "pull":
        return _waits_for(driver) == "ImagePullBackOff"
    if phase == "manager":
        return "the driver is in use and can't be unloaded" in str(_ended(manager).get("message"))
    if phase == "probe":
        return "running" in driver.get("state", {}) and driver["started"] is False and modules.loaded(root(lab))
    if _ended(driver).get("exitCode") != 1:
        return False
    name = pod["metadata"]["name"]
    previous = ["--previous"] if "terminated" in driver.get("lastState", {}) else []
    return WORDS[phase] in lab.kubectl_run("logs", name, *DRIVER_PODS[1:3], "--container", DRIVER, *previous).stdout


def _ended(row: Object) -> Object:
    """How a container has ended last, {} if it has not."""
    found: Object = (row.get("lastState") or {}).get("terminated") or (row.get("state") or {}).get("terminated") or {}
    return found


def _waits_for(row: Object) -> str:
    return str(((row.get("state") or {}).get("waiting") or {}).get("reason"))


def test_a_driver_that_no_registry_has_is_told_and_the_former_one_can_come_back(lab: EmbeddedLab) -> None:
    want(lab, "999.1.1")
    until(lab, lambda: _waits_for(status(driver_pod(lab), DRIVER)) == "ImagePullBackOff", "the image is nowhere")
    want(lab, NEW)
    until(lab, lambda: is_up(lab, NEW), f"driver {NEW} is up again")


def test_after_a_reboot_the_driver_is_installed_again(lab: EmbeddedLab) -> None:
    version = get(lab, "clusterpolicy", "cluster-policy")["spec"]["driver"]["version"]
    manage.reboot(lab.folder, [FIRST_NODE])
    until(lab, lambda: not modules.loaded(root(lab)), "the modules are gone")
    until(lab, lambda: modules.loaded(root(lab)) and is_up(lab, version), f"driver {version} is up after the reboot")


def test_a_driver_on_the_host_is_left_alone(lab: EmbeddedLab) -> None:
    manage.add_to_running(lab.folder, "l4", gpus=1)
    label = f"{LABEL_DEPLOY_PREFIX}driver"

    def is_left_alone() -> bool:
        found = lab.kubectl_run("get", "node", ON_HOST, "-o", "json")
        now = json.loads(found.stdout) if found.returncode == 0 else {}
        return (
            now.get("metadata", {}).get("labels", {}).get(label) == PRE_INSTALLED
            and now["status"]["allocatable"].get(GPU_RESOURCE) == "1"
            and not driver_pod(lab, ON_HOST)
        )

    def told() -> str:
        report = json.loads(node(lab, ON_HOST)["metadata"]["annotations"].get(ROLES_ANNOTATION) or "{}")
        return str(report.get("driverSource"))

    until(lab, is_left_alone, "the node is labelled, has no driver pod and offers its GPU")
    until(lab, lambda: told() == "host", "its agent says whose driver it is")
