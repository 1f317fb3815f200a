"""One cluster with nodes of four vendors and one without any: what must be so on every kind of lab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kgpu.formats.names import (
    AGENT_DAEMON_SET,
    AMD_GPU_RESOURCE,
    EXPORTER_PORT,
    GAUDI_RESOURCE,
    GPU_OPERATOR_NAMESPACE,
    GPU_RESOURCE,
)
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.amd import operate as amd
from kgpu.lab import reset
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.nodes import manage
from kgpu.lab.port import Lab, kubectl
from tests.lab.copied import until

AMD_PROFILE: Final = "mi300x"
AMD_NODE: Final = FIRST_NODE
NVIDIA_NODE, GAUDI_NODE, ARC_NODE, CPU_NODE = "hgx-h100-1", "gaudi3-1", "arc-1", "cpu-1"
XE: Final = "gpu.intel.com/xe"
SEES: Final = "cd /dev; ls -d accel/* dri/* infiniband/* kfd nvidia[0-9]* 2>/dev/null; true"
A_WHILE: Final = f"{SEES}; sleep 1000"
NVIDIAS: Final = ("toolkit", "migManager")
"""The chart's sections of NVIDIA's that are on by default; that of the driver is off in labs."""
OFFERED: Final = ((AMD_NODE, AMD_GPU_RESOURCE, "8"), (NVIDIA_NODE, GPU_RESOURCE, "8"),
                  (GAUDI_NODE, GAUDI_RESOURCE, "8"), (ARC_NODE, XE, "2"))  # fmt: skip


@contextmanager
def mixed(lab: Lab) -> Iterator[MixedLab]:
    """Bring up ``lab``, whose first node has MI300X, with a node of every other kind; taken down at the end."""
    try:
        lab.up()
        made = MixedLab(lab)
        for profile in ("hgx-h100", "gaudi3", "arc", "cpu"):
            manage.add_to_running(made.folder, profile)
        for node, resource, count in OFFERED:
            until(lambda node=node, resource=resource: made.allocatable(node, resource), count)  # type: ignore[misc]
        until(lambda: CPU_NODE in made.ready_nodes(), True)
        yield made
    finally:
        lab.down()


class MixedLab:
    """The cluster with what the stories ask of it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    @property
    def folder(self) -> Path:
        return self.lab.about.folder

    def hw_root(self, node: str) -> Path:
        return next(machine.root for machine in self.lab.hardware() if machine.node == node)

    def get(self, *words: str) -> Any:
        return json.loads(kubectl(self.lab, "get", *words, "--output", "json"))

    def ready_nodes(self) -> list[str]:
        return [
            node["metadata"]["name"]
            for node in self.get("nodes")["items"]
            if any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", []))
        ]

    def labels(self, node: str) -> dict[str, str]:
        found: dict[str, str] = self.get("node", node)["metadata"]["labels"]
        return found

    def allocatable(self, node: str, resource: str) -> str:
        found = self.get("nodes", "--field-selector", f"metadata.name={node}")["items"]
        return str(found[0]["status"].get("allocatable", {}).get(resource, "")) if found else ""

    def metrics(self, node: str, port: int, *, namespace: str = GPU_OPERATOR_NAMESPACE) -> str:
        """What the agent's pod on this node serves at a port, "" while there is none or it doesn't answer."""
        pods = self.get("pods", "--namespace", namespace, "--selector", f"app={AGENT_DAEMON_SET}")["items"]
        path = f"/api/v1/namespaces/{namespace}/pods/{{}}:{port}/proxy/metrics"
        names = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName") == node]
        return "".join(self.lab.kubectl_run("get", "--raw", path.format(name)).stdout for name in names)

    def serves(self, node: str, series: str, *, namespace: str = GPU_OPERATOR_NAMESPACE) -> bool:
        """Whether the agent's pod on this node has a series among its metrics."""
        return series in self.metrics(node, EXPORTER_PORT, namespace=namespace)

    def run(self, name: str, resource: str = "", count: int = 1, command: str = SEES, node: str = "") -> None:
        """A pod that asks for ``count`` of ``resource``, if any, and runs a shell's ``command``."""
        main: dict[str, Any] = {"name": "main", "image": "busybox:1", "command": ["sh", "-c", command]}
        if resource:
            main["resources"] = {"limits": {resource: count}}
        spec: dict[str, Any] = {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [main],
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
        }  # fmt: skip
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        kubectl(self.lab, "apply", "--filename", "-", stdin=json.dumps(pod))

    def delete(self, *names: str) -> None:
        kubectl(self.lab, "delete", "pod", *names, "--wait=true", "--ignore-not-found")

    def seen(self, name: str, phase: str = "Succeeded") -> tuple[str, list[str]]:
        """The pod's node and the words that it has printed."""
        until(lambda: self.get("pod", name)["status"].get("phase"), phase)
        if phase == "Running":
            until(lambda: bool(kubectl(self.lab, "logs", name)), True)
        return self.get("pod", name)["spec"]["nodeName"], kubectl(self.lab, "logs", name).split()


