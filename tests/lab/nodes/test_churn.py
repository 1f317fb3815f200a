"""A short churn on a real embedded lab with full nodes: real agents killed at random, then the host itself killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from bench import churn
from kgpu.formats.names import GPU_RESOURCE
from kgpu.kube.client import connect
from kgpu.kube.port import NODES, PODS
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import leftovers, manage
from tests.budget import count
from tests.lab.nodes.support import until

CUDA = "nvidia/cuda:12.8.0-base-ubuntu24.04"


@pytest.mark.usefixtures("sim_libs")
def test_no_gpu_is_held_twice_and_none_leaks(folder: Path) -> None:
    plan = churn.Plan(nodes=4, gpus=4, pods=24, seconds=count(12, 60), life=6, kill_every=2, check_every=1, enough=5)
    result = churn.run(plan, folder)
    assert result.problems == []
    assert result.created == result.deleted > plan.pods
    assert result.killed > 0
    assert result.checks > 0
    assert result.most_held > plan.nodes


def gpu_pod(name: str, gpus: int) -> dict:
    made = churn.pod(name, image=CUDA, gpus=gpus)
    made["spec"]["containers"][0]["command"] = ["sh", "-c", "nvidia-smi -L; sleep 600"]
    made["metadata"]["namespace"] = "default"
    return made


@pytest.mark.usefixtures("sim_libs")
async def test_a_killed_host_finds_everything_again(folder: Path) -> None:
    lab = EmbeddedLab("killed", folder / "lab")
    await asyncio.to_thread(lab.up)
    try:
        manage.add(lab.folder, "hgx-h100", gpus=2, name_prefix="n", config=churn.CONFIG)
        await asyncio.to_thread(manage.start_host, lab.folder, lab.kubeconfig)
        await kill_the_host(lab)
    finally:
        await asyncio.to_thread(manage.stop_host, lab.folder)
        await asyncio.to_thread(lab.down)


async def kill_the_host(lab: EmbeddedLab) -> None:
    api, node = connect(str(lab.kubeconfig)), lab.nodes / "n-1"
    seen: dict[str, dict] = {}

    async def follow() -> None:
        while True:
            for resource, name in ((NODES, "n-1"), (PODS, "a"), (PODS, "b")):
                seen[name] = await api.get(resource, name, namespace="" if resource is NODES else "default") or {}
            await asyncio.sleep(0.1)

    def free() -> str:
        return seen.get("n-1", {}).get("status", {}).get("allocatable", {}).get(GPU_RESOURCE, "")

    def phase(name: str) -> str:
        return seen.get(name, {}).get("status", {}).get("phase", "")

    follower = asyncio.create_task(follow())
    try:
        await until(lambda: free() == "2", lambda: str(seen.get("n-1")))
        await api.create(PODS, gpu_pod("a", 1))
        await until(lambda: phase("a") == "Running", lambda: str(seen.get("a")))
        held, agent, before = churn.checkpoint(node), (node / "agent.pid").read_text(), processes(node)
        assert [len(ids) for ids in held.values()] == [1]

        os.kill(manage.status(lab.folder)["host"], signal.SIGKILL)
        await until(lambda: not manage.host_running(manage.nodes_dir(lab.folder)))
        assert all(exists(pid) for pid in before)
        await api.create(PODS, gpu_pod("b", 1))  # it comes while nobody is there
        await asyncio.to_thread(manage.start_host, lab.folder, lab.kubeconfig)

        await until(lambda: phase("b") == "Running", lambda: str(seen.get("b")))
        assert set(before) <= set(processes(node))
        assert (node / "agent.pid").read_text() != agent  # the old one was ended, so that there is one
        assert held.items() <= churn.checkpoint(node).items()
        assert churn.twice(churn.checkpoint(node)) == []
        assert seen["a"]["status"]["containerStatuses"][0]["restartCount"] == 0
        listed = await churn.pod_resources(node)
        assert sorted(len(ids) for ids in listed.values()) == [1, 1]
        for name in ("a", "b"):
            await api.delete(PODS, name, namespace="default")
        await until(lambda: not churn.checkpoint(node))
        await until(lambda: not processes(node))
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        await api.close()


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def processes(node: Path) -> list[int]:
    """The first processes of the node's containers."""
    found = []
    for one in leftovers.containers(node):
        state = one.folder / "state.json"
        if state.exists():
            found.append(json.loads(state.read_text())["pid"])
    return found
