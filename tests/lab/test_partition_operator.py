"""The label ``dcm.amd.com/gpu-config-profile`` in an embedded lab with the operator: pods go within their budgets, GPUs
are parted, and what can't be is undone and told.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.formats.names import (
    AMD_DOMAIN,
    AMD_GPU_RESOURCE,
    AMD_PROFILES_MAP,
    GPU_OPERATOR_NAMESPACE,
)
from kgpu.hw.simulator.amd import operate
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.progress import QuietProgress
from kgpu.mig.modes.kind import LABEL
from tests.lab.parted import WAIT_S, PartedLab
from tests.mig.modes.modes_world import shown

pytestmark = pytest.mark.timeout(900)
WHOLE, PARTS = {AMD_GPU_RESOURCE: 4}, {AMD_GPU_RESOURCE: 32}
A_WHILE = "ls /dev/dri; sleep 10000"


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartedLab]:
    """Four MI300X in whole."""
    del kubectl
    folder = tmp_path_factory.mktemp("amd") / "lab"
    made = EmbeddedLab("amd", folder, QuietProgress(), first=FirstNode(profile="mi300x", gpus=4), operator=True)
    try:
        made.up()
        parted = PartedLab(made, LABEL, AMD_DOMAIN)
        parted.until(lambda: parted.policy() == "ready" and parted.offered() == WHOLE, "the policy is ready")
        yield parted
    finally:
        made.down()


def root(lab: PartedLab) -> Path:
    return manage.hw_root(lab.lab.folder, FIRST_NODE)


def modes(lab: PartedLab) -> list[str]:
    return shown(root(lab))


def doctor(lab: PartedLab) -> str:
    command = [sys.executable, "-m", "kgpu", "doctor", "node", FIRST_NODE, "--kubeconfig", str(lab.lab.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S).stdout


def quiet(lab: PartedLab) -> bool:
    """Whether no operation is under way and the node takes pods."""
    phases = {one.get("status", {}).get("phase") for one in lab.operations()}
    return phases <= {"Complete", "Failed"} and not lab.node()["spec"].get("unschedulable")


def test_the_default_profiles_are_in_a_config_map(lab: PartedLab) -> None:
    found = lab.get("configmap", AMD_PROFILES_MAP, "--namespace", GPU_OPERATOR_NAMESPACE)
    assert "cpx_nps4_all" in json.loads(found["data"]["config.json"])["gpu-config-profiles"]


def test_pods_on_gpus_that_change_go_within_their_budget_and_the_others_go_on(lab: PartedLab) -> None:
    lab.deploy("train", AMD_GPU_RESOURCE, A_WHILE, replicas=4)
    lab.until(lambda: len(lab.pods("train")) == 4, "a pod on each GPU")
    before = lab.pods("train")
    lab.forbid_evictions("never", "train")
    lab.ask("heterogeneous_example")
    lab.until(lambda: lab.is_said("never"), "it says which budget it waits for")
    assert lab.is_so("heterogeneous_example", "pending")
    assert lab.pods("train") == before
    assert modes(lab) == ["SPX/NPS1"] * 4
    lab.kubectl("delete", "poddisruptionbudget", "never")
    lab.until(lambda: lab.offered() == {AMD_GPU_RESOURCE: 16}, "the most frequent mode: two GPUs in eight parts each")
    lab.until(lambda: lab.is_so("heterogeneous_example", "success"), "it is told")
    assert modes(lab) == ["CPX/NPS1"] * 2 + ["SPX/NPS1"] * 2
    lab.until(lambda: len(lab.pods("train")) == 4, "the pods that went are back")
    assert len(lab.pods("train") & before) == 2, "those on GPUs that stay have gone on"
    lab.until(lambda: quiet(lab), "the node is given back")
    lab.remove("train")
    lab.cut("default", WHOLE)
    assert modes(lab) == ["SPX/NPS1"] * 4


def test_an_operator_that_is_killed_in_between_goes_on(lab: PartedLab) -> None:
    lab.deploy("train", AMD_GPU_RESOURCE, A_WHILE)
    lab.until(lambda: len(lab.pods("train")) == 1, "a pod")
    lab.forbid_evictions("never", "train")
    lab.ask("cpx_nps4_all")
    lab.until(lambda: lab.is_said("never"), "the change waits")
    (before,) = operators(lab)
    lab.kubectl("delete", "pods", "--namespace", GPU_OPERATOR_NAMESPACE, before, "--grace-period=0", "--force")
    lab.kubectl("delete", "poddisruptionbudget", "never")
    lab.until(lambda: operators(lab) - {before}, "another operator")
    lab.until(lambda: lab.is_so("cpx_nps4_all", "success"), "it is told")
    lab.until(lambda: lab.offered() == PARTS, "the parts are offered")
    assert modes(lab) == ["CPX/NPS4"] * 4
    assert (
        len({one["metadata"]["name"] for one in lab.operations() if one["spec"]["mig"]["config"] == "cpx_nps4_all"})
        == 1
    )
    lab.until(lambda: quiet(lab), "the node is given back")
    lab.remove("train")
    lab.cut("default", WHOLE)


def operators(lab: PartedLab) -> set[str]:
    """The operator's pods that run."""
    found = lab.get("pods", "--namespace", GPU_OPERATOR_NAMESPACE, "--selector", "app=gpu-operator")["items"]
    return {pod["metadata"]["name"] for pod in found if pod["status"].get("phase") == "Running"}


