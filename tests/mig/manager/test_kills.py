"""Killed at any step of a change, the next process brings each GPU to the wanted layout or back to the former one."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgpu.base import files
from kgpu.base.errors import HostError, UserError
from kgpu.formats.mig_config import parse_mig_configs
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.node_order import ChangeResult
from kgpu.hw.fake_partitioner import FakePartitioner
from kgpu.hw.partitioning import CutGpu, PartitionError
from kgpu.mig.apply import Applying
from kgpu.mig.manager.cutting import NodeCutter
from kgpu.mig.manager.layouts import layout_of
from kgpu.mig.manager.memory import FILE_NAME, ChangeRecord, MemoryFile
from kgpu.mig.manager.slices import MigSlices
from kgpu.mig.node_plan import plan_node
from kgpu.mig.survey import survey
from tests.budget import count

FAMILY = "a100-40gb"
CONFIGS = parse_mig_configs("""
version: v1
mig-configs:
  none: [{devices: all, mig-enabled: false}]
  empty: [{devices: all, mig-enabled: true, mig-devices: {}}]
  sevenths: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}]
  halves: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}]
  mixed: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1, 2g.10gb: 1, 1g.5gb: 2}}]
  parted: [{devices: all, mig-enabled: true, mig-devices: {1c.3g.20gb: 3, 1g.5gb: 3}}]
""").configs


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes end here, and no power is cut: nothing has to reach a disk."""
    monkeypatch.setattr(files.os, "fsync", lambda _descriptor: None)


class KilledError(BaseException):
    """The process ends here: nothing of it runs on."""


