"""The role ``health`` beside the device plugin, as a process on a simulated node: events, kernel log, verdicts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.agent import host
from kgpu.agent.options import AgentOptions
from kgpu.agent.roles import health
from kgpu.formats.gpu_report import GpuReport, ReportedGpu, of_node, report
from kgpu.formats.names import GPUS_HEALTHY_CONDITION, HEALTH_HISTORY
from kgpu.formats.xid.action import Action
from kgpu.health.history import HealthHistory
from kgpu.health.node import HealthOrder
from kgpu.hw.simulator import kernel_log, operate
from kgpu.hw.verdicts import VerdictFile, verdicts_path
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES
from tests.agent.test_end_to_end import Node

SECONDS = 60.0


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory, sim_root: Callable[..., Path]) -> Node:
    return Node(tmp_path_factory.mktemp("node"), sim_root("hgx-h100", gpus=3))


async def until(condition: Callable[[], bool], said: Callable[[], object]) -> None:
    try:
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110 - another process's file
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(said()) from None


async def test_what_the_driver_and_the_log_say_reaches_the_kubelet_and_ends(node: Node) -> None:
    file = VerdictFile(verdicts_path(node.folder, {}))

    def causes() -> list[tuple[str, ...]]:
        found = file.read()
        return [one.causes for one in found.gpus] if found else []

    async with (
        node.kubelet,
        node.agent("--host-root", str(node.folder), roles="deviceplugin,health") as agent,
    ):
        await node.offered(3)
        await until(lambda: causes() == [(), (), ()], causes)
        # The driver's event, the log's line and the driver's own verdict are one trouble.
        operate.inject(node.root, "xid", gpu=1, xid=95)
        await until(lambda: {"xid:95", "recovery-action:recovery"} <= set(causes()[1]), causes)
        await node.offered(2)
        # What only the log says, and an error of a program.
        pci = [gpu["pci_bus_id"] for gpu in operate.snapshot(node.root)["gpus"]]
        kernel_log.xid(node.root, pci[2], 119, "Timeout after 6s of waiting for RPC response from GPU2 GSP!")
        kernel_log.xid(node.root, pci[0], 13, "Graphics Exception")
        await until(lambda: causes()[2] == ("xid:119",), causes)
        await node.offered(1)
        assert causes()[0] == ()
        assert "2 of 3 GPUs unhealthy" in await agent.ready("[+]health running")
        operate.clear(node.root)
        await node.offered(2)
        # Nothing but the log has ever said a word of it: so a person does.
        HealthHistory(node.state / HEALTH_HISTORY).put(HealthOrder(kind="healthy", gpu="2", at=time.time()))
        await node.offered(3)
        await until(lambda: causes() == [(), (), ()], causes)
        await agent.end()
    xids = [(one.name, one.text) for one in HealthHistory(node.state / HEALTH_HISTORY).notes() if one.kind == "xid"]
    assert sorted(xids) == [
        ("Xid 119", "Timeout after 6s of waiting for RPC response from GPU2 GSP!"),
        ("Xid 13", "Graphics Exception"),
        ("Xid 95", "Uncontained memory error"),
    ]


OPTIONS = AgentOptions(node_name="n1", kubeconfig="x", env={})


async def test_the_condition_and_the_file_go_when_the_role_is_switched_off(tmp_path: Path) -> None:
    api = FakeApi()
    await api.create(NODES, {"metadata": {"name": "n1"}})
    options = replace(OPTIONS, host_root=tmp_path)
    host.verdicts(options).write(())
    writer = health._Reports(lambda: api, options)
    ill = ReportedGpu(
        uuid="GPU-1", index=1, action=Action.RESET_GPU, reason="GPUNeedsReset", what="Xid 95", facts=("xid:95",)
    )

    async def shown() -> list[dict[str, str]]:
        node = await api.get(NODES, "n1")
        assert node is not None
        rows = node.get("status", {}).get("conditions", [])
        return [row for row in rows if row["type"] == GPUS_HEALTHY_CONDITION]

    async def reported() -> GpuReport | None:
        node = await api.get(NODES, "n1")
        assert node is not None
        return of_node(node["metadata"].get("annotations") or {})

    await writer.write(report([ill], count=1))
    assert [(row["status"], row["reason"], row["message"]) for row in await shown()] == [
        ("False", "GPUNeedsReset", "GPU 1 (GPU-1): Xid 95")
    ]
    found = await reported()
    assert found is not None
    assert found.gpus[0].xids == (95,)
    await health._withdraw(api, options)
    assert await shown() == []
    assert await reported() is None
    assert host.verdicts(options).read() is None


def test_where_the_kernel_log_is(tmp_path: Path, sim_root: Callable[..., Path]) -> None:
    root = sim_root("l4", gpus=1)
    assert host.kernel_log(replace(OPTIONS, host_root=Path("/host"))) == Path("/host/dev/kmsg")
    assert host.kernel_log(replace(OPTIONS, root=tmp_path)) == Path("/dev/kmsg")
    assert host.kernel_log(replace(OPTIONS, root=root)) == root / "dev/kmsg"
    assert host.kernel_log(replace(OPTIONS, env={"KGPU_KERNEL_LOG": "/x"})) == Path("/x")
    assert host.kernel_log(replace(OPTIONS, env={"KGPU_KERNEL_LOG": ""})) is None