def test_a_change_that_fails_is_undone_and_told(lab: PartedLab) -> None:
    operate.add_process(root(lab), 2, pid=7, memory_mib=10)  # a program that the kubelet does not know
    try:
        lab.ask("qpx_nps1_all")
        lab.until(lambda: lab.is_so("qpx_nps1_all", "failed"), "it is told")
        assert lab.is_said("in use")
        assert modes(lab) == ["SPX/NPS1"] * 4
        lab.until(lambda: lab.offered() == WHOLE, "the GPUs are offered as before")
        lab.until(lambda: lab.policy() == "notReady", "the policy tells of it")
        assert "in use" in doctor(lab)
    finally:
        operate.remove_process(root(lab), 2, 7)
    lab.until(lambda: quiet(lab), "the node is given back")
    lab.cut("default", WHOLE)


@pytest.mark.parametrize(("profile", "words"), [("cpx_nps4", "cpx_nps4_all"), ("dpx_nps2_all", "NPS2")])
def test_what_can_not_be_is_refused_and_makes_no_operation(lab: PartedLab, profile: str, words: str) -> None:
    before = lab.offered(), len(lab.operations())
    lab.ask(profile)
    lab.until(lambda: lab.is_so(profile, "failed"), "it is refused")
    assert lab.is_said(words)
    assert (lab.offered(), len(lab.operations())) == before
    told = doctor(lab)
    assert "AMD-21" in told
    assert profile in told
    lab.cut("default", WHOLE)


def test_a_hand_under_running_pods_is_told_with_the_pods(lab: PartedLab) -> None:
    lab.cut("cpx_nps1_all", PARTS)
    lab.deploy("train", AMD_GPU_RESOURCE, A_WHILE, replicas=32)
    lab.until(lambda: len(lab.pods("train")) == 32, "a pod on each part")
    operate.set_partition(root(lab), [1], "dpx")
    lab.until(lambda: (told := lab.report()) is not None and len(told.pods) == 6, "the pods are named")
    told = lab.report()
    assert told is not None
    assert (told.state, told.reason) == ("success", "PartitionChangedByHand")
    assert all(pod.startswith("default/train-") for pod in told.pods)
    assert lab.is_said("GPU 1")
    said = doctor(lab)
    assert "AMD-21" in said
    assert told.pods[0] in said
    lab.remove("train")
    lab.until(lambda: (told := lab.report()) is not None and not told.pods, "nobody holds what is gone")
    lab.ask("")
    lab.cut("default", WHOLE)
