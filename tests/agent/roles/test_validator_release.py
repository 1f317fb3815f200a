"""CUDA tests and a driver that is let go of: none begins, and those under way end, children included."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.agent.ordered import OrderedGpus
from kgpu.agent.roles.validator import WhileHeld
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
    runner = WhileHeld(slow, ordered)
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
        await WhileHeld(quick, ordered).run("GPU-1", deadline=60)
    assert quick.runs == []
    ordered.set()
    assert (await WhileHeld(quick, ordered).run("GPU-1", deadline=60)).passed
    assert (await WhileHeld(quick, None).run("GPU-1", deadline=60)).passed
