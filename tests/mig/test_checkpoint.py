"""A checkpoint gives every layout back, each GPU instance at its place, whatever the GPU has become meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from kgpu.base.errors import UserError
from kgpu.formats.mig_checkpoint import SavedGpu, SavedInstance, parse_checkpoint, write_checkpoint
from kgpu.hw.fake_partitioner import WITHOUT_MIG, FakePartitioner
from kgpu.hw.partitioning import CutGpu, PartitionError
from kgpu.mig.apply import Applying, GpuOutcome
from kgpu.mig.checkpoint import plan_restore, saved_gpus
from kgpu.mig.survey import survey
from kgpu.mig.wanted import LayoutError
from tests.budget import count
from tests.mig.test_apply import FAMILIES, applied, at_call, entry, failure, only, places, some_entry, some_node

H100 = "h100-80gb"


async def saved(driver: FakePartitioner) -> tuple[SavedGpu, ...]:
    """Through the file."""
    written = write_checkpoint(saved_gpus([survey(gpu) for gpu in await driver.gpus()]))
    return parse_checkpoint(written.encode())


async def restored(driver: FakePartitioner, gpus: tuple[SavedGpu, ...], **more: bool) -> tuple[GpuOutcome, ...]:
    planned = plan_restore([survey(gpu) for gpu in await driver.gpus()], gpus, **more)
    return await Applying(driver=driver).node(planned)


def without_compute_places(gpu: CutGpu) -> object:
    return (
        gpu.enabled,
        {(one.profile, one.start, *sorted(ci.profile for ci in one.compute)) for one in gpu.instances},
    )


@pytest.mark.parametrize("family", FAMILIES)
async def test_any_layout_comes_back_from_any_other(family: str) -> None:
    chance = random.Random(f"checkpoints {family}")
    for _ in range(count(15, 500)):
        node = await some_node(chance, family)
        before = only(node)
        gpus = await saved(node)
        await applied(node, some_entry(chance, family))
        (outcome,) = await restored(node, gpus)
        assert (outcome.failure, outcome.loss) == (None, None)
        assert without_compute_places(only(node)) == without_compute_places(before)
        (again,) = await restored(node, gpus)
        assert again.planned.steps == ()


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_failure_at_any_step_leaves_the_layout_that_was_there(family: str) -> None:
    chance = random.Random(f"failing checkpoints {family}")
    for _ in range(count(4, 100)):
        gpus = await saved(await some_node(chance, family))
        node = await some_node(chance, family)
        before = only(node)
        (plan,) = plan_restore([survey(before)], gpus)
        for number in range(len(plan.steps)):
            for done in (False, True):
                node.state[before.uuid] = before
                node.meddle = at_call(number, done, failure)
                (outcome,) = await restored(node, gpus)
                node.meddle = lambda _step, _done: None
                assert outcome.loss is None
                if outcome.failure is not None:
                    assert places(only(node)) == (before.enabled, before.enabled, places(before)[2])


async def test_what_is_at_its_place_is_not_touched_and_the_rest_moves() -> None:
    node = FakePartitioner(H100)
    await applied(node, entry(**{"1g.10gb": 3}))
    gpus = await saved(node)
    starts = [one.start for one in only(node).instances]
    free = next(start for start in range(7) if start not in starts)
    gone = only(node).instances[0]
    await node.destroy(only(node).uuid, gone.id, gone.compute[0].id)
    await node.destroy(only(node).uuid, gone.id)
    number = await node.create_instance(only(node).uuid, gone.profile, free)
    await node.create_compute(only(node).uuid, number, 0, 0)
    (outcome,) = await restored(node, gpus)
    assert len(outcome.planned.steps) == 4
    assert Counter(one.start for one in only(node).instances) == Counter(starts)


async def test_both_kinds_of_double_memory_slices_come_back() -> None:
    node = FakePartitioner(H100)
    uuid = only(node).uuid
    await node.set_mode(uuid, True)
    for start, profile in ((0, 0), (2, 7)):
        await node.create_compute(uuid, await node.create_instance(uuid, 9, start), profile, 0)
    before = only(node)
    gpus = await saved(node)
    await applied(node, entry(**{"7g.80gb": 1}))
    await restored(node, gpus)
    assert places(only(node)) == places(before)


async def test_gpus_are_found_by_uuid_and_others_left_alone() -> None:
    node = FakePartitioner(H100, WITHOUT_MIG, H100)
    first, plain, last = node.state
    await applied(node, entry([0], **{"7g.80gb": 1}))
    gpus = await saved(node)
    assert [one.uuid for one in gpus] == [first, last], "those with MIG"
    await applied(node, entry([0, 2], **{"3g.40gb": 2}))
    node.state = {uuid: replace(node.state[uuid], index=index) for index, uuid in enumerate((last, first, plain))}
    outcomes = await restored(node, tuple(one for one in gpus if one.uuid == first))
    assert [one.planned.found.uuid for one in outcomes] == [first]
    assert len(node.state[first].instances) == 1
    assert len(node.state[last].instances) == 2


async def test_the_mode_alone() -> None:
    node = FakePartitioner(H100, H100)
    first, last = node.state
    await applied(node, entry([0], **{"7g.80gb": 1}))
    gpus = await saved(node)
    await applied(node, entry(**{"3g.40gb": 2}))
    await restored(node, gpus, mode_only=True)
    assert (node.state[first].enabled, len(node.state[first].instances)) == (True, 2)
    assert (node.state[last].enabled, len(node.state[last].instances)) == (False, 0)


def one(**members: object) -> SavedInstance:
    return SavedInstance(**{"profile": 0, "start": 0, "size": 1, "compute": (0,), **members})


@pytest.mark.parametrize(
    ("instances", "said"),
    [
        ([one(profile=1, size=2, start=1)], r"can't have 2g.20gb at 1: it has no such place"),
        ([one(), one()], r"can't have 1g.10gb at 0: another instance is there"),
        ([one(profile=12)], "has no MIG profile of number 12"),
        ([one(size=2)], "1g.10gb takes 1 memory slices, not 2"),
        ([one(compute=(3,))], "1g.10gb has no compute instance of profile 3"),
        ([one(compute=(200,))], "1g.10gb has no compute instance of profile 200"),
        ([one(compute=(0, 0))], "the compute instances in 1g.10gb at 0 do not fit it"),
        ([one(profile=7, start=0), one(profile=7, start=1)], r"can't be cut into 1g.10gb\+me, 1g.10gb\+me"),
    ],
)
async def test_what_a_gpu_can_not_be_is_refused_before_anything_changes(
    instances: list[SavedInstance], said: str
) -> None:
    node = FakePartitioner(H100, H100)
    first, last = node.state
    gpus = (
        SavedGpu(uuid=first, enabled=True),
        SavedGpu(uuid=last, enabled=True, instances=tuple(instances)),
    )
    with pytest.raises(LayoutError, match=said) as refused:
        await restored(node, gpus)
    assert refused.value.remedy
    assert not any(gpu.enabled for gpu in node.state.values())


async def test_a_gpu_that_is_not_there_or_has_no_mig_refuses_all() -> None:
    node = FakePartitioner(H100, WITHOUT_MIG)
    first, plain = node.state
    with pytest.raises(LayoutError, match="the node has no GPU GPU-gone, which the checkpoint has"):
        await restored(node, (SavedGpu(uuid=first, enabled=True), SavedGpu(uuid="GPU-gone", enabled=False)))
    with pytest.raises(LayoutError, match=r"GPU 1 \(NVIDIA L4\) has no MIG"):
        await restored(node, (SavedGpu(uuid=first, enabled=True), SavedGpu(uuid=plain, enabled=True)))
    assert not node.state[first].enabled
    (outcome,) = await restored(node, (SavedGpu(uuid=plain, enabled=False),))
    assert outcome.planned.steps == ()


async def test_gpus_that_can_not_be_read() -> None:
    problem = PartitionError("GPU 1 does not answer", "one that answers", "reboot")
    node = FakePartitioner(H100)
    lost = survey(CutGpu(index=1, problem=problem))
    with pytest.raises(PartitionError, match="does not answer"):
        saved_gpus([survey(only(node)), lost])
    with pytest.raises(LayoutError, match="GPU 1 can't be read"):
        plan_restore([survey(only(node)), lost], (SavedGpu(uuid="GPU-gone", enabled=False),))
    strange = survey(CutGpu(index=0, uuid="GPU-x", product="NVIDIA Z100", capable=True))
    assert saved_gpus([strange]) == (SavedGpu(uuid="GPU-x", enabled=False),), "off is all there is to know"
    with pytest.raises(UserError, match="no table of the MIG profiles"):
        plan_restore([strange], (SavedGpu(uuid="GPU-x", enabled=True),))
    with pytest.raises(UserError, match="no table of the MIG profiles"):
        saved_gpus([survey(CutGpu(index=0, uuid="GPU-x", product="NVIDIA Z100", capable=True, enabled=True))])


async def test_slices_in_use_are_refused() -> None:
    node = FakePartitioner(H100)
    gpus = await saved(node)
    await applied(node, entry(**{"3g.40gb": 2}))
    node.use(0, only(node).instances[0].id)
    with pytest.raises(LayoutError, match="from processes that use"):
        await restored(node, gpus)
