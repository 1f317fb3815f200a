"""The label ``nvidia.com/mig.config`` in an embedded lab with the operator: from a person's word to slices in pods."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.formats import mig_request
from kgpu.formats.mig_request import MigReport
from kgpu.formats.names import GPU_OPERATOR_NAMESPACE, GPU_RESOURCE, MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL
from kgpu.hw.simulator import mig
from kgpu.hw.simulator.state import DriverState
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from kgpu.mig.manager.model import MigReason
from tests import on_real
from tests.lab import asking

pytestmark = pytest.mark.timeout(900)
WAIT_S = 180.0
SLICE = "nvidia.com/mig-1g.10gb"
LAYOUTS = "my-layouts"
CONFIGS = """version: v1
mig-configs:
  first-whole:
  - {devices: [0], mig-enabled: false}
  - {devices: [1], mig-enabled: true, mig-devices: {1g.10gb: 7}}
  both-cut:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
  all-disabled:
  - {devices: all, mig-enabled: false}
  none-cut:
  - {devices: all, mig-enabled: false}
  impossible:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 8}}
"""
POD_SECONDS = "10000"


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """Two H100 in whole, MIG strategy mixed, and layouts of the lab's own."""
    del kubectl
    folder = tmp_path_factory.mktemp("mig") / "lab"
    made = EmbeddedLab("mig", folder, QuietProgress(), first=FirstNode(gpus=2), operator=True)
    try:
        made.up()
        run_kubectl(made, "apply", "--filename", "-", stdin=json.dumps({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"config.yaml": CONFIGS},
            "metadata": {"name": LAYOUTS, "namespace": GPU_OPERATOR_NAMESPACE},
        }))  # fmt: skip
        change = {"spec": {"mig": {"strategy": "mixed"}, "migManager": {"config": {"name": LAYOUTS}}}}
        run_kubectl(made, "patch", "clusterpolicy", "cluster-policy", "--type=merge", "--patch", json.dumps(change))
        until(made, lambda: policy(made) == "ready", "the policy is ready")
        yield made
    finally:
        made.down()


def until(lab: EmbeddedLab, condition: Any, what: str) -> Any:
    """The first true value of a condition."""
    found = on_real.looked_for(condition, WAIT_S)
    if found is None:
        pytest.fail(f"not within {WAIT_S:g} s: {what}; {report(lab)}; {offered(lab)}; {operations(lab)}")
    return found


def node(lab: EmbeddedLab) -> dict[str, Any]:
    found: dict[str, Any] = asking.get(lab.folder / "kubeconfig", "node", FIRST_NODE)
    return found


def policy(lab: EmbeddedLab) -> str:
    status = asking.get(lab.folder / "kubeconfig", "clusterpolicy", "cluster-policy").get("status") or {}
    return str(status.get("state"))


def operations(lab: EmbeddedLab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = asking.get(lab.folder / "kubeconfig", "nodeoperations")["items"]
    return found


def report(lab: EmbeddedLab) -> MigReport | None:
    return mig_request.read_report(node(lab)["metadata"].get("annotations") or {})


def offered(lab: EmbeddedLab) -> dict[str, int]:
    """What pods can have of the node's GPUs."""
    return counted(node(lab)["status"]["allocatable"])


def counted(allocatable: dict[str, str]) -> dict[str, int]:
    """The GPUs and slices among a node's resources."""
    counts = {name: int(count) for name, count in allocatable.items() if "nvidia.com/" in name}
    return {name: count for name, count in counts.items() if count}  # the kubelet keeps former resources at 0


def ask(lab: EmbeddedLab, config: str) -> None:
    run_kubectl(lab, "label", "node", FIRST_NODE, "--overwrite", f"{MIG_CONFIG_LABEL}={config}")


def is_so(lab: EmbeddedLab, config: str, state: str) -> bool:
    """Whether label and report say this state of this config."""
    told = report(lab)
    label = node(lab)["metadata"]["labels"].get(MIG_CONFIG_STATE_LABEL)
    return told is not None and (told.config, told.state, label) == (config, state, state)


def cut(lab: EmbeddedLab, config: str, counts: dict[str, int]) -> float:
    """Ask for a config and wait until pods can have its slices; the seconds that this took."""
    ask(lab, config)
    began = time.monotonic()
    until(lab, lambda: offered(lab) == counts, f"{config}: {counts}")
    took = time.monotonic() - began
    until(lab, lambda: is_so(lab, config, "success"), f"{config} is told")
    return took


def run(lab: EmbeddedLab, name: str, resource: str) -> str:
    """A pod of a ReplicaSet that has one device of a resource; what it sees of it."""
    container = {
        "name": "main", "image": "nvidia/cuda:12.4.0-base-ubuntu22.04",
        "command": ["sh", "-c", f"nvidia-smi -L; sleep {POD_SECONDS}"], "resources": {"limits": {resource: 1}},
    }  # fmt: skip
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}
    run_kubectl(lab, "apply", "--filename", "-", stdin=json.dumps({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }))  # fmt: skip
    seen = until(lab, lambda: lab.kubectl_run("logs", "--selector", f"app={name}").stdout, f"{name} runs")
    return str(seen)


def pods(lab: EmbeddedLab, name: str) -> set[str]:
    """The uids of the pods of this app that run."""
    found = asking.get(lab.folder / "kubeconfig", "pods", "--selector", f"app={name}")["items"]
    return {pod["metadata"]["uid"] for pod in found if pod["status"].get("phase") == "Running"}


