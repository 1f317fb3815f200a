"""An embedded lab with nodes of four vendors: each pod lands on its vendor's and sees its devices alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.base.errors import LabError
from kgpu.formats.names import AMD_GPU_RESOURCE, GAUDI_RESOURCE, GPU_RESOURCE
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.amd import operate as amd
from kgpu.lab import reset
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from tests.lab.copied import until

pytestmark = pytest.mark.timeout(300)
NVIDIA_NODE, GAUDI_NODE, ARC_NODE = "l4-1", "gaudi3-1", "arc-1"
XE = "gpu.intel.com/xe"
SEES = "cd /dev; ls -d accel/* dri/* infiniband/* kfd nvidia[0-9]* 2>/dev/null; true"
A_WHILE = f"{SEES}; sleep 1000"


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    del kubectl
    first = FirstNode(profile="mi300x")
    made = EmbeddedLab("amd", tmp_path_factory.mktemp("amd") / "lab", QuietProgress(), first=first)
    try:
        made.up()
        manage.add_to_running(made.folder, "l4", gpus=2)
        manage.add_to_running(made.folder, "gaudi3")
        manage.add_to_running(made.folder, "arc")
        until(lambda: allocatable(made, NVIDIA_NODE, GPU_RESOURCE), "2")
        until(lambda: allocatable(made, GAUDI_NODE, GAUDI_RESOURCE), "8")
        until(lambda: allocatable(made, ARC_NODE, XE), "2")
        yield made
    finally:
        made.down()


def get(lab: EmbeddedLab, *words: str) -> Any:
    return json.loads(run_kubectl(lab, "get", *words, "--output", "json"))


def allocatable(lab: EmbeddedLab, node: str, resource: str) -> str:
    found = get(lab, "nodes", "--field-selector", f"metadata.name={node}")["items"]
    return str(found[0]["status"]["allocatable"].get(resource, "")) if found else ""


def run(lab: EmbeddedLab, name: str, resource: str, count: int = 1, command: str = SEES) -> None:
    main = {
        "name": "main", "image": "busybox:1", "command": ["sh", "-c", command],
        "resources": {"limits": {resource: count}},
    }  # fmt: skip
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [main]},
    }  # fmt: skip
    run_kubectl(lab, "apply", "--filename", "-", stdin=json.dumps(pod))


def seen(lab: EmbeddedLab, name: str, phase: str = "Succeeded") -> tuple[str, list[str]]:
    """The pod's node and the devices that it sees."""
    until(lambda: get(lab, "pod", name)["status"].get("phase"), phase)
    until(lambda: bool(run_kubectl(lab, "logs", name)), True)
    return get(lab, "pod", name)["spec"]["nodeName"], run_kubectl(lab, "logs", name).split()


def test_each_pod_lands_on_its_vendor_and_sees_its_devices_and_no_other(lab: EmbeddedLab) -> None:
    run(lab, "amd", AMD_GPU_RESOURCE)
    run(lab, "nvidia", GPU_RESOURCE)
    node, devices = seen(lab, "amd")
    assert node == FIRST_NODE
    card = int(devices[0].removeprefix("dri/card"))
    assert devices == [f"dri/card{card}", f"dri/renderD{128 + card}", "kfd"]
    node, devices = seen(lab, "nvidia")
    assert node == NVIDIA_NODE
    assert len(devices) == 1
    assert devices[0].startswith("nvidia")


def test_a_gaudi_pod_sees_its_cards_and_is_told_of_them(lab: EmbeddedLab) -> None:
    run(lab, "gaudi", GAUDI_RESOURCE, 2, f"{SEES}; echo $HABANA_VISIBLE_DEVICES $HL_VISIBLE_DEVICES")
    node, words = seen(lab, "gaudi")
    assert node == GAUDI_NODE
    *devices, minors, paths = words
    numbers = minors.split(",")
    assert len(numbers) == 2
    expected = [f"{kind}{n}" for n in numbers for kind in ("accel/accel", "accel/accel_controlD", "infiniband/uverbs")]
    assert sorted(devices) == sorted(expected)
    assert paths == ",".join(f"/dev/accel/accel{n}" for n in numbers)


