"""The containers beside the driver's in the embedded lab: they load their modules, fail, and come back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kgpu.hw.simulator import container_settings, side_modules
from kgpu.hw.simulator.driver_image import WORDS
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.port import kubectl as run_kubectl
from tests.lab.driver_container import DRIVER_PODS, OLD, Object, driver_lab, driver_pod, get, is_up, root, status, until

pytestmark = pytest.mark.timeout(600)
SIDES = {"nvidia-fs-ctr": "nvidia_fs", "nvidia-gdrcopy-ctr": "gdrdrv", "nvidia-peermem-ctr": "nvidia_peermem"}
IMAGE = {"repository": "nvcr.io/nvidia/cloud-native", "version": "v2.5.1"}
WANTED: Object = {
    "driver": {"version": OLD, "rdma": {"enabled": True}},
    "gds": {"enabled": True, "image": "nvidia-fs", **IMAGE}, "gdrcopy": {"enabled": True, "image": "gdrdrv", **IMAGE},
}  # fmt: skip


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    del kubectl
    yield from driver_lab(tmp_path_factory.mktemp("driver"))


def policy(lab: EmbeddedLab) -> Object:
    found: Object = get(lab, "clusterpolicy", "cluster-policy")["status"]
    return found


def validations(lab: EmbeddedLab) -> set[str]:
    return {path.name for path in (root(lab) / "run/nvidia/validations").glob("*")}


def replace_pod(lab: EmbeddedLab) -> None:
    run_kubectl(lab, "delete", *DRIVER_PODS, "--wait=false")


def is_ready(lab: EmbeddedLab) -> bool:
    pod = driver_pod(lab)
    return is_up(lab, OLD) and all(status(pod, name).get("ready") for name in SIDES) and policy(lab)["state"] == "ready"


def test_each_loads_its_module_and_the_validator_has_seen_it(lab: EmbeddedLab) -> None:
    run_kubectl(
        lab, "patch", "clusterpolicy", "cluster-policy", "--type=merge", "--patch", json.dumps({"spec": WANTED})
    )

    def has_sides() -> bool:
        sets = get(lab, "daemonsets", *DRIVER_PODS[1:3])["items"]
        found = {row["name"] for one in sets for row in one["spec"]["template"]["spec"]["containers"]}
        return set(SIDES) <= found

    until(lab, has_sides, "a DaemonSet with the containers beside the driver's")
    if not all(status(driver_pod(lab), name) for name in SIDES):
        replace_pod(lab)
    until(lab, lambda: is_ready(lab), "the driver's pod and the policy are ready")
    assert {name for name in side_modules.NAMES if side_modules.is_loaded(root(lab), name)} == set(SIDES.values())
    files = {f"{component}-ready" for component in ("nvidia-fs", "gdrcopy", "nvidia-peermem")}
    until(lab, lambda: files <= validations(lab), "the validator's files")


def test_one_that_fails_is_named_with_its_words_by_policy_and_doctor(lab: EmbeddedLab) -> None:
    container_settings.change(root(lab), fail="side")
    (root(lab) / "run/nvidia/nvidia-driver.state").write_text("another\n")  # or the modules stay loaded
    replace_pod(lab)
    try:
        until(lab, lambda: names_it(json.dumps(policy(lab))), "the policy says why")
        assert policy(lab)["state"] == "notReady"
        until(lab, lambda: names_it(doctor(lab)), "the doctor says why")
    finally:
        container_settings.change(root(lab), fail="")
        replace_pod(lab)
    until(lab, lambda: is_ready(lab), "all are back")


def names_it(text: str) -> bool:
    return WORDS["side"] in text and any(name in text for name in SIDES)


def doctor(lab: EmbeddedLab) -> str:
    command = [sys.executable, "-m", "kgpu", "doctor", "-o", "json", "--kubeconfig", str(lab.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
