"""Who has a GPU open is named where the driver refuses a step because of that, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.hw.fake_partitioner import WITHOUT_MIG, FakePartitioner
from kgpu.hw.partitioning import PartitionError
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.create import environment
from kgpu.mig.gpu_users import NamingPartitioner, gpu_users, open_driver
from tests.child import child
from tests.hw.partitioner_contract import H100, ONE, PartitionerContract

CONTEXT = (
    "import ctypes,sys; c=ctypes.CDLL('libcuda.so.1'); x=ctypes.c_void_p(); c.cuInit(0);"
    "assert c.cuCtxCreate_v2(ctypes.byref(x),0,0)==0; print(flush=True); sys.stdin.read()"
)
WATCHER = (
    "import ctypes,sys; assert ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2()==0; print(flush=True); sys.stdin.read()"
)
DCGM = "nv-hostengine (pid 7)"


class NamedNode:
    """GPUs of a fake driver; ``users`` have each of them open, and ``asked`` are those that were looked at."""

    def __init__(self, *users: str) -> None:
        self.users, self.asked = users, list[str]()
        self.driver = FakePartitioner("a100-40gb", "h100-80gb", WITHOUT_MIG)
        self.partitioner = NamingPartitioner(self.driver, self.look)
        self.a100, self.h100, self.l4 = self.driver.state

    def look(self, uuid: str) -> tuple[str, ...]:
        self.asked.append(uuid)
        return self.users

    def use(self, index: int, instance: int | None = None) -> Callable[[], None]:
        self.driver.use(index, instance)
        return partial(self.driver.use, index, instance, used=False)


@pytest.fixture
async def node() -> NamedNode:
    return NamedNode()


class TestNamingPartitioner(PartitionerContract):
    pass


async def test_every_step_that_is_refused_for_its_users_names_them() -> None:
    node = NamedNode(DCGM)
    node.use(H100)
    with pytest.raises(
        PartitionError, match=r"In use by another client.*; it is open in nv-hostengine \(pid 7\)\n"
    ) as refused:
        await node.partitioner.set_mode(node.h100, True)
    assert all((refused.value.expected, refused.value.remedy))
    node.driver.use(H100, used=False)
    await node.partitioner.set_mode(node.h100, True)
    made = await node.partitioner.create_instance(node.h100, ONE, 0)
    await node.partitioner.create_compute(node.h100, made, ONE, 0)
    node.use(H100, made)
    with pytest.raises(PartitionError, match=r"open in nv-hostengine \(pid 7\)\n"):
        await node.partitioner.destroy(node.h100, made, 0)
    assert node.asked == [node.h100] * 2


async def test_a_reset_is_nvidia_smis_to_refuse_and_names_them_too() -> None:
    node = NamedNode(*(f"p{number} (pid {number})" for number in range(8)))

    def refuse(step: str, _done: bool) -> None:
        if step == "reset":
            raise HostError("nvidia-smi --gpu-reset has failed with 255: In use by another client", "free", "stop it")

    node.driver.meddle = refuse
    with pytest.raises(HostError, match=r"open in p0 \(pid 0\), .*p5 \(pid 5\) and 2 more\n"):
        await node.partitioner.reset(node.a100)


async def test_nobody_is_looked_for_after_another_refusal_and_nothing_said_where_nobody_is_found() -> None:
    node = NamedNode()
    with pytest.raises(PartitionError, match="Not Supported"):
        await node.partitioner.set_mode(node.l4, True)
    assert node.asked == []
    node.use(H100)
    with pytest.raises(PartitionError) as refused:
        await node.partitioner.set_mode(node.h100, True)
    assert "open in" not in refused.value.what
    assert node.asked == [node.h100]


@contextmanager
def program(root: Path, script: str) -> Iterator[int]:
    """A program on the machine's driver that has said that it is ready; its pid."""
    with child(
        [sys.executable, "-c", script], env={**os.environ, **environment(root)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


async def test_a_real_program_is_found_whether_it_works_on_the_gpu_or_only_watches(sim_root) -> None:
    root = Path(sim_root("hgx-h100", gpus=2))
    first, second = (gpu["uuid"] for gpu in operate.snapshot(root)["gpus"])
    driver = open_driver(str(root))
    try:
        with program(root, WATCHER) as watcher, program(root, CONTEXT) as worker:
            assert {f"(pid {pid})" for pid in (watcher, worker)} <= {
                one.split(" ", 1)[1] for one in gpu_users(str(root), first)
            }
            with pytest.raises(PartitionError, match=rf"; it is open in .*\(pid {worker}\)"):
                await driver.set_mode(first, True)
            assert f"(pid {worker})" not in " ".join(gpu_users(str(root), second))
        assert gpu_users(str(root), first) == ()
        await driver.set_mode(first, True)
    finally:
        await driver.close()


def test_a_display_is_named_by_its_kernel_module(sim_root) -> None:
    root = Path(sim_root("dgx-a100-40g", gpus=1))
    (uuid,) = (gpu["uuid"] for gpu in operate.snapshot(root)["gpus"])
    folder = root / "sys/module/nvidia_drm/parameters"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "modeset").write_text("Y\n")
    assert gpu_users(str(root), uuid) == ("the kernel module nvidia_drm with modeset",)
    assert gpu_users(str(root), "GPU-of-another-node") == ("the kernel module nvidia_drm with modeset",)