def each_pod_lands_on_its_vendor(lab: MixedLab) -> None:
    """It sees its devices and no other."""
    lab.run("amd", AMD_GPU_RESOURCE)
    lab.run("nvidia", GPU_RESOURCE)
    lab.run("intel", XE)
    lab.run("none", node=CPU_NODE)
    node, devices = lab.seen("amd")
    assert node == AMD_NODE
    card = int(devices[0].removeprefix("dri/card"))
    assert devices == [f"dri/card{card}", f"dri/renderD{128 + card}", "kfd"]
    node, devices = lab.seen("nvidia")
    assert node == NVIDIA_NODE
    assert len(devices) == 1
    assert devices[0].startswith("nvidia")
    node, devices = lab.seen("intel")
    assert node == ARC_NODE
    card = int(devices[0].removeprefix("dri/card"))
    assert devices == [f"dri/card{card}", f"dri/renderD{128 + card}"]
    assert lab.seen("none") == (CPU_NODE, [])
    lab.delete("amd", "nvidia", "intel", "none")


def a_gaudi_pod_is_told_of_its_cards(lab: MixedLab) -> None:
    lab.run("gaudi", GAUDI_RESOURCE, 2, f"{SEES}; echo $HABANA_VISIBLE_DEVICES $HL_VISIBLE_DEVICES")
    node, words = lab.seen("gaudi")
    assert node == GAUDI_NODE
    *devices, minors, paths = words
    numbers = minors.split(",")
    assert len(numbers) == 2
    expected = [f"{kind}{n}" for n in numbers for kind in ("accel/accel", "accel/accel_controlD", "infiniband/uverbs")]
    assert sorted(devices) == sorted(expected)
    assert paths == ",".join(f"/dev/accel/accel{n}" for n in numbers)
    lab.delete("gaudi")


def all_are_labelled_in_their_own_words(lab: MixedLab) -> None:
    until(lambda: lab.labels(NVIDIA_NODE).get("nvidia.com/gpu.product"), "NVIDIA-H100-80GB-HBM3")
    until(lambda: lab.labels(AMD_NODE).get("amd.com/gpu.product-name"), "AMD_Instinct_MI300X_OAM")
    labels = lab.labels(AMD_NODE)
    assert labels["beta.amd.com/gpu.vram.192G"] == "8"
    assert not [key for key in labels if key.startswith("nvidia.com/")]
    until(lambda: lab.labels(GAUDI_NODE).get("habana.ai/gaudi.product"), "Intel-Gaudi-3")
    until(lambda: lab.labels(ARC_NODE).get("gpu.intel.com/device.count"), "2")


def a_faulty_gaudi_is_withdrawn_alone(lab: MixedLab) -> None:
    """It comes back without a restart."""
    root = lab.hw_root(GAUDI_NODE)
    operate.inject(root, "lost", gpu=7)
    until(lambda: lab.allocatable(GAUDI_NODE, GAUDI_RESOURCE), "7")
    operate.clear(root)
    until(lambda: lab.allocatable(GAUDI_NODE, GAUDI_RESOURCE), "8")


def a_faulty_gpu_is_withdrawn_alone(lab: MixedLab) -> None:
    """Pods on its neighbours run on, and it comes back without a restart."""
    root = lab.hw_root(AMD_NODE)
    lab.run("stays", AMD_GPU_RESOURCE, 7, A_WHILE)
    _, devices = lab.seen("stays", "Running")
    assert len(devices) == 15
    free = next(index for index in range(8) if f"dri/card{8 * index}" not in devices)
    operate.inject(root, "ecc", gpu=free)
    until(lambda: lab.allocatable(AMD_NODE, AMD_GPU_RESOURCE), "7")
    assert any("uncorrectable" in line for line in reset.leftovers(lab.lab))
    assert lab.get("pod", "stays")["status"]["phase"] == "Running"
    operate.clear(root)
    until(lambda: lab.allocatable(AMD_NODE, AMD_GPU_RESOURCE), "8")
    lab.delete("stays")


def an_unloaded_driver_takes_all_and_gives_all_back(lab: MixedLab) -> None:
    """Nodes of other vendors go on."""
    root = lab.hw_root(AMD_NODE)
    amd.unload(root)
    until(lambda: lab.allocatable(AMD_NODE, AMD_GPU_RESOURCE), "0")
    assert lab.allocatable(GAUDI_NODE, GAUDI_RESOURCE) == "8"
    assert lab.allocatable(NVIDIA_NODE, GPU_RESOURCE) == "8"
    amd.load(root)
    until(lambda: lab.allocatable(AMD_NODE, AMD_GPU_RESOURCE), "8")


def a_part_is_seen_by_its_pod_alone(lab: MixedLab) -> None:
    root = lab.hw_root(AMD_NODE)
    amd.set_partition(root, range(8), "cpx")
    until(lambda: lab.allocatable(AMD_NODE, AMD_GPU_RESOURCE), "64")
    lab.run("parts", AMD_GPU_RESOURCE, 3)
    _, devices = lab.seen("parts")
    cards = sorted(int(one.removeprefix("dri/card")) for one in devices if one.startswith("dri/card"))
    assert len(devices) == 7
    assert len({card // 8 for card in cards}) == 1, "parts of one GPU"
    amd.set_partition(root, range(8), "spx")
    until(lambda: lab.allocatable(AMD_NODE, AMD_GPU_RESOURCE), "8")
    lab.delete("parts")