def test_a_pod_of_an_intel_gpu_sees_it_alone(lab: EmbeddedLab) -> None:
    run(lab, "arc", XE)
    node, devices = seen(lab, "arc")
    assert node == ARC_NODE
    card = int(devices[0].removeprefix("dri/card"))
    assert devices == [f"dri/card{card}", f"dri/renderD{128 + card}"]


def test_a_faulty_gaudi_is_withdrawn_alone_and_comes_back(lab: EmbeddedLab) -> None:
    root = manage.hw_root(lab.folder, GAUDI_NODE)
    operate.inject(root, "lost", gpu=7)
    until(lambda: allocatable(lab, GAUDI_NODE, GAUDI_RESOURCE), "7")
    assert any("lost" in line for line in reset.leftovers(lab))
    operate.clear(root)
    until(lambda: allocatable(lab, GAUDI_NODE, GAUDI_RESOURCE), "8")


def test_all_are_labelled_in_their_own_words(lab: EmbeddedLab) -> None:
    until(lambda: get(lab, "node", NVIDIA_NODE)["metadata"]["labels"].get("nvidia.com/gpu.product"), "NVIDIA-L4")
    labels = get(lab, "node", FIRST_NODE)["metadata"]["labels"]
    assert labels["amd.com/gpu.product-name"] == "AMD_Instinct_MI300X_OAM"
    assert labels["beta.amd.com/gpu.vram.192G"] == "8"
    assert not [key for key in labels if key.startswith("nvidia.com/")]
    until(lambda: get(lab, "node", GAUDI_NODE)["metadata"]["labels"].get("habana.ai/gaudi.product"), "Intel-Gaudi-3")
    until(lambda: get(lab, "node", ARC_NODE)["metadata"]["labels"].get("gpu.intel.com/device.count"), "2")


def test_a_faulty_gpu_is_withdrawn_alone_and_a_reset_of_the_lab_brings_it_back(lab: EmbeddedLab) -> None:
    root = manage.hw_root(lab.folder, FIRST_NODE)
    run(lab, "stays", AMD_GPU_RESOURCE, 7, A_WHILE)
    _, devices = seen(lab, "stays", "Running")
    assert len(devices) == 15
    free = next(index for index in range(8) if f"dri/card{8 * index}" not in devices)
    operate.inject(root, "ecc", gpu=free)
    until(lambda: allocatable(lab, FIRST_NODE, AMD_GPU_RESOURCE), "7")
    assert any("uncorrectable" in line for line in reset.leftovers(lab))
    assert get(lab, "pod", "stays")["status"]["phase"] == "Running"
    operate.clear(root)
    until(lambda: allocatable(lab, FIRST_NODE, AMD_GPU_RESOURCE), "8")
    run_kubectl(lab, "delete", "pod", "stays", "--wait=true")


def test_a_part_is_seen_by_its_pod_alone(lab: EmbeddedLab) -> None:
    root = manage.hw_root(lab.folder, FIRST_NODE)
    amd.set_partition(root, range(8), "cpx")
    until(lambda: allocatable(lab, FIRST_NODE, AMD_GPU_RESOURCE), "64")
    run(lab, "parts", AMD_GPU_RESOURCE, 3)
    _, devices = seen(lab, "parts")
    cards = sorted(int(one.removeprefix("dri/card")) for one in devices if one.startswith("dri/card"))
    assert len(devices) == 7
    assert len({card // 8 for card in cards}) == 1, "parts of one GPU"
    amd.set_partition(root, range(8), "spx")
    until(lambda: allocatable(lab, FIRST_NODE, AMD_GPU_RESOURCE), "8")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"mig": ["0:1g.10gb"]}, "a MIG layout"),
        ({"light": True}, "--light"),
        ({"driver": "container"}, "--driver container"),
    ],
)
def test_what_amd_nodes_do_not_have_is_refused(lab: EmbeddedLab, options: dict[str, Any], what: str) -> None:
    with pytest.raises(LabError, match=what):
        manage.add(lab.folder, "mi210", **options)
