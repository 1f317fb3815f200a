"""A lab whose agents the operator runs: nodes' own facts by rights to read alone, and a watch that tells what changes."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.cli.doctor import snapshot_of
from kgpu.cli.main import main
from kgpu.hw.simulator import operate
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes.manage import hw_root
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from tests.polling import holds

WAIT = 300.0
GPUS = 4


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    if not build.find_kubectl():
        pytest.skip("no kubectl here")
    folder = tmp_path_factory.mktemp("probed") / "lab"
    made = EmbeddedLab("probed", folder, QuietProgress(), first=FirstNode(gpus=GPUS), operator=True)
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_the_nodes_own_facts_come_with_its_agents_log(lab: EmbeddedLab, tmp_path: Path) -> None:
    """In the running cluster, in an archive of it, and in the log alone."""
    seen = []

    def told() -> bool:
        seen[:] = asyncio.run(snapshot_of("", str(lab.kubeconfig))).hosts.values()
        return bool(seen)

    assert holds(told, seconds=WAIT)  # told by a role of its own, beside the one that offers GPUs
    (host,) = seen
    assert host.told_by.startswith("log of Pod ")
    assert [gpu.name for gpu in host.gpus or ()] == ["NVIDIA H100 80GB HBM3"] * GPUS
    assert host.driver_version
    assert [one.vendor for one in host.pci or () if one.pci_class.startswith("03")] == ["10de"] * GPUS
    assert main(["kgpu", "collect", "--kubeconfig", str(lab.kubeconfig), "-o", str(tmp_path / "all.tar.gz")]) == 0
    archived = asyncio.run(snapshot_of(str(tmp_path / "all.tar.gz"), "")).hosts[host.node]
    assert archived.gpus == host.gpus
    where = "jsonpath={.items[0].metadata['namespace','name']}"
    namespace, name = lab.kubectl_run("get", "pods", "-A", "-l", "app=kgpu-agent", "-o", where).stdout.split()
    (tmp_path / "agent.log").write_text(lab.kubectl_run("logs", "-n", namespace, name).stdout)
    assert asyncio.run(snapshot_of(str(tmp_path / "agent.log"), "")).hosts[host.node].gpus == host.gpus


def test_a_watch_tells_a_fault_and_that_it_has_gone(lab: EmbeddedLab) -> None:
    command = [
        sys.executable,
        "-m",
        "kgpu",
        "doctor",
        "--watch",
        "--interval",
        "1",
        "--kubeconfig",
        str(lab.kubeconfig),
    ]
    root = hw_root(lab.folder, "gpu-node-1")
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)
    assert watching.stdout is not None
    output, lines = watching.stdout, queue.Queue[str]()

    def read() -> None:
        for line in output:
            lines.put(line)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()

    def until(words: str) -> None:
        while words not in lines.get(timeout=2 * WAIT):
            pass

    try:
        until("Nothing is wrong")
        operate.inject(root, "lost", gpu=GPUS - 1)
        until("SCH-03")
        operate.clear(root)
        until("Nothing is wrong")
    finally:
        operate.clear(root)
        watching.terminate()
        watching.wait(WAIT)
        reading.join(WAIT)
        output.close()
