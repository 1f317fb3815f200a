"""AMD's partition modes through the driver's files, on a simulated kernel that refuses what the real one does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kgpu.base.errors import HwError
from kgpu.hw.amd.modes import AmdModes
from kgpu.hw.open import NoHardwareError, open_modes
from kgpu.hw.partitioning import ModeGpu, PartitionError
from kgpu.hw.simulator.amd import operate
from kgpu.hw.simulator.amd.kernel import SimulatedAmdKernel

FIRST = "0000:05:00.0"


@pytest.fixture
def root(sim_root) -> Path:
    return sim_root("mi300x")


def modes(root: Path, **more: float) -> AmdModes:
    return AmdModes(root, SimulatedAmdKernel(root), **more)


def shown(gpus: tuple[ModeGpu, ...]) -> list[str]:
    return [f"{gpu.compute}/{gpu.memory}" for gpu in gpus]


async def test_modes_are_read_with_those_that_may_be_set(root) -> None:
    gpus = await modes(root).gpus()
    assert shown(gpus) == ["SPX/NPS1"] * 8
    assert (gpus[0].uuid, gpus[0].product) == (FIRST, "AMD Instinct MI300X OAM")
    assert (gpus[0].computes, gpus[0].memories) == (("SPX", "DPX", "QPX", "CPX"), ("NPS1", "NPS4"))


async def test_a_gpu_that_can_not_be_parted_has_no_modes(sim_root) -> None:
    gpus = await modes(sim_root("mi210")).gpus()
    assert {(gpu.compute, gpu.computes) for gpu in gpus} == {("", ())}


async def test_a_compute_mode_is_in_force_at_once_and_a_memory_mode_with_the_drivers_next_start(root) -> None:
    driver = modes(root)
    await driver.set_compute(FIRST, "DPX")
    assert shown(await driver.gpus())[:2] == ["DPX/NPS1", "SPX/NPS1"]
    SimulatedAmdKernel(root).store(f"{root}/sys/bus/pci/devices/{FIRST}/current_memory_partition", "NPS4")
    assert shown(await driver.gpus())[0] == "DPX/NPS1"
    await driver.set_memory({gpu.uuid: "NPS4" for gpu in await driver.gpus()})
    assert shown(await driver.gpus()) == ["CPX/NPS4"] * 8


async def test_a_reboot_takes_all_modes_back(root) -> None:
    driver = modes(root)
    await driver.set_memory({gpu.uuid: "NPS4" for gpu in await driver.gpus()})
    operate.reboot(root)
    assert shown(await driver.gpus()) == ["SPX/NPS1"] * 8


@pytest.mark.parametrize(
    ("mode", "said"), [("TPX", "the driver refuses it"), ("", "the driver refuses it"), ("CPX", "it is in use")]
)
async def test_what_the_kernel_refuses_is_said_in_three_parts(root, mode: str, said: str) -> None:
    operate.add_process(root, 0, pid=7, memory_mib=100)
    driver = modes(root)
    with pytest.raises(PartitionError, match=said) as refused:
        await driver.set_compute(FIRST, mode)
    assert all((refused.value.expected, refused.value.remedy))
    assert shown(await driver.gpus()) == ["SPX/NPS1"] * 8


async def test_the_driver_is_not_loaded_anew_while_a_program_uses_a_gpu(root) -> None:
    operate.add_process(root, 3, pid=7, memory_mib=100)
    with pytest.raises(HwError, match="in use"):
        await modes(root).set_memory({FIRST: "NPS4"})
    assert shown(await modes(root).gpus()) == ["SPX/NPS1"] * 8


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.EROFS, "privileged"), (errno.EACCES, "root"), (errno.EIO, "dmesg"), (errno.ENOENT, "dmesg")],
)
async def test_every_error_of_a_write_says_what_to_do(root, number: int, said: str) -> None:
    class Refusing(SimulatedAmdKernel):
        def store(self, path: str, text: str) -> None:
            raise OSError(number, os.strerror(number))

    with pytest.raises(PartitionError) as refused:
        await AmdModes(root, Refusing(root)).set_compute(FIRST, "CPX")
    assert said in refused.value.remedy


async def test_a_write_that_hangs_is_an_error_and_other_gpus_go_on(root) -> None:
    operate.inject(root, "hang", gpu=0)
    driver = modes(root, write_seconds=0.05)
    with pytest.raises(PartitionError, match="did not end in time"):
        await driver.set_compute(FIRST, "CPX")
    with pytest.raises(PartitionError, match="did not end in time"):  # and nothing more is asked of it
        await driver.set_compute(FIRST, "CPX")
    second = (await driver.gpus())[1].uuid
    patient = modes(root)
    await patient.set_compute(second, "CPX")
    assert shown(await driver.gpus())[1] == "CPX/NPS1"
    operate.clear(root)


async def test_garbage_is_the_problem_of_one_gpu(root) -> None:
    operate.inject(root, "garbage", gpu=2)
    gpus = await modes(root).gpus()
    assert [gpu.index for gpu in gpus if gpu.problem is not None] == [2]
    assert "no driver writes" in str(gpus[2].problem)


async def test_without_the_driver_there_is_nothing_to_open(root) -> None:
    operate.unload(root)
    with pytest.raises(NoHardwareError):
        open_modes(driver_root=root, kernel=SimulatedAmdKernel(root))
    with pytest.raises(HwError, match="shows no GPUs"):
        await modes(root).gpus()
