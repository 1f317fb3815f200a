"""What every ``Partitioner`` does, the fake as well as the real one. GPUs of ``node``: A100 40 GB, H100 80 GB, L4."""

from __future__ import annotations

import pytest

from kgpu.hw.partitioning import CutCompute, CutInstance, PartitionError

A100, H100, L4 = range(3)
ONE, TWO, THREE, FOUR, SEVEN = range(5)


async def uuid_of(node, index: int) -> str:
    return (await node.partitioner.gpus())[index].uuid


class PartitionerContract:
    async def test_every_gpu_says_what_it_is(self, node) -> None:
        a100, h100, l4 = await node.partitioner.gpus()
        assert [gpu.index for gpu in (a100, h100, l4)] == [0, 1, 2]
        assert [gpu.capable for gpu in (a100, h100, l4)] == [True, True, False]
        assert "A100" in a100.product.upper()
        assert a100.device == 0x20B010DE
        assert (a100.enabled, a100.pending, a100.instances, a100.used) == (False, False, (), False)
        assert a100.problem is None
        assert await node.partitioner.gpu(h100.uuid) == h100

    async def test_mode_on_and_off(self, node) -> None:
        for index in (A100, H100):
            uuid = await uuid_of(node, index)
            await node.partitioner.set_mode(uuid, True)
            gpu = await node.partitioner.gpu(uuid)
            assert (gpu.enabled, gpu.pending, gpu.instances) == (True, True, ())
            await node.partitioner.set_mode(uuid, False)
            gpu = await node.partitioner.gpu(uuid)
            assert (gpu.enabled, gpu.pending) == (False, False)

    async def test_a_gpu_without_mig_refuses_it(self, node) -> None:
        with pytest.raises(PartitionError, match="Not Supported"):
            await node.partitioner.set_mode(await uuid_of(node, L4), True)

    async def test_instances_are_made_where_they_are_asked_for_and_read_back(self, node) -> None:
        uuid = await uuid_of(node, H100)
        await node.partitioner.set_mode(uuid, True)
        three = await node.partitioner.create_instance(uuid, THREE, 4)
        one = await node.partitioner.create_instance(uuid, ONE, 2)
        first = await node.partitioner.create_compute(uuid, three, ONE, 2)
        second = await node.partitioner.create_compute(uuid, three, TWO, 0)
        gpu = await node.partitioner.gpu(uuid)
        assert set(gpu.instances) == {
            CutInstance(
                id=three,
                profile=THREE,
                start=4,
                compute=(CutCompute(id=first, profile=ONE, start=2), CutCompute(id=second, profile=TWO, start=0)),
            ),
            CutInstance(id=one, profile=ONE, start=2),
        }, "the instance without a compute instance is seen, too"

    async def test_what_has_no_room_or_no_place_is_refused(self, node) -> None:
        uuid = await uuid_of(node, H100)
        with pytest.raises(PartitionError, match="Not Supported"):
            await node.partitioner.create_instance(uuid, ONE, 0)
        await node.partitioner.set_mode(uuid, True)
        half = await node.partitioner.create_instance(uuid, THREE, 0)
        for profile, start, why in (
            (ONE, 2, "Insufficient Resources"), (FOUR, 0, "Insufficient Resources"), (TWO, 3, "Invalid Argument"),
        ):  # fmt: skip
            with pytest.raises(PartitionError, match=why):
                await node.partitioner.create_instance(uuid, profile, start)
        await node.partitioner.create_compute(uuid, half, TWO, 0)
        with pytest.raises(PartitionError, match="Insufficient Resources"):
            await node.partitioner.create_compute(uuid, half, ONE, 1)
        with pytest.raises(PartitionError, match="Not Supported"):
            await node.partitioner.create_compute(uuid, half, SEVEN, 0)

    async def test_what_is_destroyed_is_gone(self, node) -> None:
        uuid = await uuid_of(node, H100)
        await node.partitioner.set_mode(uuid, True)
        made = await node.partitioner.create_instance(uuid, TWO, 0)
        compute = await node.partitioner.create_compute(uuid, made, TWO, 0)
        with pytest.raises(PartitionError):
            await node.partitioner.destroy(uuid, made)
        with pytest.raises(PartitionError):
            await node.partitioner.set_mode(uuid, False)
        await node.partitioner.destroy(uuid, made, compute)
        with pytest.raises(PartitionError, match="Not Found"):
            await node.partitioner.destroy(uuid, made, compute)
        await node.partitioner.destroy(uuid, made)
        with pytest.raises(PartitionError, match="Not Found"):
            await node.partitioner.destroy(uuid, made)
        assert (await node.partitioner.gpu(uuid)).instances == ()

    async def test_an_instance_with_a_process_is_used_and_stays(self, node) -> None:
        uuid = await uuid_of(node, H100)
        await node.partitioner.set_mode(uuid, True)
        made, other = [await node.partitioner.create_instance(uuid, TWO, start) for start in (0, 2)]
        compute = await node.partitioner.create_compute(uuid, made, TWO, 0)
        await node.partitioner.create_compute(uuid, other, TWO, 0)
        node.use(H100, made)
        used = {one.id: one.used for one in (await node.partitioner.gpu(uuid)).instances}
        assert used == {made: True, other: False}
        with pytest.raises(PartitionError, match="In use"):
            await node.partitioner.destroy(uuid, made, compute)

    async def test_the_mode_of_a_used_ampere_waits_for_a_reset(self, node) -> None:
        uuid = await uuid_of(node, A100)
        end = node.use(A100)
        assert (await node.partitioner.gpu(uuid)).used
        await node.partitioner.set_mode(uuid, True)
        gpu = await node.partitioner.gpu(uuid)
        assert (gpu.enabled, gpu.pending) == (False, True)
        end()
        await node.partitioner.reset(uuid)
        gpu = await node.partitioner.gpu(uuid)
        assert (gpu.enabled, gpu.pending) == (True, True)

    async def test_the_mode_of_other_used_gpus_is_refused(self, node) -> None:
        uuid = await uuid_of(node, H100)
        node.use(H100)
        with pytest.raises(PartitionError, match="In use"):
            await node.partitioner.set_mode(uuid, True)
        gpu = await node.partitioner.gpu(uuid)
        assert (gpu.enabled, gpu.pending) == (False, False)
