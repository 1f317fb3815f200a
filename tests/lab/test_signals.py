"""What a lab starts hears every signal, though whoever brought it up ignores some: a node's engine ends by a SIGHUP."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kgpu.lab import processes
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import container_processes, manage, runtime
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import keeper
from kgpu.lab.real.plan import PlannedProcess
from kgpu.lab.scenarios.run import run_command
from tests.deaf import parent, unheard, unheard_by
from tests.lab.container import running

# Python itself ignores these, in every program that is written in it.
OF_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
LOOK = ("cat", "/proc/self/status")


def test_a_process_of_a_real_node(tmp_path: Path) -> None:
    child = keeper.KeptProcess(PlannedProcess(name="engine", argv=("/bin/sleep", "600"), log=str(tmp_path / "log")))
    with parent():
        keeper.start(child)
    try:
        assert unheard_by(child.pid) == set()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)


async def test_a_container_and_a_command_in_it(tmp_path: Path) -> None:
    with parent():
        with running(tmp_path, "uid", "sh", "-c", "cat /proc/self/status; exec sleep 600") as folder:
            begun = container_processes.read_state(folder)
            assert begun is not None
            container = runtime.ContainerProcess(folder, "c", begun.pid, begun.shim, begun.started)
            code, inside = await container.execute(LOOK, 60)
            assert unheard_by(container.pid) == set()
    assert (code, unheard(inside)) == (0, set())


def test_a_spawned_shim(tmp_path: Path) -> None:
    with parent():
        pid = runtime._spawn(["/bin/cat", "/proc/self/status"], tmp_path / "log")
    os.waitpid(pid, 0)
    assert unheard((tmp_path / "log").read_text()) == set()


def test_a_line_of_a_story() -> None:
    with parent():
        outcome = run_command(LOOK, "", os.environ)
    assert (outcome.code, unheard(outcome.text)) == (0, set())


@pytest.mark.timeout(300)
def test_everything_of_an_embedded_lab(kubectl: str, tmp_path: Path) -> None:
    """The API server, the host of the nodes, and the agent."""
    del kubectl
    lab = EmbeddedLab("deaf", tmp_path / "lab", QuietProgress(), first=FirstNode(gpus=1))
    try:
        with parent():
            lab.up()
        server = lab.state.server
        assert server is not None
        host = manage._pid(manage.nodes_dir(lab.folder))
        agents = processes.children(host)
        assert agents
        assert not [pid for pid in (server.pid, host, *agents) if unheard_by(pid) - OF_PYTHON]
    finally:
        lab.down()
