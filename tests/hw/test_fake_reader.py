"""The in-memory reader keeps the port's contract, and what only it can do."""

from __future__ import annotations

import dataclasses

import pytest

from kgpu.base.errors import HwError
from kgpu.hw.fake_reader import FakeReader, sample_inventory, sample_partitions
from kgpu.hw.port import Activity, EventKind, HardwareEvent, Link, Problem, Process, Reading, TopologyLevel
from kgpu.hw.subscription import LIMIT, Subscriptions
from tests.hw.contract import H100, DriverEventsContract, ReaderContract, SlicesContract


class MemoryNode:
    shape = H100

    def __init__(self) -> None:
        self.start = sample_inventory()
        self.reader = FakeReader(self.start)
        self.running: list[Process] = []

    def uuid(self, gpu: int) -> str:
        return self.start.accelerators[gpu].uuid

    async def lose(self, gpu: int) -> None:
        self.reader.fail(self.uuid(gpu), Problem.LOST)

    async def hang(self, gpu: int) -> None:
        self.reader.fail(self.uuid(gpu), Problem.HUNG)

    async def xid(self, gpu: int, code: int) -> None:
        self.reader.report(HardwareEvent(kind=EventKind.XID, uuid=self.uuid(gpu), code=code))

    async def report(self, gpu: int) -> None:
        await self.xid(gpu, H100.code)

    async def slice(self, gpu: int, count: int) -> None:
        self.reader.set_partitions(self.uuid(gpu), sample_partitions(self.start.accelerators[gpu], count=count))

    async def run(self, gpu: int, pid: int, memory_mib: int) -> None:
        self.running.append(Process(uuid=self.uuid(gpu), pid=pid, memory_mib=memory_mib))
        self.reader.set_processes(self.running)

    async def load(self, gpu: int, percent: int) -> None:
        done = {"gpm_1": float(percent), "utilization_percent": float(percent)}
        self.reader.set_activity(
            [Activity(uuid=self.uuid(gpu), values=done, sampled_seconds=1.0, peak_percent=percent, processes={})]
        )

    async def clear(self, gpu: int) -> None:
        self.reader.heal(self.uuid(gpu))

    async def take_driver(self) -> None:
        self.reader.set_down(HwError("nvml init failed: Driver Not Loaded", "a driver", "load it"))

    async def return_driver(self) -> None:
        self.reader.set_down(None)


class TestMemoryReader(ReaderContract, DriverEventsContract, SlicesContract):
    @pytest.fixture
    def node(self) -> MemoryNode:
        return MemoryNode()


async def test_given_links_are_kept_except_of_silent_gpus() -> None:
    inventory = sample_inventory(3)
    a, b, c = (gpu.uuid for gpu in inventory.accelerators)
    links = (Link(a=a, b=b, level=TopologyLevel.SINGLE, lanes=4), Link(a=b, b=c, level=TopologyLevel.SYSTEM))
    reader = FakeReader(inventory, links=links)
    assert await reader.links() == links
    reader.fail(c, Problem.HUNG)
    assert await reader.links() == links[:1]


async def test_change_of_an_unknown_gpu_is_a_mistake_of_the_test() -> None:
    with pytest.raises(KeyError):
        FakeReader(sample_inventory(1)).change("GPU-none", name="x")


async def test_removed_subscription_gets_nothing_more() -> None:
    reader = FakeReader(sample_inventory(1))
    events = reader.events()
    await events.aclose()
    reader.report(HardwareEvent(kind=EventKind.XID, code=79))
    assert [event async for event in events] == []


async def test_consumer_that_does_not_read_keeps_a_bounded_queue_and_is_told_to_look_again() -> None:
    subscriptions = Subscriptions()
    events = subscriptions.add()
    for code in range(LIMIT + 10):
        subscriptions.publish(HardwareEvent(kind=EventKind.XID, code=code))
    subscriptions.close()
    received = [event async for event in events]
    assert len(received) == LIMIT
    assert received[0].kind is EventKind.INVENTORY
    assert received[-1].code == LIMIT + 9


async def test_unread_inventory_event_is_not_repeated() -> None:
    subscriptions = Subscriptions()
    events = subscriptions.add()
    for _ in range(3):
        subscriptions.publish(HardwareEvent(kind=EventKind.INVENTORY))
    subscriptions.close()
    assert [event.kind async for event in events] == [EventKind.INVENTORY]


def test_sample_inventory_is_deterministic() -> None:
    assert sample_inventory(4) == sample_inventory(4)
    gpu = sample_inventory(1).accelerators[0]
    assert dataclasses.replace(gpu) == gpu
    assert len(sample_partitions(gpu)) == 7


async def test_readings_of_instances_and_links_follow_their_gpu() -> None:
    inventory = sample_inventory(count=2)
    first, second = (gpu.uuid for gpu in inventory.accelerators)
    reader = FakeReader(inventory, readings={second: {"power_w": 70.0, "vbios_version": "96.00"}})
    reader.set_readings(
        [Reading(uuid=first, link=1), Reading(uuid=first, gpu_instance=7, failures={"gpm_1": "unknown"})]
    )
    found = await reader.readings()
    assert [(one.uuid, one.gpu_instance, one.link) for one in found] == [
        (first, None, None), (first, 7, None), (first, None, 1), (second, None, None),
    ]  # fmt: skip
    assert [one.whole for one in found] == [True, False, False, True]
    assert found[-1].numbers == {"power_w": 70.0}
    reader.set_readings([Reading(uuid=second, values={"power_w": 71.0})])
    assert (await reader.readings())[-1].values == {"power_w": 71.0}
