"""Validator, toolkit and device plugin as processes on a simulated node, with the plugin behind the gate."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kgpu.formats.names import GPU_RESOURCE
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.mig import partition
from kgpu.kubelet.fake import FakeKubelet
from kgpu.validator.files import Folder
from kgpu.validator.model import Check, Status

SECONDS = 100.0


class Node:
    """A node's folders, its kubelet, and agents on it."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.kubelet = FakeKubelet(folder / "kubelet")
        self.results = Folder(folder / "validations")
        self._runs = 0

    @contextlib.asynccontextmanager
    async def agent(self, roles: str, *words: str):
        self._runs += 1
        log = self.folder / f"log{self._runs}"
        env = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "NODE", "KGPU"))}
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kgpu", "agent", "--roles", roles, "--root", str(self.root),
                "--kubelet-socket", str(self.kubelet.socket), "--state-dir", str(self.folder / "state"),
                "--cdi-dir", str(self.folder / "cdi"), "--wait-for-validation", str(self.results.path), *words,
                stdin=asyncio.subprocess.DEVNULL, stdout=stream, stderr=stream, env=env,
            )  # fmt: skip
        try:
            yield log
            assert process.returncode is None, log.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()

    async def offered(self, count: int, resource: str = GPU_RESOURCE) -> None:
        await self.kubelet.wait_for(lambda: self.kubelet.allocatable().get(resource, 0) == count, seconds=SECONDS)

    def failed(self, check: Check) -> list[str]:
        """The devices that the check has found ill by now."""
        report = self.results.report()
        result = report.result(check) if report is not None else None
        return [one.uuid for one in result.failed_devices] if result is not None else []

    async def until(self, condition) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110 - another process's files
                await asyncio.sleep(0.02)


@pytest.fixture
def node(tmp_path_factory, sim_root) -> Node:
    return Node(tmp_path_factory.mktemp("node"), sim_root("hgx-h100", gpus=4))


def address(log: Path) -> str:
    """Where the status pages are, "" while that is not in the log, or not all of it."""
    found = re.search(r"status pages at http://([^/\s]+)/", log.read_text())
    return found[1] if found else ""


def page(log: Path, path: str) -> str:
    with urllib.request.urlopen(f"http://{address(log)}{path}", timeout=SECONDS) as answer:
        return answer.read().decode()


async def test_c10_the_plugin_waits_for_the_validator_of_another_process(node) -> None:
    async with node.kubelet, node.agent("deviceplugin", "--health-address", "127.0.0.1:0") as log:
        await node.until(lambda: address(log))
        with pytest.raises(urllib.error.HTTPError) as refused:
            page(log, "/readyz")
        assert "deviceplugin" in refused.value.read().decode()
        assert node.kubelet.allocatable().get(GPU_RESOURCE) is None
        async with node.agent("validator,toolkit"):
            await node.offered(4)


async def test_a_gpu_that_fails_cuda_is_unhealthy_alone_and_recovers(node) -> None:
    operate.set_values(node.root, {"compute-mode": "prohibited"}, gpu=2)
    async with node.kubelet, node.agent("validator,toolkit,deviceplugin"):
        await node.offered(3)
        uuid = operate.snapshot(node.root)["gpus"][2]["uuid"]
        await node.until(lambda: node.failed(Check.CUDA) == [uuid])  # the others may have been proven first
        operate.set_values(node.root, {"compute-mode": "default"}, gpu=2)
        await node.offered(4)
        await node.until(lambda: node.results.report().result(Check.CUDA).status is Status.PASSED)


async def test_mig_devices_are_offered_once_each_is_proven(node) -> None:
    partition(node.root, 0, ["1g.10gb", "1g.10gb"])
    async with node.kubelet, node.agent("validator,toolkit,deviceplugin", "--mig-strategy", "mixed"):
        await node.offered(2, "nvidia.com/mig-1g.10gb")
        assert len(node.results.report().result(Check.CUDA).devices) == 5
        partition(node.root, 0, ["3g.40gb"])
        await node.offered(1, "nvidia.com/mig-3g.40gb")
        assert any("3g.40gb" in one.name for one in node.results.report().result(Check.CUDA).devices)


async def test_a_hung_gpu_keeps_nobody_from_the_others(node) -> None:
    operate.inject(node.root, "hang", gpu=1)
    async with node.kubelet, node.agent("validator,toolkit,deviceplugin"):
        await node.offered(3)
        uuid = operate.snapshot(node.root)["gpus"][1]["uuid"]
        await node.until(lambda: node.failed(Check.DRIVER) == [uuid])


async def test_a_missing_library_keeps_everything_back_and_is_named(node) -> None:
    for path in (node.root / "usr/lib/x86_64-linux-gnu").glob("libcuda*"):
        path.unlink()
    async with node.kubelet, node.agent("validator,toolkit,deviceplugin"):
        await node.until(lambda: "libcuda.so.1 not found" in (node.results.read("driver-not-ready") or b"").decode())
        assert node.kubelet.allocatable().get(GPU_RESOURCE) is None


async def test_metrics_are_among_the_status_pages(node) -> None:
    async with node.kubelet, node.agent("validator,toolkit,node-status", "--health-address", "127.0.0.1:0") as log:
        await node.until(lambda: address(log) and node.results.exists("cuda-ready"))
        lines = ('gpu_operator_node_cuda_ready{node=""} 1', 'gpu_operator_nvidia_pci_devices_total{node=""} 4')
        await node.until(lambda: all(line in page(log, "/metrics") for line in lines))
