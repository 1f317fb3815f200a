"""From a label to partition modes on a simulated MI300X, with the operator and without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.base.advice import Severity
from kgpu.base.errors import KubeletError
from kgpu.formats import names
from kgpu.formats.node_order import ChangeResult, OrderStep
from kgpu.hw.simulator.amd import operate
from kgpu.mig.manager import run as run_module
from tests.mig.modes.modes_world import ModesWorld

WHOLE = ["SPX/NPS1"] * 2
MINE = {"gpu-config-profiles": {"mine": {
    "skippedGPUs": {"ids": [1]},
    "profiles": [{"computePartition": "CPX", "memoryPartition": "NPS1", "numGPUsAssigned": 1}],
}}}  # fmt: skip


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "RETRY_SECONDS", 0.05)


@pytest.fixture
def root(sim_root) -> Path:
    return sim_root("mi300x", gpus=2)


async def test_a_label_becomes_modes_by_the_operators_hand_and_back(tmp_path: Path, root: Path) -> None:
    world = ModesWorld(tmp_path, root)
    async with world.running():
        world.label("cpx_nps4_all")
        await world.said("pending", "PartitionRequested")
        asked = await world.until(lambda: world.request)
        assert asked.release
        assert [row.devices for row in asked.layouts] == [{"cpx_nps4": 1}] * 2
        assert world.modes == WHOLE
        assert await world.operated() == ChangeResult(done=True)
        await world.said("success", "PartitionApplied")
        assert world.modes == ["CPX/NPS4"] * 2
        assert world.request is None
        world.label("default")
        assert await world.operated("act-2") == ChangeResult(done=True)
        await world.said("success", "PartitionApplied")
    assert world.modes == WHOLE
    assert world.reasons()[-1] == "PartitionApplied"
    assert {row["manager"] for row in world.node["metadata"]["managedFields"]} == {names.AMD_PROFILE_FIELD_MANAGER}


async def test_a_compute_mode_asks_for_the_gpus_that_change_alone(tmp_path: Path, root: Path) -> None:
    world = ModesWorld(tmp_path, root)
    async with world.running():
        world.label("heterogeneous_example")
        asked = await world.until(lambda: world.request)
        assert (len(asked.layouts), asked.release) == (1, False)
        assert (await world.operated()).done
        await world.said("success")
    assert world.modes == ["CPX/NPS1", "SPX/NPS1"]


async def test_a_users_file_counts_in_place_of_the_defaults_and_is_followed(tmp_path: Path, root: Path) -> None:
    world = ModesWorld(tmp_path, root, operations=False, profiles=MINE)
    async with world.running():
        world.label("cpx_nps1_all")
        report = await world.said("failed", "PartitionConfigRefused")
        assert "one of mine" in report.message.replace("expected: ", "")
        world.label("mine")
        await world.said("success")
        assert world.modes == ["CPX/NPS1", "SPX/NPS1"]
        world.config.unlink()
        world.source.reload()
        world.label("default")
        await world.until(lambda: world.report and world.report.config == "default" and world.state == "success")
    assert world.modes == WHOLE


async def test_alone_gpus_in_use_are_waited_for_and_named(tmp_path: Path, root: Path) -> None:
    world = ModesWorld(tmp_path, root, operations=False)
    world.held = {"0000:05:00.0": ("pod team/train-0",)}
    async with world.running():
        world.label("cpx_nps1_all")
        report = await world.said("failed", "PartitionGpusInUse")
        assert "pod team/train-0" in report.message
        assert world.state == "failure"
        assert world.modes == WHOLE
        world.held = {}
        await world.said("success", "PartitionApplied")
    assert world.modes == ["CPX/NPS1"] * 2


async def test_what_the_kernel_refuses_leaves_all_as_it_was(tmp_path: Path, root: Path) -> None:
    world = ModesWorld(tmp_path, root, operations=False)
    operate.add_process(root, 1, pid=7, memory_mib=10)  # a program that neither the kubelet nor the driver's list names
    async with world.running():
        for profile in ("qpx_nps1_all", "cpx_nps4_all"):
            world.label(profile)
            await world.until(lambda: world.report and world.report.config == profile)  # noqa: B023
            report = await world.said("failed", "PartitionChangeFailed")
            assert "in use" in report.message
            assert (report.config, world.modes) == (profile, WHOLE)


async def test_gpus_that_are_parted_otherwise_meanwhile_are_told_in_one_error(tmp_path: Path, root: Path) -> None:
    world = ModesWorld(tmp_path, root, operations=False)

    def by_hand(step: str, done: bool) -> None:
        if (step, done) == ("current_compute_partition", True):
            operate.set_partition(root, (0, 1), "DPX")

    world.kernel.meddle = by_hand
    async with world.running():
        world.label("qpx_nps1_all")
        report = await world.said("failed", "PartitionChangeFailed")
    assert report.message.count("the driver has taken QPX/NPS1, and is in DPX/NPS1") == 1
    assert "GPU 0 (AMD Instinct MI300X OAM), GPU 1 (AMD Instinct MI300X OAM): the driver" in report.message


@pytest.mark.parametrize(
    ("profile", "reason", "said"),
    [
        ("cpx_nps4", "PartitionConfigRefused", "did you mean"),
        ("dpx_nps2_all", "PartitionLayoutRefused", "NPS1, NPS4"),
    ],
)
async def test_a_bad_profile_changes_nothing(tmp_path: Path, root: Path, profile: str, reason: str, said: str) -> None:
    world = ModesWorld(tmp_path, root)
    async with world.running():
        world.label(profile)
        report = await world.said("failed", reason)
        assert said in report.message
        assert "; to do: " in report.message
    assert (world.modes, world.request, world.reasons()) == (WHOLE, None, [reason])


async def test_garbage_in_sysfs_is_told_and_gone_by_itself(tmp_path: Path, root: Path) -> None:
    world = ModesWorld(tmp_path, root, operations=False)
    operate.inject(root, "garbage", gpu=1)
    async with world.running():
        world.label("cpx_nps1_all")
        report = await world.said("failed", "PartitionDriverUnreadable")
        assert "no driver writes" in report.message
        operate.clear(root)
        await world.said("success")
    assert world.modes == ["CPX/NPS1"] * 2


async def test_other_vendors_and_gpus_without_modes_are_told(tmp_path: Path, root: Path, sim_root) -> None:
    world = ModesWorld(tmp_path, sim_root("mi210", gpus=2), operations=False)
    async with world.running():
        world.label("cpx_nps1_all")
        report = await world.said("failed", "PartitionLayoutRefused")
        assert "can't be parted" in report.message
    operate.unload(root)
    without = ModesWorld(tmp_path / "other", root, operations=False)
    without.vendor = names.NVIDIA
    async with without.running():
        without.label("cpx_nps1_all")
        await without.said("failed", "PartitionVendorUnsupported")


async def test_modes_that_a_reboot_has_taken_are_set_again_and_nobody_gets_the_gpus_before(
    tmp_path: Path, root: Path
) -> None:
    world = ModesWorld(tmp_path, root)
    async with world.running():
        world.label("cpx_nps4_all")
        await world.operated()
        await world.said("success")
    operate.reboot(root)
    world.boot = "boot-2"
    async with world.running():
        await world.until(lambda: len(world.orders.withdrawn) == 2)
        await world.until(lambda: world.request)
        assert (await world.operated("act-2")).done
        await world.said("success")
        assert not world.orders.withdrawn
    assert world.modes == ["CPX/NPS4"] * 2


async def test_modes_that_somebody_sets_by_hand_stay_and_are_told(tmp_path: Path, root: Path) -> None:
    world = ModesWorld(tmp_path, root)
    async with world.running():
        world.label("cpx_nps1_all")
        await world.operated()
        await world.said("success", "PartitionApplied")
        operate.set_partition(root, [1], "dpx")
        world.wake()
        report = await world.said("success", "PartitionChangedByHand")
        assert "GPU 1" in report.message
        assert "DPX/NPS1" in report.message
    assert world.modes[1] == "DPX/NPS1"


async def test_pods_whose_parts_somebody_has_taken_are_named_until_they_are_gone(tmp_path: Path, root: Path) -> None:
    world = ModesWorld(tmp_path, root)
    async with world.running():
        world.label("cpx_nps1_all")
        await world.operated()
        await world.said("success", "PartitionApplied")
        world.stranded = KubeletError("the kubelet does not answer", "its socket", "start it")
        operate.set_partition(root, [1], "dpx")
        world.wake()
        report = await world.said("success", "PartitionChangedByHand")
        assert report.pods == ()
        world.stranded = ("team/train-0",)
        report = await world.until(lambda: world.report if world.report and world.report.pods else None)
        assert report.pods == ("team/train-0",)
        assert "team/train-0; cpx_nps1_all was applied" in report.message
        warned = [one for one in world.advice if one.reason == "PartitionChangedByHand"][-1]
        assert (warned.severity, "team/train-0" in warned.what) == (Severity.WARNING, True)
        world.stranded = ()
        await world.until(lambda: world.report and not world.report.pods)
    assert world.modes[1] == "DPX/NPS1"


async def test_an_order_for_slices_is_not_obeyed_here(tmp_path: Path, root: Path) -> None:
    from kgpu.formats.mig_request import MigLayout
    from kgpu.formats.node_order import change_order

    world = ModesWorld(tmp_path, root)
    slices = (MigLayout(gpu="GPU-1", enabled=True, devices={"1g.10gb": 7}),)
    async with world.running():
        order = change_order(act="mig", boot=world.boot, step=OrderStep.CHANGE, layouts=slices)
        world.orders.set({}, "", order)
        world.label("cpx_nps1_all")
        await world.said("pending", "PartitionRequested")
        assert world.orders.answered("mig") is None


async def test_the_label_taken_away_takes_state_and_report_along_and_modes_stay(tmp_path: Path, root: Path) -> None:
    world = ModesWorld(tmp_path, root, operations=False)
    async with world.running():
        world.label("cpx_nps1_all")
        await world.said("success")
        world.label(None)
        await world.until(lambda: world.report is None and not world.state)
    assert world.modes == ["CPX/NPS1"] * 2
