"""Killed at any step of a change of modes, the next process brings all GPUs to the wanted or back to the former ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kgpu.base import files
from kgpu.base.errors import UserError
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.node_order import ChangeResult
from kgpu.formats.partition_mode import PartitionMode
from kgpu.hw.simulator.amd import node_file
from kgpu.mig.modes.plan import layout
from tests.budget import count
from tests.mig.modes.modes_world import ModesWorld

MODES = [PartitionMode(*words.split("/")) for words in ("SPX/NPS1", "DPX/NPS1", "CPX/NPS1", "CPX/NPS4")]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes end here, and no power is cut: nothing has to reach a disk."""
    monkeypatch.setattr(files.os, "fsync", lambda _descriptor: None)


class KilledError(BaseException):
    """The process ends here: nothing of it runs on."""


def layouts(root: Path, mode: PartitionMode) -> tuple[MigLayout, ...]:
    return tuple(layout(gpu.bus, mode) for gpu in node_file.read(root).profile.gpus)


def kill_at(world: ModesWorld, number: int, done: bool) -> None:
    """End at the n-th step that changes something, before or after it has taken effect; for good."""
    seen = -1

    def meddle(_step: str, after: bool) -> None:
        nonlocal seen
        seen += not after
        if seen > number or (seen == number and (after or not done)):
            raise KilledError

    world.kernel.meddle = meddle


@pytest.mark.parametrize("ordered", [True, False], ids=["order stands", "order gone"])
async def test_killed_at_any_step_a_change_ends_in_the_wanted_or_the_former_modes(
    tmp_path: Path, sim_root, ordered: bool
) -> None:
    chance = random.Random(f"kills of modes {ordered}")
    world = ModesWorld(tmp_path, sim_root("mi300x", gpus=2))
    kills = 0
    for number in range(count(6, 300)):
        before, wanted = chance.sample(MODES, 2)
        assert (await world.cutter().obey(f"before-{number}", layouts(world.root, before))).done
        former = world.modes
        kill_at(world, chance.randint(0, 5), chance.random() < 0.5)
        act, wanted_layouts = f"act-{number}", layouts(world.root, wanted)
        try:
            assert (await world.cutter().obey(act, wanted_layouts)).done
        except KilledError:
            kills += 1
        world.kernel.meddle = lambda _step, _done: None
        cutter = world.cutter()
        if ordered:
            assert await cutter.obey(act, wanted_layouts) == ChangeResult(done=True)
        else:
            await cutter.recover({})
        assert world.modes in (former, [f"{wanted.compute}/{wanted.memory}"] * 2)
        assert ordered is (world.cutter().memory.now.change is not None) or not ordered
    assert kills


async def test_a_gpu_that_refuses_gives_all_the_former_modes_back(tmp_path: Path, sim_root) -> None:
    world = ModesWorld(tmp_path, sim_root("mi300x", gpus=2))
    stores = 0

    def refuse(step: str, done: bool) -> None:
        nonlocal stores
        if step == "current_compute_partition" and not done:
            stores += 1
            if stores == 2:
                raise OSError(5, "Input/output error")

    world.kernel.meddle = refuse
    result = await world.cutter().obey("act", layouts(world.root, PartitionMode("QPX", "NPS1")))
    assert (result.done, result.lost) == (False, False)
    assert "Input/output error" in result.text
    assert world.modes == ["SPX/NPS1"] * 2
    assert await world.cutter().obey("act", layouts(world.root, PartitionMode("QPX", "NPS1"))) == result


async def test_what_was_broken_off_waits_for_who_uses_the_gpus(tmp_path: Path, sim_root) -> None:
    world = ModesWorld(tmp_path, sim_root("mi300x", gpus=2))
    kill_at(world, 0, done=True)
    with pytest.raises(KilledError):
        await world.cutter().obey("act", layouts(world.root, PartitionMode("CPX", "NPS1")))
    world.kernel.meddle = lambda _step, _done: None
    half = world.modes
    everybody = {gpu.bus: ("pod team/train-0",) for gpu in node_file.read(world.root).profile.gpus}
    with pytest.raises(UserError, match="team/train-0"):
        await world.cutter().recover(everybody)
    assert world.modes == half
    await world.cutter().recover({})
    assert world.modes == ["CPX/NPS1"] * 2
