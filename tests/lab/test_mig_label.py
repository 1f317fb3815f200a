"""The label ``nvidia.com/mig.config`` in an embedded lab with the operator: from a person's word to slices in pods."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kgpu.formats.names import GPU_OPERATOR_NAMESPACE, GPU_RESOURCE, NVIDIA_DOMAIN
from kgpu.hw.simulator import mig
from kgpu.hw.simulator.state import DriverState
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.progress import QuietProgress
from kgpu.mig.manager.model import MigReason
from kgpu.mig.manager.slices import LABEL
from tests.lab import watched
from tests.lab.parted import WAIT_S, PartedLab

pytestmark = pytest.mark.timeout(900)
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
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartedLab]:
    """Two H100 in whole, MIG strategy mixed, and layouts of the lab's own."""
    del kubectl
    folder = tmp_path_factory.mktemp("mig") / "lab"
    made = EmbeddedLab("mig", folder, QuietProgress(), first=FirstNode(gpus=2), operator=True)
    try:
        made.up()
        parted = PartedLab(made, LABEL, NVIDIA_DOMAIN)
        parted.apply({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"config.yaml": CONFIGS},
            "metadata": {"name": LAYOUTS, "namespace": GPU_OPERATOR_NAMESPACE},
        })  # fmt: skip
        change = {"spec": {"mig": {"strategy": "mixed"}, "migManager": {"config": {"name": LAYOUTS}}}}
        parted.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=merge", "--patch", json.dumps(change))
        parted.until(lambda: parted.policy() == "ready", "the policy is ready")
        yield parted
    finally:
        made.down()


def run(lab: PartedLab, name: str, resource: str) -> str:
    """A pod of a ReplicaSet that has one device of a resource; what it sees of it."""
    lab.deploy(name, resource, f"nvidia-smi -L; sleep {POD_SECONDS}", image="nvidia/cuda:12.4.0-base-ubuntu22.04")
    seen = lab.until(lambda: lab.lab.kubectl_run("logs", "--selector", f"app={name}").stdout, f"{name} has looked")
    lab.until(lambda: lab.pods(name), f"{name} is known to run")
    return str(seen)


def first_gpu(lab: PartedLab) -> str:
    """The UUID of the machine's GPU 0."""
    (hardware,) = lab.lab.hardware()
    with DriverState.open(hardware.root / "state", writable=False) as state:
        return str(state.gpu(0).uuid.decode())


def test_slices_that_are_found_stay_until_a_person_sets_the_label(lab: PartedLab) -> None:
    """The label is the operator's own ``all-disabled`` until then."""
    (hardware,) = lab.lab.hardware()
    mig.partition(hardware.root, 1, ["3g.40gb"])
    found = {GPU_RESOURCE: 1, "nvidia.com/mig-3g.40gb": 1}
    lab.until(lambda: lab.offered() == found, "the slice is offered")
    lab.until(lambda: (told := lab.report()) is not None and told.reason == MigReason.ADOPTED, "it is adopted")
    assert lab.is_so("all-disabled", "success")
    lab.ask("all-disabled")  # is so already: nobody's word
    lab.ask("")
    lab.until(lambda: lab.report() is None, "an empty label asks for nothing")
    assert lab.offered() == found
    lab.cut("all-disabled", {GPU_RESOURCE: 2})


def test_the_label_becomes_slices_and_whole_gpus_again(lab: PartedLab) -> None:
    took = lab.cut("both-cut", {SLICE: 14})
    print(f"from the label to 14 slices that pods can have: {took:.1f} s")
    assert "MIG 1g.10gb" in run(lab, "slice", SLICE)
    lab.remove("slice")
    lab.cut("none-cut", {GPU_RESOURCE: 2})


@pytest.mark.parametrize(("config", "words"), [("impossible", "1g.10gb"), ("misspelt", "both-cut")])
def test_what_can_not_be_is_refused_and_the_gpus_stay_as_they_were(lab: PartedLab, config: str, words: str) -> None:
    before = lab.offered(), len(lab.operations())
    lab.ask(config)
    lab.until(lambda: lab.is_so(config, "failed"), "it is refused")
    told = lab.report()
    assert told is not None
    assert words in told.message
    assert (lab.offered(), len(lab.operations())) == before
    lab.until(lambda: lab.policy() == "notReady", "the policy tells of it")
    lab.cut("none-cut", {GPU_RESOURCE: 2})


def test_a_pod_on_one_gpu_goes_on_while_the_other_is_cut(lab: PartedLab) -> None:
    seen = {name: run(lab, name, GPU_RESOURCE) for name in ("first", "second")}
    (stays,) = (name for name, said in seen.items() if first_gpu(lab) in said)
    (goes,) = seen.keys() - {stays}
    before = lab.pods(stays), lab.pods(goes)
    lab.forbid_evictions("never", goes)
    lab.ask("first-whole")
    lab.until(lambda: lab.is_said("never"), "it says which budget it waits for")
    assert lab.is_so("first-whole", "pending")
    assert (lab.pods(stays), lab.pods(goes)) == before
    lab.kubectl("delete", "poddisruptionbudget", "never")
    lab.until(lambda: lab.offered() == {GPU_RESOURCE: 1, SLICE: 7}, "GPU 1 is cut")
    lab.until(lambda: lab.is_so("first-whole", "success"), "it is told")
    assert lab.pods(stays) == before[0], "the pod on GPU 0 has gone on"
    assert not lab.pods(goes) & before[1], "the pod on GPU 1 had to go"
    assert not lab.node()["spec"].get("unschedulable")


def test_after_a_reboot_no_gpu_is_offered_whole_before_its_slices_are_made_again(lab: PartedLab) -> None:
    lab.cut("both-cut", {SLICE: 14})
    with watched.allocatable(lab.lab, FIRST_NODE) as seen:
        command = [sys.executable, "-m", "kgpu", "lab", "node", "reboot", FIRST_NODE, "--name", lab.lab.name]
        subprocess.run([*command, "--dir", str(lab.lab.folder)], check=True, timeout=WAIT_S)
        lab.until(lambda: {} in map(lab.counted, seen), "the slices are gone")
        lab.until(lambda: lab.offered() == {SLICE: 14}, "the slices are back")
        lab.until(lambda: lab.is_so("both-cut", "success"), "it is told")
    assert not any(GPU_RESOURCE in lab.counted(counts) for counts in seen), seen
