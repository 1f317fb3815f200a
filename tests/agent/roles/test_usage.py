"""The role ``usage`` on a simulated node: it serves what it counts, and lets go of everything when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kgpu.agent.options import AgentOptions
from kgpu.agent.roles import choose_roles
from kgpu.agent.run import Agent
from kgpu.base.clock import SystemClock
from kgpu.base.waits import within
from kgpu.formats.names import ENV_LAB_POD_ADDRESS, ENV_METRICS_PORT, ENV_USAGE_LABELS
from kgpu.formats.usage_now import LINES_PATH, NOW_PATH
from kgpu.kube.wire import Wire, WireError
from kgpu.kubelet.fake import FakeKubelet
from tests.ports import free_port


async def page(port: int, path: str) -> str:
    import ssl

    wire = Wire(f"http://127.0.0.1:{port}", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    try:
        return (await wire.request("GET", path, {"Connection": "close"}, b"", limit=1 << 20)).text
    except WireError:
        return ""
    finally:
        await wire.close()


@pytest.mark.timeout(200)
async def test_it_serves_what_it_counts(sim_root: Callable[..., Path], tmp_path: Path) -> None:
    port = free_port()
    env = {ENV_METRICS_PORT: str(port), ENV_LAB_POD_ADDRESS: "127.0.0.1", ENV_USAGE_LABELS: "team, app ,"}
    async with FakeKubelet(tmp_path / "device-plugins") as kubelet:
        options = AgentOptions(
            root=sim_root("l4", gpus=1),
            node_name="n1",
            env=env,
            state_dir=tmp_path / "state",
            kubelet_socket=kubelet.socket,
        )
        agent = Agent(options, choose_roles(["usage"]))
        task = asyncio.create_task(agent.run())

        async def first_look() -> str:
            while "kgpu_gpu_state{" not in (text := await page(port, "/metrics")):
                assert not task.done()
                await asyncio.sleep(0.05)
            return text

        try:
            text = await within(150.0, first_look(), clock=SystemClock())
            # What `kgpu usage --prometheus` reads, on the page that a Prometheus scrapes.
            told = {
                family.name: [sample.labels for sample in family.samples]
                for family in text_string_to_metric_families(text)
            }
            (device,), (uptime,) = told["kgpu_usage_device_info"], told["kgpu_usage_uptime_seconds"]
            assert (device["node"], device["product"], device["boot"]) == ("n1", "NVIDIA-L4", uptime["boot"])
            now = json.loads(await page(port, NOW_PATH))
            assert (now["node"], now["devices"][0]["product"]) == ("n1", "NVIDIA-L4")
            about = json.loads((await page(port, LINES_PATH)).split("\n")[0])
            assert about["labels"] == ["team", "app"]
        finally:
            agent.stop.set()
            assert await task == ()
    assert (tmp_path / "state" / "usage.sqlite").exists()
