"""``kgpu agent --roles deviceplugin`` on simulated nodes with Intel GPUs: what a kubelet gets of them."""

from __future__ import annotations

from kgpu.hw.simulator import operate
from tests.agent.test_end_to_end import SECONDS, Node

XE, I915 = "gpu.intel.com/xe", "gpu.intel.com/i915"


async def test_a_gpu_of_xe_is_shared_by_a_number_and_given_with_its_nodes(tmp_path_factory, sim_root) -> None:
    node = Node(tmp_path_factory.mktemp("node"), sim_root("arc"))
    async with node.kubelet, node.agent("--shared-dev-num", "10", roles="deviceplugin") as agent:
        await node.offered(20, XE)
        assert node.sockets() == ["gpu.intel.com_xe.sock", "kubelet.sock"]
        answer = (await node.kubelet.admit("pod", "main", {XE: 1}))[XE]
        assert [(one.container_path, one.permissions) for one in answer.devices] == [
            ("/dev/dri/card0", "rw"), ("/dev/dri/renderD128", "rw"),
        ]  # fmt: skip
        assert (answer.envs, answer.mounts) == ({}, ())
        await agent.end()


async def test_a_gpu_of_i915_is_withdrawn_while_it_is_lost_and_denied_by_its_id(tmp_path_factory, sim_root) -> None:
    node = Node(tmp_path_factory.mktemp("node"), sim_root("max1550"))

    async def healthy(count: int) -> None:
        await node.kubelet.wait_for(
            lambda: sum(device.healthy for device in node.kubelet.devices(I915)) == count, seconds=SECONDS
        )

    async with node.kubelet:
        async with node.agent(roles="deviceplugin") as agent:
            await healthy(8)
            operate.inject(node.root, "lost", gpu=5)
            await healthy(7)
            operate.clear(node.root)
            await healthy(8)
            await agent.end()
        async with node.agent("--deny-ids", "0x0bd5", roles="deviceplugin") as agent:
            await agent.logged("is left out by --allow-ids or --deny-ids")
            await agent.end()


async def test_a_monitor_gets_every_gpu_without_taking_one(tmp_path_factory, sim_root) -> None:
    node = Node(tmp_path_factory.mktemp("node"), sim_root("arc"))
    words = ("--enable-monitoring", "--monitoring-mode", "split", "--allocation-policy", "packed")
    async with node.kubelet, node.agent(*words, roles="deviceplugin") as agent:
        await node.offered(1, "gpu.intel.com/xe_monitoring")
        answer = (await node.kubelet.admit("watch", "main", {"gpu.intel.com/xe_monitoring": 1}))[
            "gpu.intel.com/xe_monitoring"
        ]
        assert [one.container_path for one in answer.devices] == [
            "/dev/dri/card0", "/dev/dri/renderD128", "/dev/dri/card1", "/dev/dri/renderD129",
        ]  # fmt: skip
        await node.offered(2, XE)
        await agent.end()
