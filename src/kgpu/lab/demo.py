"""A tour of kgpu on one simulated node without a cluster: real agent, real sockets, real C libraries.

Everything lives in one temporary folder and ends with the tour. Each step is told with the command that a person would
type, and what it shows is what was measured, so that a step which does not hold ends the tour with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.errors import LabError
from kgpu.formats.names import ENV_VISIBLE_DEVICES, GPU_RESOURCE
from kgpu.hw.fake import create, operate
from kgpu.kubelet.fake import FakeKubelet

BROKEN_GPU: Final = 3
DEADLINE_S: Final = 45.0
REPAIR_S: Final = 2.0


class Teller(Protocol):
    """Tells the story."""

    def step(self, title: str) -> None:
        """A new step begins."""
        ...

    def command(self, line: str) -> None:
        """What a person would type."""
        ...

    def shows(self, text: str) -> None:
        """What that printed, or what was observed."""
        ...


@dataclass(slots=True)
class Node:
    """The simulated node: its driver root, its kubelet, and the folder of both."""

    folder: Path
    root: Path
    kubelet: FakeKubelet

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to find this node's driver."""
        return {**os.environ, **create.environment(self.root)}

    @property
    def counts(self) -> str:
        """``8 of 8`` allocatable of capacity."""
        return f"{self.kubelet.allocatable().get(GPU_RESOURCE, 0)} of {self.kubelet.capacity().get(GPU_RESOURCE, 0)}"


async def tour(teller: Teller, profile: str = "hgx-h100") -> None:
    """Walk through it. Raises UserError when a step does not show what it must."""
    with tempfile.TemporaryDirectory(prefix="kgpu-demo-") as name:
        folder = Path(name)
        teller.step(f"A node with simulated GPUs ({profile})")
        teller.command(f"kgpu lab hw create {profile} --root node")
        node = Node(folder, create.create_root(profile, folder / "node"), FakeKubelet(folder / "kubelet"))
        teller.command("nvidia-smi -L")
        teller.shows(await _output(node, str(node.root / "usr/bin/nvidia-smi"), "-L"))
        await _labels(teller, node)
        async with node.kubelet, _agent(teller, node):
            await _allocate(teller, node)
            await _break_and_repair(teller, node)


async def _labels(teller: Teller, node: Node) -> None:
    teller.step("What the node is, as labels for the scheduler")
    teller.command("kgpu labels --root node | grep -E 'product|count|memory|capable|driver-version.full'")
    lines = (await _output(node, sys.executable, "-m", "kgpu", "labels", "--root", str(node.root))).splitlines()
    wanted = ("gpu.product=", "gpu.count=", "gpu.memory=", "mig.capable=", "cuda.driver-version.full=")
    teller.shows("\n".join(line for line in lines if line.partition("/")[2].startswith(wanted)))


@contextlib.asynccontextmanager
async def _agent(teller: Teller, node: Node) -> AsyncIterator[None]:
    teller.step("The agent offers the GPUs to the kubelet (here: a stand-in that speaks the same gRPC)")
    teller.command("kgpu agent --roles deviceplugin --root node")
    log = (node.folder / "agent.log").open("wb")
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kgpu", "agent", "--roles", "deviceplugin", "--root", str(node.root),
        "--kubelet-socket", str(node.kubelet.socket), "--state-dir", str(node.folder / "agent"),
        "--cdi-dir", str(node.folder / "cdi"), env=node.environment, stdout=log, stderr=log,
    )  # fmt: skip
    try:
        total = len(operate.snapshot(node.root)["gpus"])
        await _until(node, total, "the agent did not offer every GPU")
        teller.shows(f"{GPU_RESOURCE}: {node.counts} allocatable")
        yield
    finally:
        if agent.returncode is None:
            agent.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await agent.wait()
            except TimeoutError:
                agent.kill()
                await agent.wait()
        log.close()


async def _allocate(teller: Teller, node: Node) -> None:
    teller.step("A pod asks for two GPUs and computes on them")
    answer = (await node.kubelet.admit("two-gpus", "cuda", {GPU_RESOURCE: 2}))[GPU_RESOURCE]
    devices = answer.envs[ENV_VISIBLE_DEVICES]
    teller.shows(f"Allocate answered {ENV_VISIBLE_DEVICES}={devices}")
    teller.command("./vectoradd    # a CUDA program, its kernel runs on the simulated GPUs")
    # A container runtime would make only these devices' nodes; without one, CUDA's own variable narrows the view.
    extra = {"CUDA_VISIBLE_DEVICES": devices}
    text = await _output(node, str(node.root / "usr/share/kgpu/vectoradd"), extra=extra)
    if "Test PASSED" not in text:
        raise LabError(f"the CUDA program printed:\n{text}", "Test PASSED", "report this as a bug of kgpu")
    teller.shows("\n".join(line for line in text.splitlines() if line.startswith(("Device", "Test"))))


async def _break_and_repair(teller: Teller, node: Node) -> None:
    total = node.kubelet.capacity()[GPU_RESOURCE]
    teller.step(f"GPU {BROKEN_GPU} falls off the bus (Xid 79)")
    teller.command(f"kgpu lab hw inject --root node xid 79 --gpu {BROKEN_GPU}")
    operate.inject(node.root, "xid", gpu=BROKEN_GPU, xid=79)
    await _until(node, total - 1, "the kubelet was not told of the lost GPU")
    teller.shows(f"{GPU_RESOURCE}: {node.counts} allocatable; the pod keeps its GPUs")
    # The agent confirms an Xid by looking at the GPU; one that is healed before it looked is kept back for 30 s.
    await asyncio.sleep(REPAIR_S)
    teller.step("It is repaired; nothing was restarted")
    teller.command("kgpu lab hw clear --root node")
    operate.clear(node.root)
    await _until(node, total, "the kubelet was not told that the GPU is well again")
    teller.shows(f"{GPU_RESOURCE}: {node.counts} allocatable")


async def _until(node: Node, allocatable: int, failure: str) -> None:
    try:
        await node.kubelet.wait_for(
            lambda: node.kubelet.allocatable().get(GPU_RESOURCE) == allocatable, seconds=DEADLINE_S
        )
    except TimeoutError as error:
        lines = (node.folder / "agent.log").read_text(errors="replace").splitlines()[-10:]
        raise LabError(
            f"{failure}: {node.counts} allocatable after {DEADLINE_S:.0f} s; the agent said last:\n    "
            + "\n    ".join(lines),
            f"{allocatable} allocatable",
            "report this as a bug of kgpu, with these lines",
        ) from error


async def _output(node: Node, *command: str, extra: Mapping[str, str] | None = None) -> str:
    """What the command prints; LabError when it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**node.environment, **(extra or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    text = out.decode(errors="replace").rstrip()
    if process.returncode != 0:
        raise LabError(
            f"{Path(command[0]).name} ended with exit code {process.returncode}:\n{text}",
            "exit code 0",
            "report this as a bug of kgpu",
        )
    return text
