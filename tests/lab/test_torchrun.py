"""The stand-in for torchrun: several nodes train when all of them have met over the network, and not before.

Both ways in which it meets are tried: through busybox, as in a real lab's pods, and as on simulated nodes, where pods
share this machine's network and have addresses of the loopback's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from kgpu.lab import samples
from kgpu.lab.nodes.addresses import loopback
from tests import polling
from tests.ports import free_port

Begin = Callable[..., "subprocess.Popen[str]"]
IPS: Final = ("10.244.1.1", "10.244.1.2", "10.244.2.9")
SMI: Final = '#!/bin/sh\nprintf "0, GPU-a, H100\\n1, GPU-b, H100\\n"\n'


@pytest.fixture(params=["busybox", "simulated"])
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Begin:
    """Starts torchrun on one of the nodes: ``begin(0, "--nnodes=2")``. Its words begin with two processes each."""
    busybox = shutil.which("busybox")
    if request.param == "busybox" and busybox is None:
        pytest.skip("no busybox here")
    program, smi = tmp_path / "torchrun", tmp_path / "nvidia-smi"
    shell = f"#!{busybox} sh\n" if request.param == "busybox" else "#!/bin/sh\n"
    program.write_text(shell + samples.script("script:torchrun").decode().partition("\n")[2])
    smi.write_text(SMI)
    for script in (program, smi):
        script.chmod(0o755)
    port = free_port()
    started: list[subprocess.Popen[str]] = []

    def run(node: int, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        lab: dict[str, str] = {}
        if request.param == "simulated":
            address = loopback(IPS[node], tmp_path)
            lab = {"KGPU_LAB_PYTHON": sys.executable, "KGPU_LAB_POD_ADDRESS": address, "KGPU_LAB_POD_IP": IPS[node]}
        started.append(
            subprocess.Popen(
                [str(program), "--nproc_per_node=2", f"--master_port={port}", *words, "train.py"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(tmp_path), **lab, **(env or {})},
            )
        )  # fmt: skip
        return started[-1]

    run.port = port  # type: ignore[attr-defined]
    run.master = "127.0.0.1" if request.param == "busybox" else IPS[0]  # type: ignore[attr-defined]
    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the listener that it may have started
        process.communicate()


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    text = process.communicate(timeout=60)[0]
    return process.returncode, text


def master(begin: Begin) -> str:
    return str(begin.master)  # type: ignore[attr-defined]


def test_nodes_that_have_met_train_each_rank_once(begin: Begin) -> None:
    first = begin(0, "--nnodes=3", "--node_rank=0")
    by_words = begin(1, "--nnodes", "3", "--node-rank", "1", f"--master_addr={master(begin)}")
    env = {"PET_NNODES": "3", "PET_NODE_RANK": "2", "PET_MASTER_ADDR": master(begin)}
    done = [said(one) for one in (first, by_words, begin(2, env=env))]
    assert [code for code, _ in done] == [0, 0, 0], done
    lines = [line for _, text in done for line in text.splitlines() if line.startswith("[rank ")]
    assert [line.split()[1] for line in lines] == [f"{rank}/6]" for rank in range(6)]
    assert [text.count("all 3 nodes have met\n") for _, text in done] == [1, 1, 1]


@pytest.mark.parametrize("rank", [0, 1])
def test_without_the_other_node_nothing_is_trained_and_that_is_said(begin: Begin, rank: int) -> None:
    words = (f"--node_rank={rank}", f"--master_addr={master(begin)}", "--rdzv_conf=timeout=1")
    code, text = said(begin(rank, "--nnodes=2", *words))
    assert code == 1
    assert "nothing is trained before all 2 are there" in text
    assert "Timed out after 1 seconds waiting for clients. 1/2 clients joined." in text
    assert "[rank " not in text
    assert "finished" not in text


def test_two_nodes_of_rank_0_never_meet(begin: Begin) -> None:
    """As in the documented Job without a meeting point: each waits for the other at its own address."""
    both = [begin(node, "--nnodes=2", "--rdzv_conf=timeout=1") for node in (0, 1)]
    assert [(code, "finished" in text) for code, text in map(said, both)] == [(1, False), (1, False)]


def test_a_node_that_went_away_again_is_waited_for(begin: Begin) -> None:
    words = ("--nnodes=3", f"--master_addr={master(begin)}")
    first = begin(0, *words)
    gone = begin(1, *words, "--node_rank=1", "--rdzv_conf=timeout=1")
    assert said(gone)[0] == 1
    others = [begin(node, *words, f"--node_rank={node}") for node in (2, 1)]
    assert [said(one)[0] for one in (first, *others)] == [0, 0, 0]


@pytest.mark.parametrize("begin", ["busybox"], indirect=True)  # on simulated nodes one process waits for all
def test_a_node_that_came_again_is_met_though_its_former_connection_was_not_missed_yet(
    begin: Begin, tmp_path: Path
) -> None:
    """As on a busy machine: whoever waits for a node that has gone finds that out after the node has come again."""
    to_it = f"--master_addr={master(begin)}"
    first = begin(0, "--nnodes=3")
    with connection(begin.port) as former:  # type: ignore[attr-defined]
        former.sendall(b"1 3\n")
        assert former.recv(4) == b"wait"
        [waiting], [noted] = waiters(tmp_path), notes(tmp_path)
        os.kill(waiting, signal.SIGSTOP)
    second = begin(1, "--nnodes=3", "--node_rank=1", to_it)
    assert polling.holds(lambda: notes(tmp_path) not in ([], [noted]), seconds=60), "the node is noted again"
    os.kill(waiting, signal.SIGCONT)
    assert polling.holds(lambda: waiting not in waiters(tmp_path), seconds=60)
    third = begin(2, "--nnodes=3", "--node_rank=2", to_it)
    assert [said(one)[0] for one in (first, second, third)] == [0, 0, 0]


def waiters(folder: Path) -> list[int]:
    """The processes that wait for the others for one node each."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")[:-1]
            if words[-1:] == [bytes(folder / "torchrun")] and b"nc" not in words:
                found.append(int(process.name))
    return found


