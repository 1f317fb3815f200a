"""CUDA tests and a driver that is let go of: none begins, and those under way end, children included. Other roles know them."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.agent.host import OwnWork
from kgpu.agent.ordered import OrderedGpus
from kgpu.agent.roles.validator import Noted, WhileFree
from kgpu.base.clock import settle
from kgpu.hw.port import DriverReleasedError
from kgpu.validator.cuda import CudaOutcome, MemoryCuda


class Slow(MemoryCuda):
    """A test that does not end, and says when it was ended."""

    ended = 0

    async def run(self, uuid: str, *, deadline: float) -> CudaOutcome:
        self.runs.append(uuid)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1
        return await super().run(uuid, deadline=deadline)


async def test_a_test_under_way_ends_and_none_begins() -> None:
    ordered, slow = OrderedGpus(), Slow()
    runner = WhileFree(slow, ordered)
    test = asyncio.create_task(runner.run("GPU-1", deadline=60))
    await settle()
    ordered.set({"GPU-2": "withdrawn"})
    await settle()
    assert not test.done()
    ordered.set({"GPU-2": "withdrawn"}, "a GPU is being reset")
    with pytest.raises(DriverReleasedError, match="a GPU is being reset"):
        await test
    assert (slow.runs, slow.ended) == (["GPU-1"], 1)
    quick = MemoryCuda()
    with pytest.raises(DriverReleasedError):
        await WhileFree(quick, ordered).run("GPU-1", deadline=60)
    assert quick.runs == []
    ordered.set()
    assert (await WhileFree(quick, ordered).run("GPU-1", deadline=60)).passed
    assert (await WhileFree(quick, None).run("GPU-1", deadline=60)).passed


async def test_nothing_is_on_a_gpu_that_is_about_to_be_cut() -> None:
    ordered, slow = OrderedGpus(), Slow()
    test = asyncio.create_task(WhileFree(slow, ordered).run("MIG-1", deadline=60))
    await settle()
    ordered.set({"GPU-1": "withdrawn"}, held="the operation cuts GPUs into slices")
    with pytest.raises(DriverReleasedError, match="cuts GPUs into slices"):
        await test
    assert slow.ended == 1
    with pytest.raises(DriverReleasedError):
        await WhileFree(MemoryCuda(), ordered).run("MIG-1", deadline=60)


async def test_a_test_is_known_as_kgpus_own_work_while_it_runs_and_after_it() -> None:
    moments = iter((100.0, 200.0))
    own, slow = OwnWork(lambda: next(moments)), Slow()
    test = asyncio.create_task(Noted(slow, own).run("GPU-1", deadline=60))
    await settle()
    assert own.since("GPU-1", 1e9), "it is under way"
    assert not own.since("GPU-2", 0.0)
    test.cancel()
    await asyncio.gather(test, return_exceptions=True)
    assert own.since("GPU-1", 100.0)
    assert not own.since("GPU-1", 100.1)
    assert (await Noted(MemoryCuda(), own).run("GPU-1", deadline=60)).passed
    assert own.since("GPU-1", 200.0)
