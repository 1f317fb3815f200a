"""Processes of containers that nobody looks after any more are found and ended; nobody else's is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.formats.names import ENV_LAB_CONTAINER
from kgpu.lab import processes
from kgpu.lab.nodes import container_processes, leftovers, manage, shim
from kgpu.lab.nodes.container_processes import is_alive
from tests.lab import container as lab_container
from tests.lab.nodes.support import Bench, pod, until, until_said

# What a container may do so that its processes are not below its first one.
WAYS = {
    "child": "sleep 98761 & echo pid=$!; wait",
    "daemon": "setsid sh -c 'echo pid=$$$$; exec sleep 98761' & wait",
    "no environment": "env -i /bin/sh -c 'echo pid=$$$$; exec /bin/sleep 98761' & wait",
}


async def said_pid(lab: Bench, name: str) -> int:
    await until_said(lab, name, "pid=")
    return int((await lab.log(name)).split("pid=")[1].split()[0])


@pytest.mark.parametrize("script", WAYS.values(), ids=WAYS)
async def test_what_a_killed_shim_leaves_is_ended_with_the_lab(lab: Bench, script: str) -> None:
    await lab.create(pod("p", script))
    await lab.phase_is("p", "Running")
    pid = await said_pid(lab, "p")
    (one,) = leftovers.containers(lab.node_folder)
    await lab.down()  # so that it is not the host that ends them
    state = json.loads((one.folder / "state.json").read_text())
    os.kill(state["shim"], 9)
    await until(lambda: not is_alive(state["shim"]))
    assert is_alive(pid)
    manage.stop_host(lab.folder)
    await until(lambda: not is_alive(pid))


async def test_the_host_ends_what_a_killed_shim_leaves(lab: Bench) -> None:
    await lab.create(pod("p", WAYS["daemon"]))
    await lab.phase_is("p", "Running")
    pid = await said_pid(lab, "p")
    (one,) = leftovers.containers(lab.node_folder)
    os.kill(json.loads((one.folder / "state.json").read_text())["shim"], 9)
    await lab.phase_is("p", "Failed")
    await until(lambda: not is_alive(pid))


async def test_an_orphan_whose_host_was_down_too_ends_with_the_next_host(lab: Bench) -> None:
    await lab.create(pod("p", WAYS["child"]))
    await lab.phase_is("p", "Running")
    pid = await said_pid(lab, "p")
    (one,) = leftovers.containers(lab.node_folder)
    await lab.down()
    os.kill(json.loads((one.folder / "state.json").read_text())["shim"], 9)
    await lab.up()
    await lab.phase_is("p", "Failed")
    await until(lambda: not is_alive(pid))


async def test_when_power_is_cut_nobody_tells_how_a_container_ended(
    lab: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.create(pod("p", WAYS["daemon"]))
    await lab.phase_is("p", "Running")
    pid = await said_pid(lab, "p")
    (one,) = leftovers.containers(lab.node_folder)
    state = json.loads((one.folder / "state.json").read_text())
    await lab.down()
    sent, kill = [], os.kill
    monkeypatch.setattr(container_processes.os, "kill", lambda *about: sent.append(about) or kill(*about))
    container_processes.cut_power(lab.node_folder)
    await until(lambda: not any(is_alive(process) for process in (pid, state["pid"], state["shim"])))
    assert sent[0] == (state["shim"], signal.SIGSTOP)  # before it could see that its container has ended
    assert not (one.folder / container_processes.EXIT).exists()


def start(session: bool = False, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=session, env={**os.environ, **env},
    )  # fmt: skip


def container(folder: Path, identity: str, **state: object) -> Path:
    made = folder / "n" / "c" / identity
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps({"id": identity}))
    if state:
        (made / "state.json").write_text(json.dumps(state))
    return made


def test_another_container_is_not_touched(tmp_path: Path) -> None:
    identity = uuid.uuid4().hex  # the whole machine is looked through, where another run may be at the same test
    folder = container(tmp_path, identity)
    with start(**{ENV_LAB_CONTAINER: identity}) as own, start(**{ENV_LAB_CONTAINER: f"{identity}d"}) as other:
        assert own.stdout
        assert other.stdout
        assert (own.stdout.readline(), other.stdout.readline()) == (b"\n", b"\n")  # they are executed by now
        assert container_processes.processes_of(folder) == [own.pid]
        container_processes.end_all(tmp_path / "n")
        assert own.wait() == -9
        assert other.poll() is None
        other.kill()


CHANGES: dict[str, Callable[[dict[str, object]], object]] = {
    "the same": lambda state: None,
    "later": lambda state: state.update(ticks=int(str(state["ticks"])) - 1),
    "another boot": lambda state: state.update(boot="another"),
    "other mounts": lambda state: state.update(mounts="mnt:[1]"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_session_counts_only_as_it_was_recorded(name: str, tmp_path: Path) -> None:
    with start(session=True) as process:
        record = processes.record(process.pid)
        state: dict[str, object] = {
            "pid": process.pid, "shim": 1 << 30, "started": 1.0, "ticks": record.start, "boot": record.boot,
            "mounts": os.readlink("/proc/self/ns/mnt"),
        }  # fmt: skip
        CHANGES[name](state)
        assert container_processes.processes_of(container(tmp_path, "x", **state)) == (
            [process.pid] if name == "the same" else []
        )
        process.kill()


@pytest.mark.parametrize("text", ["{}", "[]", "", '{"pid": 1}', '{"pid": null, "shim": 1, "started": 2}', "\x00"])
def test_a_state_that_can_not_be_read_stops_nothing(text: str, tmp_path: Path) -> None:
    folder = container(tmp_path / "nodes", "x")
    (folder / "state.json").write_text(text)
    assert container_processes.processes_of(folder) == []
    assert [one.started for one in leftovers.containers(tmp_path / "nodes" / "n")] == [0.0]
    assert manage.stop_host(tmp_path) is False


def test_a_running_containers_log_is_there(tmp_path: Path) -> None:
    """Its state says that it runs, so who reads the log next finds it; without a log nothing is started."""
    with lab_container.running(tmp_path, "uid-1") as folder:
        assert (folder / "log").exists()
    folder = tmp_path / "none"
    folder.mkdir()
    config = folder / container_processes.CONFIG
    config.write_text(json.dumps({"folder": str(folder), "log": str(folder / "no-folder" / "log")}))
    done = subprocess.run(
        [sys.executable, "-I", "-S", shim.__file__, "run", str(config)], check=False, capture_output=True
    )
    assert done.returncode != 0
    assert [path.name for path in folder.iterdir()] == [config.name]
