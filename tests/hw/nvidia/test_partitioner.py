"""``NvmlPartitioner`` over the simulated driver's C library keeps the port's contract; a hang or a crash is an error."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from kgpu.base.errors import DriverFault, HostError, HwError
from kgpu.hw.nvidia.partitioner import NvmlPartitioner
from kgpu.hw.open import NoHardwareError, open_partitioner
from kgpu.hw.partitioning import PartitionError
from kgpu.hw.simulator import operate, processes
from kgpu.mig.reset import SmiReset
from tests.hw.nvidia.test_contract import runs_no_more
from tests.hw.partitioner_contract import A100, H100, L4, ONE, PartitionerContract, uuid_of

PATIENCE = 60.0
THREE_MODELS = """
title: An A100, an H100 and an L4
machine: {vendor: Supermicro, product: AS-4124GO-NART}
driver: {version: 550.127.08, cuda: "12.4"}
gpus:
  - {model: a100-sxm4-40gb, pci: ["0000:01:00.0"]}
  - {model: h100-sxm5-80gb, pci: ["0000:41:00.0"]}
  - {model: l4, pci: ["0000:81:00.0"]}
topology:
  numa: ["0-31", "32-63"]
  pcie:
    - {numa: 0, gpus: [[0], [1]]}
    - {numa: 1, gpus: [2]}
"""


class SimulatedNode:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.partitioner = NvmlPartitioner(root, SmiReset(str(root)), deadline=PATIENCE, change_deadline=PATIENCE)

    async def hurry(self, seconds: float) -> None:
        """From now on calls have these seconds."""
        await self.partitioner.close()
        self.partitioner = NvmlPartitioner(
            self.root, SmiReset(str(self.root)), deadline=seconds, change_deadline=seconds
        )

    def use(self, index: int, instance: int | None = None):
        processes.add(self.root, index, pid=4242, gi=instance, ci=None if instance is None else 0)
        return partial(processes.remove, self.root, index, 4242)


@pytest.fixture
async def node(sim_root, tmp_path):
    profile = tmp_path / "three.yaml"
    profile.write_text(THREE_MODELS)
    node = SimulatedNode(sim_root(str(profile)))
    yield node
    operate.clear(node.root)
    await node.partitioner.close()


class TestNvmlPartitioner(PartitionerContract):
    pass


async def test_a_gpu_that_hangs_is_told_and_the_others_are_read(node) -> None:
    operate.inject(node.root, "hang", gpu=A100)
    await node.hurry(5.0)
    a100, h100, l4 = await node.partitioner.gpus()
    assert a100.problem is not None
    assert a100.problem.fault is DriverFault.HUNG
    assert (h100.problem, l4.problem, h100.capable, l4.index) == (None, None, True, L4)


async def test_a_step_that_hangs_is_an_error_and_its_child_ends(node) -> None:
    uuid = await uuid_of(node, H100)
    l4 = await uuid_of(node, L4)
    await node.partitioner.set_mode(uuid, True)
    operate.inject(node.root, "hang", gpu=H100)
    await node.hurry(5.0)
    await node.partitioner.gpu(l4)
    pid = node.partitioner.child_pid
    with pytest.raises(PartitionError, match="did not answer") as caught:
        await node.partitioner.create_instance(uuid, ONE, 0)
    assert caught.value.fault is DriverFault.HUNG
    assert node.partitioner.child_pid is None
    runs_no_more(pid)
    operate.clear(node.root)
    await node.hurry(PATIENCE)
    await node.partitioner.create_instance(uuid, ONE, 0)


async def test_a_crash_of_the_library_is_an_error_of_that_step_alone(node) -> None:
    uuid = await uuid_of(node, H100)
    operate.inject(node.root, "hang", gpu=H100)
    step = asyncio.create_task(node.partitioner.set_mode(uuid, True))
    await asyncio.sleep(0)
    os.kill(node.partitioner.child_pid, signal.SIGSEGV)
    with pytest.raises(PartitionError, match="SIGSEGV"):
        await step
    operate.clear(node.root)
    await node.partitioner.set_mode(uuid, True)
    assert (await node.partitioner.gpu(uuid)).enabled


async def test_without_a_driver_it_says_so(node, tmp_path) -> None:
    operate.inject(node.root, "init-error", code="DRIVER_NOT_LOADED")
    with pytest.raises(HwError, match="nvml init failed"):
        await node.partitioner.gpus()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(NoHardwareError, match="no accelerator driver"):
        open_partitioner(driver_root=empty, reset=SmiReset(str(empty)))


async def test_a_reset_is_refused_while_somebody_uses_the_gpu_and_leaves_persistence_mode(node) -> None:
    uuid = await uuid_of(node, A100)
    operate.set_values(node.root, {"persistence": "on"}, gpu=A100)
    node.use(A100)
    with pytest.raises(HostError, match="In use by another client"):
        await node.partitioner.reset(uuid)
    processes.remove(node.root, A100, 4242)
    await node.partitioner.reset(uuid)
    with operate.opened(node.root, writable=False) as state:
        assert state.gpu(A100).persistence == 1


async def test_a_driver_without_nvidia_smi_can_not_reset(tmp_path) -> None:
    with pytest.raises(HostError, match="there is no nvidia-smi"):
        await SmiReset(str(tmp_path))("GPU-1")
