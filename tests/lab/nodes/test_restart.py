"""A host that ends and starts again: what ran runs on, nothing twice, nothing is left of what went meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kgpu.kube.port import PODS
from kgpu.kubelet.fake import CHECKPOINT
from kgpu.lab.nodes import leftovers
from tests.lab.nodes.support import GPU, Bench, gpus, plugin, pod, until, until_said, until_there


def pids(lab: Bench) -> dict[str, int]:
    """Pod's uid -> pid of its container's first process."""
    return {
        one.pod: json.loads((one.folder / "state.json").read_text())["pid"]
        for one in leftovers.containers(lab.node_folder)
    }


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_running_containers_are_found_again(lab: Bench) -> None:
    async with plugin(lab):
        await lab.create(pod("p", "echo up; sleep 600", resources=gpus(2)))
        await lab.create(pod("standin", image="example.com/any:1", resources=gpus(1)))
        await lab.phase_is("p", "Running")
        await lab.phase_is("standin", "Running")
        before, held = pids(lab), {key: dict(rows) for key, rows in lab.node.devices.held().items()}
        identifier = lab.container("p")["containerID"]
        await lab.down()
    await lab.up()
    assert lab.node.devices.held() == held
    assert lab.node.devices.problem == ""
    async with plugin(lab) as (_, logic):
        await lab.create(pod("q", "echo", resources=gpus(2)))  # only one is free
        assert (await lab.phase_is("q", "Failed"))["reason"] == f"OutOf{GPU}"
        assert not logic.allocated
    assert pids(lab) == before
    for name in ("p", "standin"):
        assert (lab.phase(name), lab.container(name)["restartCount"]) == ("Running", 0)
    assert lab.container("p")["containerID"] == identifier
    assert await lab.log("p") == "up\n"
    await lab.api.delete(PODS, "p", namespace="default")
    await lab.is_gone("p")
    assert not any(alive(pid) for pid in before.values())


async def test_what_ended_meanwhile_is_told(lab: Bench) -> None:
    go = lab.folder / "go"
    await lab.create(pod("p", until_there(go, "echo bye; exit 7")))
    await lab.phase_is("p", "Running")
    (pid,) = pids(lab).values()
    await lab.down()
    assert alive(pid)
    go.touch()
    await until(lambda: not alive(pid))
    await lab.up()
    status = await lab.phase_is("p", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    assert await lab.log("p") == "bye\n"


async def test_a_container_whose_start_was_not_told_is_not_started_twice(lab: Bench) -> None:
    lab.api.refuse["patch", "pods"] = 500
    await lab.create(pod("p", "echo up; sleep 600"))
    await until_said(lab, "p", "up")
    before = pids(lab)
    await lab.down()
    lab.api.refuse.clear()
    await lab.up()
    await lab.phase_is("p", "Running")
    assert pids(lab) == before
    assert lab.container("p")["restartCount"] == 0
    assert await lab.log("p") == "up\n"


async def test_pods_that_went_meanwhile_leave_nothing(lab: Bench) -> None:
    async with plugin(lab):
        await lab.create(pod("p", "sleep 600", resources=gpus(4)))
        await lab.phase_is("p", "Running")
        (pid,) = pids(lab).values()
        await lab.down()
    await lab.api.delete(PODS, "p", namespace="default", grace=0)
    stray = lab.node_folder / "c" / "unreadable"
    stray.mkdir()
    await lab.up()
    await until(lambda: not lab.node.devices.held())
    await until(lambda: not alive(pid))
    await until(lambda: [path for kind in ("c", "pods", "logs") for path in (lab.node_folder / kind).glob("*")] == [])
    async with plugin(lab):
        await lab.create(pod("q", "echo", resources=gpus(4)))
        await lab.phase_is("q", "Succeeded")


def damage(path: Path, content: bytes | None) -> None:
    """None: one id is another one, which only the checksum tells."""
    path.write_bytes(path.read_bytes().replace(b'"d2"', b'"d1"') if content is None else content)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"Data": {}, "Checksum": 0}', None])
async def test_a_corrupted_checkpoint_is_named_and_nothing_is_held_twice(lab: Bench, content: bytes | None) -> None:
    async with plugin(lab):
        await lab.create(pod("p", "sleep 600", resources=gpus(2)))
        await lab.create(pod("free", "sleep 600"))
        await lab.phase_is("p", "Running")
        await lab.phase_is("free", "Running")
        before = pids(lab)
        await lab.down()
    path = lab.node_folder / "dp" / CHECKPOINT
    damage(path, content)
    await lab.up()
    assert str(path) in lab.node.devices.problem
    assert str(path) in await lab.event("InvalidDeviceCheckpoint")
    assert path.with_name(f"{CHECKPOINT}.corrupt").exists()
    status = await lab.phase_is("p", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "checkpoint was corrupted" in status["message"]
    free, held = (lab.pod(name)["metadata"]["uid"] for name in ("free", "p"))
    await until(lambda: not alive(before[held]))
    assert alive(before[free])
    assert (lab.phase("free"), lab.container("free")["restartCount"]) == ("Running", 0)
    await until(lambda: [one["metadata"]["name"] for one in lab.node.active_pods()] == ["free"])
    async with plugin(lab):
        await lab.create(pod("q", "echo", resources=gpus(4)))
        await lab.phase_is("q", "Succeeded")


async def test_a_shim_that_was_killed_fails_its_container(lab: Bench) -> None:
    await lab.create(pod("p", "sleep 600"))
    await lab.phase_is("p", "Running")
    (one,) = leftovers.containers(lab.node_folder)
    state = json.loads((one.folder / "state.json").read_text())
    os.kill(state["shim"], 9)
    status = await lab.phase_is("p", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    await until(lambda: not alive(state["pid"]))
