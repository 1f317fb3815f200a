"""What happens to Gaudi accelerators and Intel GPUs under a running plugin: one card at most is withdrawn, and all come back."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.formats.names import GAUDI_RESOURCE, INTEL_GPU_RESOURCE, INTEL_XE_RESOURCE
from kgpu.hw.simulator import modules, operate
from tests.agent.test_end_to_end import SECONDS, Node

CARDS = (("gaudi3", GAUDI_RESOURCE, 8), ("max1550", INTEL_GPU_RESOURCE, 8), ("arc", INTEL_XE_RESOURCE, 2))


@pytest.fixture(params=CARDS, ids=lambda row: row[0])
def cards(request, tmp_path_factory, sim_root):
    profile, resource, count = request.param
    return Node(tmp_path_factory.mktemp("node"), sim_root(profile)), resource, count


async def healthy(node: Node, resource: str, count: int) -> None:
    await node.kubelet.wait_for(
        lambda: sum(device.healthy for device in node.kubelet.devices(resource)) == count, seconds=SECONDS
    )


@pytest.mark.parametrize("fault", ["lost", "hang"])
async def test_one_is_withdrawn_alone_and_comes_back(cards, fault: str) -> None:
    node, resource, count = cards
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, resource, count)
        operate.inject(node.root, fault, gpu=1)
        await healthy(node, resource, count - 1)
        operate.clear(node.root)
        await healthy(node, resource, count)
        await agent.end()


async def test_garbage_is_told_on_the_status_page_and_nothing_is_withdrawn(cards) -> None:
    node, resource, count = cards
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, resource, count)
        operate.inject(node.root, "garbage", gpu=1)
        async with asyncio.timeout(SECONDS):
            while "can't be read or understood" not in (await agent.page("/statusz"))[1]:  # noqa: ASYNC110 - a page
                await asyncio.sleep(0.05)
        await healthy(node, resource, count)
        await agent.end()


async def test_a_driver_that_is_unloaded_makes_all_unhealthy_until_it_is_back(cards) -> None:
    node, resource, count = cards
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, resource, count)
        modules.unload(node.root)
        await healthy(node, resource, 0)
        modules.load(node.root)
        await healthy(node, resource, count)
        assert await agent.end() == 0
        assert "Traceback" not in agent.log
