"""Light nodes: the real device plugin in the host's process, on hardware that is only data."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError
from kgpu.deviceplugin.topology import GpuTopology
from kgpu.discovery import config as labels_config
from kgpu.discovery.model import NodeFacts
from kgpu.discovery.plan import plan
from kgpu.formats.names import GPU_RESOURCE, LABEL_PRODUCT
from kgpu.formats.plugin_config_parse import parse_config
from kgpu.hw.port import Problem
from kgpu.hw.simulator import profiles
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import PODS, Object
from kgpu.kubelet.fake import FakeKubelet
from kgpu.lab.nodes.light_agent import LightAgent, inventory_of, labels_of, links_of, profile_of
from kgpu.lab.nodes.logserver import ContainerLog
from kgpu.lab.nodes.spec import NodeSpec
from tests.lab.nodes.hosting import hosting, light, node, ready, write
from tests.lab.nodes.support import until


@contextlib.asynccontextmanager
async def served(folder: Path, spec: NodeSpec) -> AsyncIterator[tuple[LightAgent, FakeKubelet]]:
    """An agent beside its device manager."""
    kubelet = FakeKubelet(folder / "dp")
    await kubelet.start()
    agent = LightAgent(spec, kubelet.socket, folder / "agent")
    task = asyncio.create_task(agent.run())
    try:
        yield agent, kubelet
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await kubelet.stop()


def gpu_pod(name: str, where: str, count: int) -> Object:
    container = {"name": "main", "image": "example.com/any:1", "resources": {"limits": {GPU_RESOURCE: str(count)}}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": where, "containers": [container]}}


async def test_the_plugin_registers_and_its_choice_and_answers_are_used(folder: Path) -> None:
    async with served(folder, light("a", gpus=4)) as (agent, kubelet):
        await kubelet.wait_for(lambda: kubelet.allocatable() == {GPU_RESOURCE: 4})
        assert [one.resource for one in kubelet.registrations] == [GPU_RESOURCE]
        assert kubelet.registrations[0].preferred_allocation
        await kubelet.admit("pod", "main", {GPU_RESOURCE: 2})
        uuids = [gpu.uuid for gpu in (await agent.reader.inventory()).accelerators]
        held = kubelet.held()["pod", "main"][GPU_RESOURCE]
        assert set(held) < set(uuids)
        answer = kubelet.answers("pod", "main")[GPU_RESOURCE]
        assert set(answer.envs["NVIDIA_VISIBLE_DEVICES"].split(",")) == set(held)


async def test_a_sick_gpu_is_offered_no_more_until_it_is_well(folder: Path) -> None:
    async with served(folder, light("a", gpus=3)) as (agent, kubelet):
        await kubelet.wait_for(lambda: kubelet.allocatable() == {GPU_RESOURCE: 3})
        one = (await agent.reader.inventory()).accelerators[1].uuid
        agent.reader.fail(one, Problem.LOST)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {GPU_RESOURCE: 2})
        assert kubelet.capacity() == {GPU_RESOURCE: 3}
        agent.reader.heal(one)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {GPU_RESOURCE: 3})


async def test_sharing_comes_from_the_nodes_config(folder: Path) -> None:
    config = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 5\n"
    async with served(folder, light("a", config=config)) as (agent, kubelet):
        await kubelet.wait_for(lambda: kubelet.allocatable() == {GPU_RESOURCE: 10})
        assert agent.labels()[f"{GPU_RESOURCE}.replicas"] == "5"


@pytest.mark.parametrize("name", profiles.names())
def test_labels_are_the_same_for_every_node_of_a_shape(name: str) -> None:
    profile = profile_of(name, None)
    settings = labels_config.resolve(parse_config("", source="x"), env={}).labels()
    facts = NodeFacts(machine=profile.machine.product, vgpu_present=False, vgpu=None)
    own = dict(plan(inventory_of(profile, "some-node-7"), settings, facts).labels)
    assert own == labels_of(name, None, "")
    assert labels_of(name, None, "") is labels_of(name, None, "")


@pytest.mark.parametrize("name", profiles.names())
def test_links_are_those_of_the_machine(name: str) -> None:
    profile = profile_of(name, None)
    inventory = inventory_of(profile, "n")
    count = len(profile.gpus)
    links = links_of(inventory, profile.topology)
    assert len({frozenset((link.a, link.b)) for link in links}) == count * (count - 1) // 2 == len(links)
    expected = 0 if profile.topology.switched else sum(map(sum, profile.topology.lanes)) // 2
    assert sum(link.lanes for link in links) == expected
    assert GpuTopology([gpu.uuid for gpu in inventory.accelerators], links).score(
        [gpu.uuid for gpu in inventory.accelerators]
    ) >= 10 * len(links)


def test_no_two_nodes_have_a_gpu_in_common() -> None:
    profile = profile_of("hgx-h100", None)
    one, other = ({gpu.uuid for gpu in inventory_of(profile, seed).accelerators} for seed in ("n-1", "n-2"))
    assert len(one) == len(other) == 8
    assert not one & other


def test_a_profile_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="hgx-h100"):
        LightAgent(light("a", profile="hgx-h10"), Path("/nowhere/sock"), Path("/nowhere"))


async def test_pods_of_a_light_node_run_and_share_no_gpu(folder: Path) -> None:
    api = FakeApi()
    write(folder, light("a"))
    async with hosting(folder, api) as host:
        await ready(api, "a")
        for name in ("one", "two"):
            await api.create(PODS, gpu_pod(name, "a", 1))

        def phases() -> list[str]:
            return [
                (api._objects[PODS, "default", name].obj.get("status") or {}).get("phase") for name in ("one", "two")
            ]

        await until(lambda: phases() == ["Running", "Running"], lambda: str(phases()))
        container = api._objects[PODS, "default", "one"].obj["spec"]["containers"][0]["name"]
        assert list((folder / "nodes" / "a").rglob("*.log")) == []
        for _ in range(2):  # asked again it is said once all the same
            told = host._find_log("default", "one", container, False)
            assert isinstance(told, ContainerLog)
            assert told.path.read_text().count("this node is light") == 1
        held = [rows[GPU_RESOURCE] for rows in host.nodes["a"].devices.held().values()]
        assert len({device for ids in held for device in ids}) == 2
        await api.create(PODS, gpu_pod("three", "a", 1))
        await until(lambda: (api._objects[PODS, "default", "three"].obj.get("status") or {}).get("phase") == "Failed")
        assert api._objects[PODS, "default", "three"].obj["status"]["reason"] == f"OutOf{GPU_RESOURCE}"


async def test_nodes_have_discoverys_labels_from_the_start(folder: Path) -> None:
    api = FakeApi()
    write(folder, light("a"), light("b", profile="cpu", gpus=None), light("c", agent=False))
    async with hosting(folder, api):
        await ready(api, "a")
        await ready(api, "b", "c", gpus=0)
        shown = {name: (node(api, name) or {})["metadata"]["labels"] for name in "abc"}
        assert shown["a"][GPU_RESOURCE + LABEL_PRODUCT] == "NVIDIA-H100-80GB-HBM3"
        assert shown["a"][f"{GPU_RESOURCE}.count"] == "2"
        assert not any(key.startswith(GPU_RESOURCE) for name in "bc" for key in shown[name])


async def test_a_node_whose_agent_can_not_work_is_there_without_gpus(folder: Path) -> None:
    api = FakeApi()
    write(folder, light("bad", config="version: v1\nflgas: {}\n"), light("gone", profile="nothing"), light("good"))
    async with hosting(folder, api):
        await ready(api, "good")
        await ready(api, "bad", "gone", gpus=0)


async def test_a_light_node_takes_no_inotify_instance(folder: Path) -> None:
    """There are 128 for a user, and others need them."""
    api = FakeApi()
    write(folder, *(light(f"n-{number}") for number in range(6)))
    async with hosting(folder, api):
        await ready(api, *(f"n-{number}" for number in range(6)))
        shown = [_target(one) for one in os.listdir("/proc/self/fd")]
        assert sum("inotify" in target for target in shown) <= 1


def _target(descriptor: str) -> str:
    """What it is open on; "" where another thread, or the look itself, has closed it."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""
