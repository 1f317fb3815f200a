"""What containers and nodes use, from the processes that there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.lab.nodes import usage
from kgpu.lab.nodes.usage import NodeProcesses, RunningContainer, Usage
from tests.lab.nodes.support import Bench, pod, until_said

MIB = 1024 * 1024
# Holds memory, and lets a child that it waits for compute.
PROGRAM = """
import subprocess, sys
held = bytearray(b"x" * (64 << 20))
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def program() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_memory_and_the_time_of_ended_children(program: int) -> None:
    found = usage.of_tree(program)
    assert found.cpu >= 0.3
    assert 64 * MIB <= found.memory < 512 * MIB


def test_nothing_of_a_process_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert usage.of_tree(process.pid) == Usage()


def test_a_node_is_its_agent_and_its_containers(tmp_path: Path) -> None:
    stand_in = RunningContainer(namespace="d", pod="p", name="c", started=5.0, folder=None)
    gone = RunningContainer(namespace="d", pod="p", name="gone", started=5.0, folder=tmp_path)
    nodes = [
        NodeProcesses(name="full", agent=os.getpid(), containers=[stand_in, gone]),
        NodeProcesses(name="light", agent=0, containers=[]),
    ]
    found = json.loads(usage.document(nodes))["nodes"]
    assert found["full"]["memory"] > MIB
    assert [(row["name"], row["cpu"], row["memory"]) for row in found["full"]["containers"]] == [
        ("c", 0, 0),
        ("gone", 0, 0),
    ]
    assert (found["light"]["cpu"], found["light"]["memory"]) == (0, 0)


async def test_a_running_container(lab: Bench) -> None:
    await lab.create(pod("p", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo ready; exec sleep 1000"))
    await until_said(lab, "p", "ready")
    (container,) = lab.node.processes().containers
    assert (container.namespace, container.pod) == ("default", "p")
    status, text = await lab.logs("/usage")
    assert status == 200
    (row,) = json.loads(text)["nodes"][lab.node.spec.name]["containers"]
    assert (row["pod"], row["started"]) == ("p", container.started)
    assert row["cpu"] > 0
    assert row["memory"] > 0