def first_gpu(lab: EmbeddedLab) -> str:
    """The UUID of the machine's GPU 0."""
    (hardware,) = lab.hardware()
    with DriverState.open(hardware.root / "state", writable=False) as state:
        return str(state.gpu(0).uuid.decode())


def test_slices_that_are_found_stay_until_a_person_sets_the_label(lab: EmbeddedLab) -> None:
    """The label is the operator's own ``all-disabled`` until then."""
    (hardware,) = lab.hardware()
    mig.partition(hardware.root, 1, ["3g.40gb"])
    found = {GPU_RESOURCE: 1, "nvidia.com/mig-3g.40gb": 1}
    until(lab, lambda: offered(lab) == found, "the slice is offered")
    until(lab, lambda: (told := report(lab)) is not None and told.reason == MigReason.ADOPTED, "it is adopted")
    assert is_so(lab, "all-disabled", "success")
    ask(lab, "all-disabled")  # is so already: nobody's word
    ask(lab, "")
    until(lab, lambda: report(lab) is None, "an empty label asks for nothing")
    assert offered(lab) == found
    cut(lab, "all-disabled", {GPU_RESOURCE: 2})


def test_the_label_becomes_slices_and_whole_gpus_again(lab: EmbeddedLab) -> None:
    took = cut(lab, "both-cut", {SLICE: 14})
    print(f"from the label to 14 slices that pods can have: {took:.1f} s")
    assert "MIG 1g.10gb" in run(lab, "slice", SLICE)
    run_kubectl(lab, "delete", "deployment", "slice", "--wait")
    until(lab, lambda: not pods(lab, "slice"), "the pod is gone")
    cut(lab, "none-cut", {GPU_RESOURCE: 2})


@pytest.mark.parametrize(("config", "words"), [("impossible", "1g.10gb"), ("misspelt", "both-cut")])
def test_what_can_not_be_is_refused_and_the_gpus_stay_as_they_were(lab: EmbeddedLab, config: str, words: str) -> None:
    before = offered(lab), len(operations(lab))
    ask(lab, config)
    until(lab, lambda: is_so(lab, config, "failed"), "it is refused")
    told = report(lab)
    assert told is not None
    assert words in told.message
    assert (offered(lab), len(operations(lab))) == before
    until(lab, lambda: policy(lab) == "notReady", "the policy tells of it")
    cut(lab, "none-cut", {GPU_RESOURCE: 2})


def test_a_pod_on_one_gpu_goes_on_while_the_other_is_cut(lab: EmbeddedLab) -> None:
    seen = {name: run(lab, name, GPU_RESOURCE) for name in ("first", "second")}
    (stays,) = (name for name, said in seen.items() if first_gpu(lab) in said)
    (goes,) = seen.keys() - {stays}
    before = pods(lab, stays), pods(lab, goes)
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "never"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": goes}}},
    }  # fmt: skip
    run_kubectl(lab, "apply", "--filename", "-", stdin=json.dumps(budget))
    ask(lab, "first-whole")
    until(
        lab, lambda: (told := report(lab)) is not None and "never" in told.message, "it says which budget it waits for"
    )
    assert is_so(lab, "first-whole", "pending")
    assert (pods(lab, stays), pods(lab, goes)) == before
    run_kubectl(lab, "delete", "poddisruptionbudget", "never")
    until(lab, lambda: offered(lab) == {GPU_RESOURCE: 1, SLICE: 7}, "GPU 1 is cut")
    until(lab, lambda: is_so(lab, "first-whole", "success"), "it is told")
    assert pods(lab, stays) == before[0], "the pod on GPU 0 has gone on"
    assert not pods(lab, goes) & before[1], "the pod on GPU 1 had to go"
    assert not node(lab)["spec"].get("unschedulable")


@contextlib.contextmanager
def watched(lab: EmbeddedLab) -> Iterator[list[dict[str, int]]]:
    """What pods could have of the node's GPUs, one after the other, within the block."""
    seen: list[dict[str, int]] = []
    command = [
        lab.kubectl_program, "--kubeconfig", str(lab.kubeconfig), "get", "node", FIRST_NODE, "--watch",
        "--output", 'jsonpath={.status.allocatable}{"\\n"}',
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout

        def read() -> None:
            seen.extend(counted(json.loads(line)) for line in lines)

        reading = threading.Thread(target=read)
        reading.start()
        try:
            yield seen
        finally:
            process.terminate()
            reading.join()


def test_after_a_reboot_no_gpu_is_offered_whole_before_its_slices_are_made_again(lab: EmbeddedLab) -> None:
    cut(lab, "both-cut", {SLICE: 14})
    with watched(lab) as seen:
        command = [sys.executable, "-m", "kgpu", "lab", "node", "reboot", FIRST_NODE, "--name", lab.name]
        subprocess.run([*command, "--dir", str(lab.folder)], check=True, timeout=WAIT_S)
        until(lab, lambda: {} in seen, "the slices are gone")
        until(lab, lambda: offered(lab) == {SLICE: 14}, "the slices are back")
        until(lab, lambda: is_so(lab, "both-cut", "success"), "it is told")
    assert not any(GPU_RESOURCE in counts for counts in seen), seen