class Machine:
    """GPUs that outlive processes, and the folder of their record."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        self.driver = FakePartitioner(*[FAMILY] * gpus)
        self.folder = folder
        self.boot = "boot-1"

    def process(self) -> NodeCutter:
        kind = MigSlices(open_driver=lambda: self.driver)
        return NodeCutter(kind=kind, memory=MemoryFile(self.folder / FILE_NAME, boot=self.boot))

    async def cut(self, name: str) -> None:
        plans = plan_node([survey(gpu) for gpu in self.driver.state.values()], CONFIGS[name])
        outcomes = await Applying(driver=self.driver).node(plans)
        assert all(one.failure is None for one in outcomes)

    def layouts(self, name: str) -> tuple[MigLayout, ...]:
        plans = plan_node([survey(gpu) for gpu in self.driver.state.values()], CONFIGS[name])
        return tuple(layout_of(one.found.uuid, one.wanted) for one in plans)

    def kill_at(self, number: int, done: bool, error: type[BaseException] = KilledError) -> list[int]:
        """End at the n-th step that changes something, before or after it has taken effect; for good, as the process
        does nothing more then. Returns a counter of steps.
        """
        seen = [-1]

        def meddle(step: str, after: bool) -> None:
            if step != "read":
                seen[0] += not after
            if seen[0] > number or (seen[0] == number and (after or not done)):
                raise error

        self.driver.meddle = meddle
        return seen

    def alive(self) -> None:
        self.driver.meddle = lambda _step, _done: None

    @property
    def shape(self) -> list[object]:
        return [places(gpu) for gpu in self.driver.state.values()]


def places(gpu: CutGpu) -> object:
    """All that makes a layout, apart from ids and from where compute instances stand."""
    made = {(one.profile, one.start, tuple(sorted(ci.profile for ci in one.compute))) for one in gpu.instances}
    return gpu.enabled, gpu.pending, frozenset(made)


def is_as(machine: Machine, layouts: tuple[MigLayout, ...], index: int) -> bool:
    from kgpu.mig.manager.layouts import plan_layouts

    found = [survey(gpu) for gpu in machine.driver.state.values()]
    return not plan_layouts(found, layouts)[index].steps


@pytest.mark.parametrize("ordered", [True, False], ids=["order stands", "order gone"])
async def test_killed_at_any_step_a_change_ends_in_the_wanted_or_the_former_layout(
    tmp_path: Path, ordered: bool
) -> None:  # fmt: skip
    chance = random.Random(f"kills {ordered}")
    kills = tries = 0
    while kills < count(100, 3000):
        tries += 1
        machine = Machine(tmp_path / str(tries))
        before, wanted = chance.sample(list(CONFIGS), 2)
        await machine.cut(before)
        layouts, former = machine.layouts(wanted), machine.shape
        steps = machine.kill_at(chance.randint(0, 30), chance.random() < 0.5)
        try:
            result = await machine.process().obey("act", layouts)
        except KilledError:
            kills += 1
        else:
            assert result.done, result
            assert steps[0] >= 0
            continue
        for _ in range(chance.randint(0, 2)):  # and again, while it is finished
            machine.kill_at(chance.randint(0, 6), chance.random() < 0.5)
            try:
                await finish(machine.process(), layouts, ordered)
            except KilledError:
                continue
        machine.alive()
        last = machine.process()
        await finish(last, layouts, ordered)
        for index, shape in enumerate(machine.shape):
            assert is_as(machine, layouts, index) or shape == former[index]
        if ordered:
            assert await machine.process().obey("act", layouts) == ChangeResult(done=True)
        else:
            assert last.memory.now.change is None
            assert machine.process().memory.now.change is None


async def finish(cutter: NodeCutter, layouts: tuple[MigLayout, ...], ordered: bool) -> None:
    """What the next process does first: go on with the order, or without it make an end."""
    if ordered:
        await cutter.obey("act", layouts)
    else:
        await cutter.recover({})


async def test_the_layout_that_was_is_given_back_though_another_process_began(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=1)
    await machine.cut("parted")
    layouts, former = machine.layouts("sevenths"), machine.shape
    machine.kill_at(6, done=True)
    with pytest.raises(KilledError):
        await machine.process().obey("act", layouts)
    assert machine.shape != former

    def refuse(step: str, _done: bool) -> None:
        if step == "create-instance":
            machine.alive()
            raise PartitionError("the driver refuses", "a step that it takes", "look")

    machine.driver.meddle = refuse
    result = await machine.process().obey("act", layouts)
    assert (result.done, result.lost) == (False, False)
    assert "the driver refuses" in result.text
    assert machine.shape == former
    assert await machine.process().obey("act", layouts) == result  # an act is tried once


async def test_a_gpu_that_is_neither_is_told_as_lost(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=1)
    await machine.cut("halves")

    def refuse(step: str, _done: bool) -> None:
        if step == "create-instance":
            raise PartitionError("the driver refuses", "a step that it takes", "look")

    machine.driver.meddle = refuse
    result = await machine.process().obey("act", machine.layouts("sevenths"))
    assert (result.done, result.lost) == (False, True)


@pytest.mark.parametrize("number", [1, 6])
async def test_what_was_broken_off_is_finished_beside_pods_where_that_takes_nothing(
    tmp_path: Path, number: int
) -> None:
    machine = Machine(tmp_path, gpus=1)
    await machine.cut("halves")
    layouts, former = machine.layouts("sevenths"), machine.shape
    machine.kill_at(number, done=True)
    with pytest.raises(KilledError):
        await machine.process().obey("act", layouts)
    machine.alive()
    await machine.process().recover({next(iter(machine.driver.state)): ("pod team/train-0",)})
    assert machine.shape == former if number == 1 else is_as(machine, layouts, 0)


async def test_what_was_broken_off_waits_for_those_who_use_the_gpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=1)
    await machine.cut("halves")
    machine.kill_at(1, done=True)
    with pytest.raises(KilledError):
        await machine.process().obey("act", machine.layouts("sevenths"))
    machine.alive()
    (uuid,) = machine.driver.state
    row = next(row for row in machine.driver.geometries[uuid].rows if row.name == "2g.10gb")
    await machine.driver.create_instance(uuid, row.enum, 0)  # by hand, meanwhile
    cutter, shape = machine.process(), machine.shape
    with pytest.raises(UserError, match=r"in use by pod team/train-0"):
        await cutter.recover({uuid: ("pod team/train-0", "process 7")})
    assert machine.shape == shape
    await cutter.recover({})
    assert is_as(machine, machine.layouts("sevenths"), 0)


async def test_another_change_waits_for_the_one_that_was_broken_off(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=2)
    await machine.cut("halves")
    first = machine.layouts("sevenths")[:1]
    machine.kill_at(2, done=True)
    with pytest.raises(KilledError):
        await machine.process().obey("act-1", first)
    machine.alive()
    assert (await machine.process().obey("act-2", machine.layouts("mixed")[1:])).done
    assert is_as(machine, first, 0)


async def test_nothing_is_changed_without_a_record(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=1)
    (machine.folder / FILE_NAME).mkdir(parents=True)
    (machine.folder / FILE_NAME / "x").touch()
    shape = machine.shape
    result = await machine.process().obey("act", machine.layouts("sevenths"))
    assert (result.done, result.lost, "can't be written" in result.text) == (False, False, True)
    assert machine.shape == shape


@pytest.mark.parametrize(
    "layouts",
    [
        (MigLayout(gpu="GPU-of-another-node", enabled=True, devices={"1g.5gb": 7}),),
        (MigLayout(gpu="GPU-00000000-0000-0000-0000-000000000000", enabled=True, devices={"1g.99gb": 7}),),
        (MigLayout(gpu="GPU-00000000-0000-0000-0000-000000000000", enabled=True, devices={"rm -rf": 1}),),
        (MigLayout(gpu="GPU-00000000-0000-0000-0000-000000000000", enabled=True, devices={"1g.5gb": 64}),),
    ],
)
async def test_a_layout_that_can_not_be_had_changes_nothing(tmp_path: Path, layouts: tuple[MigLayout, ...]) -> None:
    machine = Machine(tmp_path, gpus=1)
    await machine.cut("halves")
    shape = machine.shape
    result = await machine.process().obey("act", layouts)
    assert (result.done, result.lost, machine.shape) == (False, False, shape)
    assert result.text


async def test_a_reboot_ends_what_was_broken_off(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=1)
    await machine.cut("halves")
    machine.kill_at(2, done=True)
    with pytest.raises(KilledError):
        await machine.process().obey("act", machine.layouts("sevenths"))
    machine.boot = "boot-2"
    assert machine.process().memory.now.change is None


async def test_called_off_in_the_middle_it_has_its_former_layout_and_goes_on_later(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=1)
    await machine.cut("halves")
    layouts, former = machine.layouts("sevenths"), machine.shape
    machine.kill_at(3, done=True, error=asyncio.CancelledError)
    begun = machine.driver.meddle

    def once(step: str, done: bool) -> None:
        try:
            begun(step, done)
        except asyncio.CancelledError:
            machine.alive()
            raise

    machine.driver.meddle = once
    with pytest.raises(asyncio.CancelledError):
        await machine.process().obey("act", layouts)
    assert machine.shape == former
    assert (await machine.process().obey("act", layouts)).done


@pytest.mark.parametrize("text", ["", "{", "[]", '{"change": {"act": 1}}', "\xff", '{"value": null}'])
def test_a_record_that_can_not_be_read_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(text.encode("latin-1"))
    memory = MemoryFile(tmp_path / FILE_NAME, boot="boot-1")
    assert (memory.now.change, memory.now.value) == (None, "")


def test_the_memory_keeps_what_counts_and_forgets_what_a_boot_ends(tmp_path: Path) -> None:
    memory = MemoryFile(tmp_path / FILE_NAME, boot="boot-1")
    memory.seen("halves", "17")
    memory.seen("halves", "18")  # another change of the Node
    memory.settle("key")
    memory.lose()
    memory.note(ChangeRecord(act="act", layouts=(), former=()))
    again = MemoryFile(tmp_path / FILE_NAME, boot="boot-1")
    assert again.now == memory.now
    assert (again.now.value, again.now.stamp, again.now.losses) == ("halves", "17", 1)
    later = MemoryFile(tmp_path / FILE_NAME, boot="boot-2").now
    assert later == msgspec.structs.replace(memory.now, boot="boot-2", settled="", losses=0, change=None)


def test_the_memory_knows_what_a_boot_has_taken_until_it_is_made_again_or_not_wanted(tmp_path: Path) -> None:
    memory = MemoryFile(tmp_path / FILE_NAME, boot="boot-1")
    memory.seen("halves", "17")
    memory.settle("key")
    memory.save()
    second = MemoryFile(tmp_path / FILE_NAME, boot="boot-2")
    assert second.now.again
    second.save()
    assert MemoryFile(tmp_path / FILE_NAME, boot="boot-2").now.again
    third = MemoryFile(tmp_path / FILE_NAME, boot="boot-3")
    assert third.now.again
    third.seen("halves", "20")
    assert third.now.again
    third.seen("sevenths", "21")
    assert not third.now.again
    second.settle("key-2")
    assert not second.now.again


def test_a_memory_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    memory = MemoryFile(tmp_path / "file" / FILE_NAME, boot="b")
    (tmp_path / "file").touch()
    record: Any = ChangeRecord(act="act", layouts=(), former=())
    with pytest.raises(HostError, match="can't be written"):
        memory.note(record)
    assert memory.now.change is None


def test_an_uninstall_knows_the_record() -> None:
    from kgpu.agent.leaving import OURS

    assert FILE_NAME in OURS
