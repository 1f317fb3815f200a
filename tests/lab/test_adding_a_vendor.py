"""A vendor is one package: what CONTRIBUTING asks for, done literally to a copy, runs on the embedded lab."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.lab.copied import Cluster, Copy, until

pytestmark = pytest.mark.timeout(300)
NODE: Final = "plain-1"
RESOURCE: Final = "dummy.example/npu"
LISTED: Final = "run/dummy/devices"

PACKAGE: Final = '''
"""The vendor ``dummy``."""
'''
VENDOR: Final = '''
"""The vendor ``dummy``, whose driver is a file with a line per device: its name and its memory in MiB."""

from pathlib import Path

from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Accelerator, Inventory, Reader
from kgpu.hw.vendor import Vendor


def _open(root: Path, deadline: float, poll: float) -> Reader:
    lines = (root / "run/dummy/devices").read_text().splitlines()
    devices = tuple(
        Accelerator(
            vendor="dummy", index=index, uuid=f"NPU-{index}", name=name, memory_mib=int(memory),
            device_nodes=(f"/dev/npu{index}",),
        )
        for index, (name, memory) in enumerate(line.split() for line in lines)
    )
    return FakeReader(Inventory(vendor="dummy", driver_version="7", accelerators=devices))


def _missing(root: Path) -> list[str]:
    path = root / "run/dummy/devices"
    return [] if path.exists() else [str(path)]


VENDOR = Vendor(
    name="dummy",
    title="Dummy",
    domain="dummy.example",
    resource="dummy.example/npu",
    partition_resource=lambda profile: f"dummy.example/npu-{profile}",
    visible_devices="DUMMY_VISIBLE_DEVICES",
    cdi_vendor="k8s.device-plugin.dummy.example",
    left_out=frozenset({"Monitor"}),
    pci_id="dddd",
    driver_root="/run/dummy",
    missing=_missing,
    open=_open,
)
'''
FILES: Final = {"hw/dummy/__init__.py": PACKAGE, "hw/dummy/vendor.py": VENDOR}
SHARED: Final = f"""
version: v1
sharing:
  timeSlicing:
    resources: [{{name: {RESOURCE}, replicas: 4}}]
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy.make(tmp_path_factory.mktemp("copy"), FILES)


@pytest.fixture(scope="module")
def cluster(copy: Copy, kubectl: str) -> Iterator[Cluster]:
    """An embedded lab that the copy has brought up, with a node whose devices are the vendor's."""
    folder = copy.root / "lab"
    try:
        for words in (("up", "--no-node"), ("node", "add", "cpu", "--prefix", "plain", "--wait")):
            done = copy.kgpu("lab", *words, "--dir", str(folder))
            assert done.returncode == 0, done.stdout + done.stderr
        yield Cluster(kubectl, folder / "kubeconfig")
    finally:
        copy.kgpu("lab", "down", "--dir", str(folder))


@contextlib.contextmanager
def agent(copy: Copy, cluster: Cluster, folder: Path, *words: str) -> Iterator[Path]:
    """The node's agent, and its log."""
    root, log = folder / "root", folder / "agent.log"
    (root / LISTED).parent.mkdir(parents=True)
    (root / LISTED).write_text("D-1000 8192\nD-1000 8192\nMonitor 64\n")
    command = [
        sys.executable, "-m", "kgpu", "agent", "--roles", "deviceplugin,labels", "--node-name", NODE,
        "--root", str(root), "--driver-root", str(root), "--kubeconfig", str(cluster.kubeconfig),
        "--kubelet-socket", str(copy.root / f"lab/nodes/{NODE}/dp/kubelet.sock"), "--labels-sink", "node",
        "--state-dir", str(folder / "state"), *words,
    ]  # fmt: skip
    with log.open("wb") as out, subprocess.Popen(command, env=copy.env, cwd=folder, stdout=out, stderr=out) as process:
        try:
            yield log
        finally:
            process.terminate()


def node(cluster: Cluster) -> Any:
    return cluster.get("node", NODE)


def test_its_devices_are_offered_labelled_and_handed_out(copy: Copy, cluster: Cluster, tmp_path: Path) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "user"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "busybox:1",
                    "command": ["sh", "-c", "echo it has $DUMMY_VISIBLE_DEVICES, not $NVIDIA_VISIBLE_DEVICES"],
                    "resources": {"limits": {RESOURCE: 1}},
                }
            ],
        },
    }
    with agent(copy, cluster, tmp_path):
        until(lambda: node(cluster)["status"]["allocatable"].get(RESOURCE), "2")

        def labels() -> dict[str, str]:
            found = node(cluster)["metadata"]["labels"].items()
            return {key: value for key, value in found if key.startswith(("dummy.example/", "nvidia.com/"))}

        until(
            labels,
            {
                f"{RESOURCE}.product": "D-1000",
                f"{RESOURCE}.count": "2",
                f"{RESOURCE}.replicas": "1",
                f"{RESOURCE}.sharing-strategy": "none",
                f"{RESOURCE}.memory": "8192",
            },
        )
        cluster.run("apply", "-f", "-", stdin=json.dumps(pod))
        until(lambda: cluster.get("pod", "user")["status"].get("phase"), "Succeeded")
        assert cluster.run("logs", "user").strip() in {f"it has NPU-{number}, not" for number in (0, 1)}


def test_sharing_that_it_can_not_do_is_told(copy: Copy, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(SHARED)
    with agent(copy, cluster, tmp_path, "--config-file", str(tmp_path / "config.yaml")) as log:
        until(lambda: "accelerators of Dummy can't be shared by timeSlicing" in log.read_text(), True)
        until(lambda: node(cluster)["status"]["allocatable"].get(RESOURCE), "2")
