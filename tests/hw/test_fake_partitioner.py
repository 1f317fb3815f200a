"""The in-memory ``Partitioner`` keeps the port's contract."""

from __future__ import annotations

from functools import partial

import pytest

from kgpu.hw.fake_partitioner import WITHOUT_MIG, FakePartitioner
from tests.hw.partitioner_contract import PartitionerContract


class FakeNode:
    def __init__(self) -> None:
        self.partitioner = FakePartitioner("a100-40gb", "h100-80gb", WITHOUT_MIG)

    def use(self, index: int, instance: int | None = None):
        self.partitioner.use(index, instance)
        return partial(self.partitioner.use, index, instance, used=False)


@pytest.fixture
async def node():
    return FakeNode()


class TestFakePartitioner(PartitionerContract):
    pass
