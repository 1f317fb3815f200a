"""``kgpu agent --roles deviceplugin`` on a simulated AMD node, without an operator: what a kubelet gets of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from kgpu.formats.names import AMD_GPU_RESOURCE
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.amd import operate as amd
from tests.agent.test_end_to_end import SECONDS, Node

MIXED = ("--resource-naming-strategy", "mixed")
CDI = "k8s.device-plugin.amd.com/gpu"


@pytest.fixture
async def node(tmp_path_factory, sim_root):
    return Node(tmp_path_factory.mktemp("node"), sim_root("mi300x"))


def drm(*numbers: int) -> list[str]:
    """The device nodes of GPUs by the numbers of their cards."""
    return ["/dev/kfd", *(path for n in numbers for path in (f"/dev/dri/card{n}", f"/dev/dri/renderD{128 + n}"))]


async def healthy(node: Node, count: int, resource: str = AMD_GPU_RESOURCE) -> None:
    await node.kubelet.wait_for(
        lambda: sum(device.healthy for device in node.kubelet.devices(resource)) == count, seconds=SECONDS
    )


async def test_gpus_are_offered_with_their_numa_nodes_and_given_with_their_nodes_alone(node) -> None:
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await node.offered(8, AMD_GPU_RESOURCE)
        assert node.sockets() == ["amd.com_gpu.sock", "kubelet.sock"]
        devices = node.kubelet.devices(AMD_GPU_RESOURCE)
        assert [device.numa_node for device in devices] == [0, 0, 0, 0, 1, 1, 1, 1]
        assert devices[0].id == "0000:05:00.0"
        answer = (await node.kubelet.admit("pod", "main", {AMD_GPU_RESOURCE: 2}))[AMD_GPU_RESOURCE]
        assert [(one.container_path, one.host_path, one.permissions) for one in answer.devices] == [
            (path, f"{node.root}{path}", "rw") for path in drm(0, 8)
        ]
        assert (answer.envs, answer.mounts, answer.cdi_devices) == ({}, (), ())
        assert await agent.end() == 0
        assert "Traceback" not in agent.log


@pytest.mark.parametrize("fault", ["lost", "hang", "ecc"])
async def test_a_fault_takes_one_gpu_and_it_comes_back_without_a_restart(node, fault: str) -> None:
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, 8)
        operate.inject(node.root, fault, gpu=3)
        await healthy(node, 7)
        sick = [device.id for device in node.kubelet.devices(AMD_GPU_RESOURCE) if not device.healthy]
        assert sick == ["0000:65:00.0"]
        operate.clear(node.root)
        await healthy(node, 8)
        await agent.end()


async def test_garbage_is_told_on_the_status_page_and_nothing_is_withdrawn(node) -> None:
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, 8)
        operate.inject(node.root, "garbage", gpu=5)
        async with asyncio.timeout(SECONDS):
            while "can't be read or understood" not in (await agent.page("/statusz"))[1]:  # noqa: ASYNC110 - a page
                await asyncio.sleep(0.05)
        assert sum(device.healthy for device in node.kubelet.devices(AMD_GPU_RESOURCE)) == 8
        await agent.end()


async def test_a_driver_that_is_unloaded_makes_all_unhealthy_until_it_is_back(node) -> None:
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, 8)
        amd.unload(node.root)
        await healthy(node, 0)
        await agent.logged("the driver amdgpu is not loaded")
        amd.load(node.root)
        await healthy(node, 8)
        await agent.end()


async def test_partitions_have_one_name_by_single_and_one_for_each_mode_by_mixed(node) -> None:
    amd.set_partition(node.root, range(8), "cpx", "nps4")
    async with node.kubelet:
        async with node.agent(roles="deviceplugin") as agent:
            await node.offered(64, AMD_GPU_RESOURCE)
            answer = await node.kubelet.admit("eight", "main", {AMD_GPU_RESOURCE: 8})
            assert [one.container_path for one in answer[AMD_GPU_RESOURCE].devices] == drm(*range(8))
            await agent.end()
        node.kubelet.release("eight")
        async with node.agent(*MIXED, roles="deviceplugin") as agent:
            await node.offered(64, "amd.com/cpx_nps4")
            await node.kubelet.wait_for(lambda: not node.kubelet.allocatable().get(AMD_GPU_RESOURCE), seconds=SECONDS)
            await agent.end()


async def test_a_mode_that_changes_under_a_running_plugin_changes_what_is_offered(node) -> None:
    async with node.kubelet, node.agent(*MIXED, roles="deviceplugin") as agent:
        await node.offered(8, "amd.com/spx_nps1")
        await node.kubelet.admit("pod", "main", {"amd.com/spx_nps1": 1})
        amd.set_partition(node.root, [6, 7], "dpx")
        await node.offered(4, "amd.com/dpx_nps1")
        await node.offered(6, "amd.com/spx_nps1")
        answer = (await node.kubelet.admit("half", "main", {"amd.com/dpx_nps1": 1}))["amd.com/dpx_nps1"]
        assert [one.container_path for one in answer.devices] == drm(48)
        assert node.kubelet.held()["pod", "main"]["amd.com/spx_nps1"] == ("0000:05:00.0",)
        await agent.end()


async def test_single_with_several_modes_offers_the_most_frequent_and_tells_of_the_rest(node) -> None:
    amd.set_partition(node.root, [6], "dpx")
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await node.offered(7, AMD_GPU_RESOURCE)
        await agent.logged("Partitions of different styles")
        await agent.end()


async def test_with_cdi_the_spec_has_nodes_and_no_hook(node, tmp_path) -> None:
    amd.set_partition(node.root, [0], "qpx")
    words = ("--device-list-strategy", "cdi-cri", "--cdi-dir", str(tmp_path), "--driver-root", str(node.root), *MIXED)
    async with node.kubelet, node.agent(*words, roles="deviceplugin") as agent:
        await node.offered(4, "amd.com/qpx_nps1")
        await node.offered(7, "amd.com/spx_nps1")
        answer = (await node.kubelet.admit("pod", "main", {"amd.com/qpx_nps1": 2}))["amd.com/qpx_nps1"]
        assert answer.cdi_devices == (f"{CDI}=0000:05:00.0", f"{CDI}=amdgpu_xcp_0")
        assert answer.devices == ()
        spec = json.loads((tmp_path / "k8s.device-plugin.amd.com-gpu.json").read_text())
        assert len(spec["devices"]) == 11
        edits = next(row for row in spec["devices"] if row["name"] == "amdgpu_xcp_0")["containerEdits"]
        assert set(edits) == {"deviceNodes"}
        assert [(row["path"], row["hostPath"]) for row in edits["deviceNodes"]] == [
            (path, f"{node.root}{path}") for path in ("/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD129")
        ]
        assert "hooks" not in json.dumps(spec)
        await agent.end()


async def test_without_the_kfd_it_waits_and_says_why(node) -> None:
    hidden = node.root / "sys/class/kfd.gone"
    (node.root / "sys/class/kfd").rename(hidden)
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await agent.ready(
            "[-]deviceplugin waiting: the driver can't be read: the driver amdgpu is loaded without the KFD"
        )
        hidden.rename(node.root / "sys/class/kfd")
        await node.offered(8, AMD_GPU_RESOURCE)
        await agent.end()
