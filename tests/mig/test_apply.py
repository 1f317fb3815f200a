"""Plans taken on a driver: each GPU ends as wanted or as it was, whatever fails and wherever the program ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kgpu.formats.mig_config import MigEntry
from kgpu.formats.mig_geometry import GEOMETRIES, ci_rows
from kgpu.formats.mig_profile import parse_mig_profile
from kgpu.hw.fake_partitioner import WITHOUT_MIG, FakePartitioner
from kgpu.hw.partitioning import CutGpu, PartitionError
from kgpu.mig.apply import Applying, GpuOutcome
from kgpu.mig.model import MigAction
from kgpu.mig.node_plan import PlannedGpu, missing_gpus, plan_node
from kgpu.mig.survey import survey
from kgpu.mig.wanted import LayoutError
from tests.budget import count

FAMILIES = ("a30", "a100-40gb", "h100-80gb", "rtx-pro-6000")
OFF = MigEntry(enabled=False)


class KilledError(BaseException):
    """The program ends here: nothing of it runs on."""


def entry(devices: Sequence[int] | None = None, **profiles: int) -> MigEntry:
    """``entry(**{"1g.5gb": 7})``."""
    listed = tuple((parse_mig_profile(name), number) for name, number in profiles.items())
    return MigEntry(enabled=True, devices=None if devices is None else tuple(devices), profiles=listed)


async def planned(driver: FakePartitioner, *entries: MigEntry, **more: Any) -> tuple[PlannedGpu, ...]:
    return plan_node([survey(gpu) for gpu in await driver.gpus()], entries, **more)


async def applied(
    driver: FakePartitioner, *entries: MigEntry, mode_only: bool = False, **more: Any
) -> Sequence[GpuOutcome]:
    return await Applying(driver=driver, **more).node(await planned(driver, *entries, mode_only=mode_only))


def places(gpu: CutGpu) -> object:
    """All that makes a layout, apart from ids."""
    made = {(one.profile, one.start, frozenset((ci.profile, ci.start) for ci in one.compute)) for one in gpu.instances}
    return gpu.enabled, gpu.pending, frozenset(made)


def only(driver: FakePartitioner) -> CutGpu:
    (gpu,) = driver.state.values()
    return gpu


def some_entry(chance: random.Random, family: str) -> MigEntry:
    """Off, on without slices, or slices that fit, of whole and of parted instances."""
    if chance.random() < 0.15:
        return OFF
    geometry = GEOMETRIES[family]
    names = [name for row in geometry.rows for _, _, _, name in ci_rows(row, geometry)]
    profiles: dict[str, int] = {}
    for name in chance.sample(names, min(len(names), chance.randint(0, 4))):
        wanted = {**profiles, name: chance.randint(1, 3)}
        gpu = survey(CutGpu(index=0, uuid="x", product=f"NVIDIA {family.upper()}", capable=True))
        try:
            plan_node([gpu], [entry(**wanted)])
        except LayoutError:
            continue
        profiles = wanted
    return entry(**profiles)


async def some_node(chance: random.Random, family: str) -> FakePartitioner:
    """A GPU that was cut somehow, sometimes with an instance that has no compute instance."""
    driver = FakePartitioner(family)
    await applied(driver, some_entry(chance, family))
    gpu = only(driver)
    if gpu.enabled and chance.random() < 0.3:
        row = chance.choice(GEOMETRIES[family].rows)
        with contextlib.suppress(PartitionError):
            await driver.create_instance(gpu.uuid, row.enum, chance.choice(row.starts))
    return driver


def at_call(number: int, done: bool, error: Callable[[], BaseException], *, for_good: bool = False):
    """Meddles with the n-th call that changes something: before or after it has taken effect."""
    seen = [-1]

    def meddle(step: str, after: bool) -> None:
        if step == "read":
            if for_good and seen[0] >= number:
                raise error()
            return
        seen[0] += not after
        if (seen[0] == number and after == done) or (for_good and seen[0] > number):
            raise error()

    return meddle


def failure() -> PartitionError:
    return PartitionError("the driver has failed", "no failure", "try again")


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_failure_at_any_step_ends_in_the_former_layout_or_the_wanted_one(family: str) -> None:
    chance = random.Random(f"failures {family}")
    for _ in range(count(8, 500)):
        node, wanted = await some_node(chance, family), some_entry(chance, family)
        before = only(node)
        (plan,) = await planned(node, wanted)
        for number in range(len(plan.steps)):
            for done in (False, True):
                node.state[before.uuid] = before
                node.meddle = at_call(number, done, failure)
                (outcome,) = await Applying(driver=node).node([plan])
                node.meddle = lambda _step, _done: None
                assert outcome.loss is None
                left = (await planned(node, wanted))[0].steps
                if outcome.failure is None:
                    assert left == ()
                else:
                    assert places(only(node)) == (before.enabled, before.enabled, places(before)[2])
        node.state[before.uuid] = before
        (outcome,) = await Applying(driver=node).node([plan])
        assert (outcome.failure, (await planned(node, wanted))[0].steps) == (None, ())


async def test_whoever_ends_in_the_middle_leaves_what_the_next_goes_on_from() -> None:
    chance = random.Random("kills")
    kills = 0
    while kills < 200:
        family = chance.choice(FAMILIES)
        node, wanted = await some_node(chance, family), some_entry(chance, family)
        (plan,) = await planned(node, wanted)
        if not plan.steps:
            continue
        node.meddle = at_call(chance.randrange(len(plan.steps)), chance.random() < 0.5, KilledError, for_good=True)
        try:
            await Applying(driver=node).node([plan])
        except KilledError:
            kills += 1
        node.meddle = lambda _step, _done: None
        (outcome,) = await applied(node, wanted)
        assert outcome.failure is None
        assert (await planned(node, wanted))[0].steps == ()
        assert only(node).pending == only(node).enabled == wanted.enabled


async def test_what_fails_for_good_is_told_and_the_next_apply_goes_on_from_there() -> None:
    node = FakePartitioner("h100-80gb")
    await applied(node, entry(**{"3g.40gb": 2}))
    node.meddle = at_call(1, False, failure, for_good=True)
    (outcome,) = await Applying(driver=node).node(await planned(node, entry(**{"1g.10gb": 7})))
    assert outcome.failure is not None
    assert outcome.loss is not None
    node.meddle = lambda _step, _done: None
    (outcome,) = await applied(node, entry(**{"1g.10gb": 7}))
    assert (outcome.failure, len(only(node).instances)) == (None, 7)


async def test_one_gpu_that_fails_leaves_the_others_to_go_on() -> None:
    node = FakePartitioner("h100-80gb", "h100-80gb", "h100-80gb")
    node.meddle = at_call(4, False, failure)
    outcomes = await applied(node, entry(**{"2g.20gb": 1}))
    assert [outcome.failure is None for outcome in outcomes] == [True, False, True]
    assert [len(gpu.instances) for gpu in node.state.values()] == [1, 0, 1]
    assert [gpu.enabled for gpu in node.state.values()] == [True, False, True]


async def test_a_gpu_that_can_not_be_cut_so_keeps_all_as_they_are() -> None:
    node = FakePartitioner("h100-80gb", "a100-40gb")
    before = dict(node.state)
    with pytest.raises(LayoutError, match=r"GPU 1 .* has no MIG profile 1g\.20gb"):
        await applied(node, entry(**{"1g.20gb": 4}))
    with pytest.raises(LayoutError, match=r"GPU 1 .* can't be cut into 8 of 1g\.5gb"):
        await applied(node, entry([0], **{"1g.10gb": 7}), entry([1], **{"1g.5gb": 8}))
    assert node.state == before


async def test_what_is_right_already_is_not_touched() -> None:
    node = FakePartitioner("h100-80gb", "h100-80gb")
    await applied(node, entry(**{"2g.20gb": 3}))
    calls: list[str] = []
    node.meddle = lambda step, done: None if done or step == "read" else calls.append(step)
    await applied(node, entry(**{"2g.20gb": 3}))
    assert calls == []
    await applied(node, entry([0], **{"2g.20gb": 3}), entry([1], **{"2g.20gb": 2, "1g.10gb": 1}))
    assert calls == ["destroy-compute", "destroy-instance", "create-instance", "create-compute"]


async def test_gpus_without_mig_are_left_out_of_all_and_refused_by_index() -> None:
    node = FakePartitioner(WITHOUT_MIG, "h100-80gb")
    assert len(await applied(node, entry(**{"7g.80gb": 1}))) == 1
    assert await applied(node, replace(OFF, devices=(0,)))
    with pytest.raises(LayoutError, match=r"GPU 0 .* has no MIG"):
        await applied(node, entry([0], **{"7g.80gb": 1}))


async def test_a_gpu_that_can_not_be_read_counts_only_where_the_config_is_about_it() -> None:
    node = FakePartitioner("h100-80gb", "h100-80gb")
    lost = list(node.state)[1]
    node.state[lost] = CutGpu(index=1, problem=PartitionError("GPU 1 is lost", "a GPU that answers", "reset it"))
    assert len(await applied(node, entry([0], **{"7g.80gb": 1}))) == 1
    with pytest.raises(PartitionError, match="GPU 1 is lost"):
        await applied(node, entry(**{"7g.80gb": 1}))


async def test_a_gpu_of_no_known_table_is_refused_unless_its_mode_is_off_as_wanted() -> None:
    node = FakePartitioner("h100-80gb")
    node.state = {uuid: replace(gpu, product="NVIDIA X9000") for uuid, gpu in node.state.items()}
    with pytest.raises(LayoutError, match="no table of the MIG profiles"):
        await applied(node, entry(**{"7g.80gb": 1}))
    await applied(node, OFF)
    node.state = {uuid: replace(gpu, enabled=True, pending=True) for uuid, gpu in node.state.items()}
    with pytest.raises(LayoutError, match="no table of the MIG profiles"):
        await applied(node, OFF)


async def test_slices_and_gpus_in_use_are_refused_before_anything_changes() -> None:
    node = FakePartitioner("h100-80gb", "a100-40gb")
    await applied(node, entry([0], **{"3g.40gb": 2}))
    before = dict(node.state)
    node.use(0, node.state[next(iter(node.state))].instances[0].id)
    with pytest.raises(LayoutError, match=r"takes 3g\.40gb at 0 from processes that use it"):
        await applied(node, entry([0], **{"4g.40gb": 1}), entry([1], **{"7g.40gb": 1}))
    node.state = dict(before)
    node.use(1)
    with pytest.raises(LayoutError, match=r"GPU 1 .*mode can't change while processes use it"):
        await applied(node, entry([0], **{"4g.40gb": 1}), entry([1], **{"7g.40gb": 1}))
    assert next(iter(node.state.values())) == next(iter(before.values()))


async def test_a_mode_that_comes_to_wait_for_a_reset_is_taken_back() -> None:
    node = FakePartitioner("a100-40gb")
    plan = await planned(node, entry(**{"7g.40gb": 1}))
    node.use(0)  # only after everything was looked at
    (outcome,) = await Applying(driver=node).node(plan)
    assert outcome.failure is not None
    assert (outcome.loss, only(node).enabled, only(node).pending) == (None, False, False)


async def test_a_mode_that_waited_before_is_put_in_force_by_a_reset() -> None:
    node = FakePartitioner("a100-40gb")
    node.state = {uuid: replace(gpu, pending=True) for uuid, gpu in node.state.items()}
    await applied(node, entry(**{"7g.40gb": 1}))
    assert (only(node).enabled, len(only(node).instances), len(node.resets)) == (True, 1, 1)
    await applied(node, OFF)
    assert (only(node).enabled, len(node.resets)) == (False, 1), "a GPU at leisure changes without"


async def test_without_resets_a_mode_may_wait_only_where_that_is_all_that_was_asked() -> None:
    for mode_only, waits, pending in ((True, True, True), (False, False, False)):
        node = FakePartitioner("a100-40gb")
        node.state = {uuid: replace(gpu, pending=True) for uuid, gpu in node.state.items()}
        (outcome,) = await applied(
            node, entry(**{"7g.40gb": 1}), mode_only=mode_only, skip_reset=True, may_wait=mode_only
        )
        assert (outcome.waits, outcome.failure is None, only(node).pending) == (waits, mode_only, pending)
        assert node.resets == []


async def test_mode_only_leaves_the_slices_of_a_gpu_whose_mode_is_right() -> None:
    node = FakePartitioner("h100-80gb", "h100-80gb")
    await applied(node, entry([0], **{"2g.20gb": 3}))
    await applied(node, entry(**{"1g.10gb": 7}), mode_only=True)
    assert [(gpu.enabled, len(gpu.instances)) for gpu in node.state.values()] == [(True, 3), (True, 0)]
    await applied(node, OFF, mode_only=True)
    assert [(gpu.enabled, len(gpu.instances)) for gpu in node.state.values()] == [(False, 0), (False, 0)]


async def test_a_gpu_that_somebody_else_cut_meanwhile_is_left_as_it_is() -> None:
    node = FakePartitioner("h100-80gb")
    await applied(node, entry())
    plan = await planned(node, entry(**{"7g.80gb": 1}))
    await node.create_instance(only(node).uuid, 0, 3)
    before = only(node)
    (outcome,) = await Applying(driver=node).node(plan)
    assert outcome.failure is not None
    assert "somebody else" in outcome.failure.what
    assert only(node) == before


async def test_a_change_that_is_called_off_is_undone() -> None:
    node = FakePartitioner("h100-80gb")
    await applied(node, entry(**{"3g.40gb": 2}))
    before = only(node)
    plan = await planned(node, entry(**{"1g.10gb": 7}))
    told: list[MigAction] = []

    def tell(_planned: PlannedGpu, step: Any) -> None:
        told.append(step.action)
        if len(told) == 4:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Applying(driver=node, tell=tell).node(plan)
    assert places(only(node)) == places(before)


async def test_indexes_that_the_node_does_not_have_are_known() -> None:
    gpus = [survey(gpu) for gpu in await FakePartitioner("h100-80gb").gpus()]
    assert missing_gpus(gpus, [entry([0, 7]), OFF, entry([3])]) == (3, 7)


async def test_only_the_gpu_whose_mode_waits_is_reset() -> None:
    node = FakePartitioner("a100-40gb", "a100-40gb", "a100-40gb")
    waiting = list(node.state)[1]
    node.state[waiting] = replace(node.state[waiting], pending=True)
    await applied(node, entry(**{"7g.40gb": 1}))
    assert node.resets == [waiting]


async def test_steps_that_were_taken_without_effect_are_no_success() -> None:
    node = FakePartitioner("h100-80gb")
    await applied(node, entry())
    before, plan = only(node), await planned(node, entry(**{"7g.80gb": 1}))

    def undo(step: str, _done: bool) -> None:
        if step == "read" and only(node).instances:
            node.state[before.uuid] = before

    node.meddle = undo
    (outcome,) = await Applying(driver=node).node(plan)
    assert outcome.failure is not None
    assert "are to do still" in outcome.failure.what


async def test_an_instance_without_a_compute_instance_goes() -> None:
    node = FakePartitioner("h100-80gb")
    await applied(node, entry())
    await node.create_instance(only(node).uuid, 0, 3)
    await applied(node, entry(**{"1g.10gb": 7}))
    assert [len(one.compute) for one in only(node).instances] == [1] * 7
    await node.destroy(only(node).uuid, only(node).instances[0].id, 0)
    await applied(node, OFF)
    assert (only(node).enabled, only(node).instances) == (False, ())


async def test_slices_beside_an_orphan_are_not_as_wanted() -> None:
    """To mig-parted an instance without a compute instance is not there, so that it says that all is applied."""
    node = FakePartitioner("h100-80gb")
    await applied(node, entry(**{"3g.40gb": 1}))
    (wanted,) = only(node).instances
    orphan = await node.create_instance(only(node).uuid, 0, (wanted.start + 4) % 8)
    (plan,) = await planned(node, entry(**{"3g.40gb": 1}))
    assert [(step.action, step.instance) for step in plan.steps] == [(MigAction.DESTROY_INSTANCE, orphan)]
    (outcome,) = await Applying(driver=node).node([plan])
    assert (outcome.failure, only(node).instances) == (None, (wanted,))


async def test_a_count_of_0_is_as_if_it_were_not_there() -> None:
    node = FakePartitioner("h100-80gb")
    wanted = entry(**{"1g.10gb": 7, "2g.20gb": 0})
    (outcome,) = await applied(node, wanted)
    assert (outcome.failure, len(only(node).instances)) == (None, 7)
    assert (await planned(node, wanted))[0].steps == ()


async def test_a_driver_that_refuses_every_instance_is_asked_for_the_first_alone() -> None:
    """mig-parted goes through every order of the slices."""
    node, asked = FakePartitioner("h100-80gb"), list[str]()

    def refuse(step: str, done: bool) -> None:
        if step == "create-instance" and not done:
            asked.append(step)
            raise failure()

    node.meddle = refuse
    (outcome,) = await applied(node, entry(**{"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}))
    assert outcome.failure is not None
    assert (outcome.loss, only(node).enabled, asked) == (None, False, ["create-instance"])


@pytest.mark.parametrize("profile", ["1g.99gb", "1g.5gb", "6g.60gb", "1g.10gb+gfx"])
async def test_a_profile_that_the_gpu_does_not_have_is_refused_and_takes_nothing(profile: str) -> None:
    """In mig-parted it is dropped: the GPU is cleared, and success told."""
    node = FakePartitioner("h100-80gb")
    await applied(node, entry(**{"3g.40gb": 2}))
    before = only(node)
    with pytest.raises(LayoutError, match=r"has no MIG profile .*\n  expected: one of 1g\.10gb, "):
        await applied(node, entry(**{profile: 1}))
    assert only(node) == before
