"""``kgpu agent --roles deviceplugin`` on a simulated Gaudi node, without an operator: what a kubelet gets of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from kgpu.formats.names import GAUDI_NETWORK_FILE, GAUDI_RESOURCE
from kgpu.hw.simulator import modules, operate
from tests.agent.test_end_to_end import SECONDS, Node, children_of, eventually

CDI = "k8s.device-plugin.habana.ai/gpu"


@pytest.fixture
async def node(tmp_path_factory, sim_root):
    return Node(tmp_path_factory.mktemp("node"), sim_root("gaudi3"))


def nodes(*numbers: int) -> list[str]:
    return [
        path
        for n in numbers
        for path in (f"/dev/accel/accel{n}", f"/dev/accel/accel_controlD{n}", f"/dev/infiniband/uverbs{n}")
    ]


async def healthy(node: Node, count: int) -> None:
    await node.kubelet.wait_for(
        lambda: sum(device.healthy for device in node.kubelet.devices(GAUDI_RESOURCE)) == count, seconds=SECONDS
    )


async def test_cards_are_offered_by_serial_and_given_with_nodes_and_variables(node) -> None:
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, 8)
        assert node.sockets() == ["habana.ai_gaudi.sock", "kubelet.sock"]
        devices = node.kubelet.devices(GAUDI_RESOURCE)
        assert [device.numa_node for device in devices] == [0, 0, 0, 0, 1, 1, 1, 1]
        assert all(device.id.startswith("AN") for device in devices)
        answer = (await node.kubelet.admit("pod", "main", {GAUDI_RESOURCE: 2}))[GAUDI_RESOURCE]
        assert [(one.container_path, one.host_path, one.permissions) for one in answer.devices] == [
            (path, f"{node.root}{path}", "rw") for path in nodes(0, 1)
        ]
        assert answer.envs == {
            "HABANA_VISIBLE_DEVICES": "0,1",
            "HL_VISIBLE_DEVICES": "/dev/accel/accel0,/dev/accel/accel1",
            "HL_VISIBLE_DEVICES_UUID": ",".join(device.id for device in devices[:2]),
            "HABANA_VISIBLE_MODULES": "0,1",
        }
        assert (answer.mounts, answer.cdi_devices) == ((), ())
        node.kubelet.release("pod")
        whole = (await node.kubelet.admit("all", "main", {GAUDI_RESOURCE: 8}))[GAUDI_RESOURCE]
        assert "HABANA_VISIBLE_MODULES" not in whole.envs
        assert sorted(one.container_path for one in whole.devices) == sorted(nodes(*range(8)))
        assert await agent.end() == 0
        assert "Traceback" not in agent.log


@pytest.mark.parametrize("strategy", ["envvar", "cdi-cri"])
async def test_the_networks_file_is_mounted_where_the_host_has_one(node, tmp_path, strategy: str) -> None:
    file = node.root / GAUDI_NETWORK_FILE.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text('{"NIC_NET_CONFIG": []}')
    words = ("--device-list-strategy", strategy, "--cdi-dir", str(tmp_path), "--driver-root", str(node.root))
    async with node.kubelet, node.agent(*words, roles="deviceplugin") as agent:
        await healthy(node, 8)
        answer = (await node.kubelet.admit("pod", "main", {GAUDI_RESOURCE: 1}))[GAUDI_RESOURCE]
        if strategy == "envvar":
            mounts = [(one.container_path, one.host_path, one.read_only) for one in answer.mounts]
            assert mounts == [(GAUDI_NETWORK_FILE, str(file), True)]
        else:
            spec = json.loads(await asyncio.to_thread(Path(tmp_path, "k8s.device-plugin.habana.ai-gpu.json").read_text))
            (mount,) = spec["containerEdits"]["mounts"]
            assert (mount["containerPath"], mount["hostPath"]) == (GAUDI_NETWORK_FILE, str(file))
            assert "ro" in mount["options"]
            assert answer.mounts == ()
        await agent.end()


@pytest.mark.parametrize("fault", ["ecc", "needs-reset"])
async def test_a_fault_takes_one_card_and_it_comes_back_without_a_restart(node, fault: str) -> None:
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, 8)
        ids = [device.id for device in node.kubelet.devices(GAUDI_RESOURCE)]
        operate.inject(node.root, fault, gpu=3)
        await healthy(node, 7)
        sick = [device.id for device in node.kubelet.devices(GAUDI_RESOURCE) if not device.healthy]
        assert sick == [ids[3]]
        operate.clear(node.root)
        await healthy(node, 8)
        await agent.end()


async def test_a_driver_that_is_unloaded_makes_all_unhealthy_until_it_is_back(node) -> None:
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, 8)
        modules.unload(node.root)
        await healthy(node, 0)
        await agent.logged("the driver habanalabs is not loaded")
        modules.load(node.root)
        await healthy(node, 8)
        await agent.end()


async def test_pods_get_cards_of_one_numa_node(node) -> None:
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, 8)
        await node.kubelet.admit("one", "main", {GAUDI_RESOURCE: 1})
        answer = (await node.kubelet.admit("four", "main", {GAUDI_RESOURCE: 4}))[GAUDI_RESOURCE]
        assert [one.container_path for one in answer.devices] == nodes(4, 5, 6, 7)
        await agent.end()


async def test_with_cdi_the_spec_has_nodes_and_no_hook_and_the_variables_still_come(node, tmp_path) -> None:
    words = ("--device-list-strategy", "cdi-cri", "--cdi-dir", str(tmp_path), "--driver-root", str(node.root))
    async with node.kubelet, node.agent(*words, roles="deviceplugin") as agent:
        await healthy(node, 8)
        serial = node.kubelet.devices(GAUDI_RESOURCE)[0].id
        answer = (await node.kubelet.admit("pod", "main", {GAUDI_RESOURCE: 1}))[GAUDI_RESOURCE]
        assert answer.cdi_devices == (f"{CDI}={serial}",)
        assert answer.devices == ()
        assert answer.envs["HABANA_VISIBLE_DEVICES"] == "0"
        spec = json.loads(await asyncio.to_thread(Path(tmp_path, "k8s.device-plugin.habana.ai-gpu.json").read_text))
        edits = next(row for row in spec["devices"] if row["name"] == serial)["containerEdits"]
        assert set(edits) == {"deviceNodes"}
        assert [row["path"] for row in edits["deviceNodes"]] == nodes(0)
        assert "hooks" not in json.dumps(spec)
        await agent.end()


async def test_the_librarys_process_ends_with_an_agent_that_is_killed_also_in_a_call_that_hangs(node) -> None:
    async with node.kubelet, node.agent(roles="deviceplugin") as agent:
        await healthy(node, 8)
        (child,) = map(int, children_of(agent.process.pid))
        os.kill(child, signal.SIGSTOP)  # it answers as little as one whose call hangs
        await agent.end(signal.SIGKILL)
        await eventually(lambda: not Path(f"/proc/{child}").exists())