def notes(folder: Path) -> list[int]:
    """When each node that is there was noted."""
    found = []
    for note in folder.glob("tmp.*/*.there"):
        with contextlib.suppress(FileNotFoundError):
            found.append(note.stat().st_mtime_ns)
    return found


def connection(port: int) -> socket.socket:
    """To whoever will listen."""
    found: list[socket.socket] = []

    def connected() -> bool:
        with contextlib.suppress(OSError):
            found.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        return bool(found)

    assert polling.holds(connected, seconds=60)
    return found[0]


def test_a_node_that_counts_otherwise_is_sent_away(begin: Begin) -> None:
    first = begin(0, "--nnodes=2")
    code, text = said(begin(1, "--nnodes=4", "--node_rank=3", f"--master_addr={master(begin)}"))
    assert (code, "node 0 takes no node 3 of 4" in text) == (1, True)
    assert first.poll() is None


def test_training_lasts_as_long_as_it_is_told(begin: Begin, tmp_path: Path) -> None:
    load = tmp_path / "gpu-load"
    load.write_text('#!/bin/sh\necho "gpu-load $*"; [ "$2" != 7 ]\n')
    load.chmod(0o755)
    seconds = lambda value: said(begin(0, "--standalone", env={"KGPU_SIMULATED_SECONDS": value}))  # noqa: E731
    code, text = seconds("5")
    assert (code, text.splitlines()[-2:]) == (0, ["gpu-load --seconds 5", "training finished on 2 ranks"])
    assert seconds("7")[0] == 1, "the GPU could not be had"
    assert (seconds("0")[0], "gpu-load" in seconds("")[1]) == (0, False)
    code, text = seconds("5m")
    assert (code, "KGPU_SIMULATED_SECONDS=5m is not a number" in text, "finished" in text) == (1, True, False)


def test_a_run_that_is_ended_ends_its_load(begin: Begin, tmp_path: Path) -> None:
    load = tmp_path / "gpu-load"
    load.write_text("#!/bin/sh\necho loaded; exec sleep 600\n")
    load.chmod(0o755)
    process = begin(0, "--standalone", env={"KGPU_SIMULATED_SECONDS": "600"})
    assert process.stdout is not None
    assert any(line == "loaded\n" for line in iter(process.stdout.readline, ""))
    process.terminate()
    assert process.wait(timeout=30) == 143
    assert process.stdout.read() == "", "nobody has it open any more"


def test_one_node_needs_nobody_and_another_backend_is_refused(begin: Begin) -> None:
    assert said(begin(0, "--standalone"))[1].endswith("training finished on 2 ranks\n")
    code, text = said(begin(0, "--nnodes=2", "--rdzv-backend=c10d"))
    assert (code, "knows static alone" in text) == (1, True)
