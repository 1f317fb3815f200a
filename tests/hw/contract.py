"""What every reader of the hardware port must do, as one test class; each reader's own file supplies the node.

A ``Node`` is eight GPUs behind a reader, with the faults that a test can make; ``shape`` says what they are. Tests wait on
conditions, never on time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from kgpu.base.errors import HwError
from kgpu.hw.port import Accelerator, Activity, EventKind, HardwareEvent, Inventory, Problem, Reader

PATIENCE = 120.0
HUNG_S = 0.5
"""For so long a test waits for what hangs; for what does not a busy machine has all of its time."""


class _Lane(Protocol):
    _deadline: float


class ReaderWithLanes(Protocol):
    """A reader that asks each card by a lane of its own."""

    _lanes: Mapping[str, _Lane]

    def lane(self, bus: str) -> _Lane: ...
    async def inventory(self) -> Inventory: ...


async def hurry(reader: ReaderWithLanes, gpu: int) -> str:
    """Wait for this card, which is about to hang, no longer than a test has to; its bus address."""
    bus = (await reader.inventory()).accelerators[gpu].pci_bus_id
    reader.lane(bus)._deadline = HUNG_S
    return bus


def hurry_no_more(reader: ReaderWithLanes) -> None:
    for lane in reader._lanes.values():
        lane._deadline = PATIENCE


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a node's GPUs are, and what a slice of one is."""

    vendor: str
    uuid: str  # how it begins
    name: str
    memory_mib: tuple[int, int]
    pci_class: int
    cuda: bool = False
    nodes: Callable[[Accelerator], tuple[str, ...]]
    cut: Callable[[Accelerator], bool] = lambda gpu: bool(gpu.partitions)
    slices: int = 0
    slice_uuids: tuple[str, ...] = ()
    profile: str = ""
    slice_memory_mib: int = 0
    multiprocessors: int = 0
    slice_nodes: str = ""  # how each path after the GPU's own begins
    own_nodes: int = 0  # how many of a slice's nodes are the GPU's own
    size: int = 0  # number of a slice's nodes
    event: EventKind | None = None
    code: int = 0
    process_memory: bool = True  # whether the driver tells what a process holds
    record: bool = False  # whether the driver keeps a record of activity
    healthy: dict[str, object] = field(default_factory=dict)


H100 = Shape(
    vendor="nvidia", uuid="GPU-", name="H100", memory_mib=(79_000, 81_920), pci_class=0x030200, cuda=True,
    nodes=lambda gpu: (f"/dev/nvidia{gpu.minor}",), cut=lambda gpu: gpu.mig_enabled, slices=7, slice_uuids=("MIG-",),
    profile="1g.10gb", slice_memory_mib=9_000, multiprocessors=16, slice_nodes="/dev/nvidia-caps/nvidia-cap",
    own_nodes=1, size=3, event=EventKind.XID, code=31, record=True,
    healthy={"compute_capability": (9, 0), "mig_capable": True, "mig_enabled": False},
)  # fmt: skip


class Node(Protocol):
    """The node under test; GPUs by index. ``report`` lets the driver report what ``shape`` says."""

    reader: Reader
    shape: Shape

    async def lose(self, gpu: int) -> None: ...

    async def hang(self, gpu: int) -> None: ...

    async def report(self, gpu: int) -> None: ...

    async def slice(self, gpu: int, count: int) -> None: ...

    async def run(self, gpu: int, pid: int, memory_mib: int) -> None: ...

    async def load(self, gpu: int, percent: int) -> None: ...

    async def clear(self, gpu: int) -> None: ...

    async def take_driver(self) -> None: ...

    async def return_driver(self) -> None: ...


async def wait_for(reader: Reader, condition: Callable[[Inventory], bool]) -> Inventory:
    """Read until the inventory is as expected."""
    async with asyncio.timeout(PATIENCE):
        while True:
            inventory = await reader.inventory()
            if condition(inventory):
                return inventory
            await asyncio.sleep(0.05)


async def wait_for_error(reader: Reader) -> HwError:
    """Read until nothing can be read."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await reader.inventory()
            except HwError as error:
                return error
            await asyncio.sleep(0.05)


async def wait_for_activity(reader: Reader, condition: Callable[[Activity], bool]) -> Activity:
    """Ask until something was done by what is meant: the driver's record may lag behind."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for one in await reader.activity({"gpm_1"}):
                if condition(one) and one.values.get("utilization_percent"):
                    return one
            await asyncio.sleep(0.05)


async def wait_for_event(events, condition: Callable[[HardwareEvent], bool]) -> HardwareEvent:
    """Take events until one is as expected."""
    async with asyncio.timeout(PATIENCE):
        while not condition(event := await anext(events)):
            pass
    return event


async def wait_for_each(events, *conditions: Callable[[HardwareEvent], bool]) -> None:
    """Take events until each was as expected once: a reader may see what has changed before the driver's own word."""
    waiting = list(conditions)
    async with asyncio.timeout(PATIENCE):
        while waiting:
            event = await anext(events)
            waiting = [condition for condition in waiting if not condition(event)]


def usable(inventory: Inventory) -> list[int]:
    return [gpu.index for gpu in inventory.accelerators if gpu.usable]


def problems(gpu: Accelerator) -> set[Problem]:
    return {finding.problem for finding in gpu.findings}


class ReaderContract:
    """Inherit and provide a ``node`` fixture."""

    async def test_inventory(self, node: Node) -> None:
        inventory = await node.reader.inventory()
        gpus = inventory.accelerators
        assert [gpu.index for gpu in gpus] == list(range(8))
        assert len({gpu.uuid for gpu in gpus}) == 8
        assert usable(inventory) == list(range(8))
        for gpu in gpus:
            assert gpu.vendor == inventory.vendor == node.shape.vendor
            assert gpu.uuid.startswith(node.shape.uuid)
            assert node.shape.name in gpu.name
            assert gpu.memory_mib is not None
            assert node.shape.memory_mib[0] < gpu.memory_mib <= node.shape.memory_mib[1]
            assert {key: getattr(gpu, key) for key in node.shape.healthy} == node.shape.healthy
            assert not node.shape.cut(gpu)
            assert gpu.partitions == ()
            assert gpu.pci_bus_id == gpu.pci_bus_id.lower()
            assert gpu.pci_bus_id.startswith("0000:")
            assert gpu.pci_class == node.shape.pci_class
            assert gpu.numa_node is not None
            assert gpu.device_nodes == node.shape.nodes(gpu)
            assert gpu.recovery_action == "none"
            assert gpu.findings == ()
        assert inventory.findings == ()
        assert (inventory.cuda_version or (0, 0)) >= ((11, 0) if node.shape.cuda else (0, 0))
        assert inventory.driver_version.count(".") >= 1

    async def test_two_readings_agree(self, node: Node) -> None:
        first, second = await asyncio.gather(node.reader.inventory(), node.reader.inventory())
        assert first == second

    async def test_links_cover_every_pair_once(self, node: Node) -> None:
        uuids = [gpu.uuid for gpu in (await node.reader.inventory()).accelerators]
        links = await node.reader.links()
        assert len(links) == 28
        assert {frozenset((link.a, link.b)) for link in links} == {
            frozenset((a, b)) for a in uuids for b in uuids if a != b
        }

    async def test_readings_name_every_gpu(self, node: Node) -> None:
        uuids = [gpu.uuid for gpu in (await node.reader.inventory()).accelerators]
        readings = await node.reader.readings()
        assert [reading.uuid for reading in readings] == uuids

    async def test_processes_are_of_the_gpus_that_answer(self, node: Node) -> None:
        assert await node.reader.processes() == ()
        gpus = (await node.reader.inventory()).accelerators
        await node.run(1, 4101, 300)
        await node.run(6, 4102, 500)
        found = {(one.uuid, one.pid, one.kind, one.memory_mib) for one in await node.reader.processes()}
        held = (300, 500) if node.shape.process_memory else (None, None)
        first, second = (gpus[1].uuid, 4101, "compute", held[0]), (gpus[6].uuid, 4102, "compute", held[1])
        assert found == {first, second}
        await node.lose(1)
        await wait_for(node.reader, lambda inventory: 1 not in usable(inventory))
        assert [(one.uuid, one.pid) for one in await node.reader.processes()] == [second[:2]]

    async def test_activity_is_of_the_gpus_that_answer_and_begins_with_the_first_call(self, node: Node) -> None:
        gpus = (await node.reader.inventory()).accelerators
        first = await node.reader.activity({"gpm_1"})
        assert not any(one.sampled_seconds or one.values for one in first)
        if not node.shape.record:
            assert first == ()
            return
        await node.load(1, 40)
        found = await wait_for_activity(node.reader, lambda one: one.uuid == gpus[1].uuid and "gpm_1" in one.values)
        assert 0 < found.values["gpm_1"] <= 100
        assert 0 < found.values["utilization_percent"] <= (found.peak_percent or 0) <= 40
        assert found.sampled_seconds > 0
        assert found.processes == {}
        await node.lose(1)
        await wait_for(node.reader, lambda inventory: 1 not in usable(inventory))
        assert gpus[1].uuid not in {one.uuid for one in await node.reader.activity({"gpm_1"})}

    async def test_lost_gpu_keeps_its_facts_and_its_neighbours(self, node: Node) -> None:
        before = await node.reader.inventory()
        await node.lose(2)
        after = await wait_for(node.reader, lambda inventory: 2 not in usable(inventory))
        assert usable(after) == [0, 1, 3, 4, 5, 6, 7]
        lost = after.accelerators[2]
        assert lost.uuid == before.accelerators[2].uuid
        assert lost.name == before.accelerators[2].name
        assert Problem.LOST in problems(lost)
        assert all(finding.subject == lost.uuid and finding.remedy for finding in lost.findings)
        assert len(await node.reader.links()) == 21
        await node.clear(2)
        healed = await wait_for(node.reader, lambda inventory: 2 in usable(inventory))
        assert healed.accelerators == before.accelerators

    async def test_hung_gpu_leaves_the_others_answering(self, node: Node) -> None:
        before = await node.reader.inventory()
        await node.hang(5)
        after = await wait_for(node.reader, lambda inventory: usable(inventory) == [0, 1, 2, 3, 4, 6, 7])
        assert problems(after.accelerators[5]) == {Problem.HUNG}
        assert after.accelerators[5].uuid == before.accelerators[5].uuid
        assert len(await node.reader.readings()) == 7
        assert len(await node.reader.links()) == 21
        await node.clear(5)
        healed = await wait_for(node.reader, lambda inventory: 5 in usable(inventory))
        assert healed.accelerators == before.accelerators

    async def test_fault_and_healing_are_announced(self, node: Node) -> None:
        events = node.reader.events()
        await node.reader.inventory()
        await node.lose(1)
        await wait_for_event(events, lambda event: event.kind is EventKind.INVENTORY)
        await wait_for(node.reader, lambda inventory: 1 not in usable(inventory))
        await node.clear(1)
        await wait_for_event(events, lambda event: event.kind is EventKind.INVENTORY)
        await wait_for(node.reader, lambda inventory: 1 in usable(inventory))

    async def test_driver_away_and_back(self, node: Node) -> None:
        before = await node.reader.inventory()
        await node.take_driver()
        error = await wait_for_error(node.reader)
        assert error.what
        assert error.expected
        assert error.remedy
        await node.return_driver()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    after = await node.reader.inventory()
                    break
                except HwError:
                    await asyncio.sleep(0.05)
        assert usable(after) == usable(before)

    async def test_closed_reader_refuses_and_ends_iteration(self, node: Node) -> None:
        events = node.reader.events()
        await node.reader.inventory()
        waiting = asyncio.create_task(_drain(events))
        await asyncio.sleep(0)
        await node.reader.close()
        async with asyncio.timeout(PATIENCE):
            await waiting
        with pytest.raises(HwError):
            await node.reader.inventory()
        with pytest.raises(HwError):
            await node.reader.activity(())


class DriverEventsContract:
    """Of drivers that report events."""

    async def test_an_event_of_the_driver_reaches_every_consumer(self, node: Node) -> None:
        first, second = node.reader.events(), node.reader.events()
        uuid = (await node.reader.inventory()).accelerators[3].uuid
        await node.report(3)
        for events in (first, second):
            event = await wait_for_event(events, lambda event: event.kind is node.shape.event)
            assert (event.uuid, event.code) == (uuid, node.shape.code)
            assert event.gpu_instance is None


class SlicesContract:
    """Of accelerators that can be cut."""

    async def test_slices_appear_with_events(self, node: Node) -> None:
        events = node.reader.events()
        uuid = (await node.reader.inventory()).accelerators[0].uuid
        shape, count = node.shape, node.shape.slices
        await node.slice(0, count)
        await wait_for_each(
            events,
            lambda event: event.kind is EventKind.MIG_CHANGE and event.uuid == uuid,
            lambda event: event.kind is EventKind.INVENTORY,
        )
        inventory = await wait_for(node.reader, lambda inventory: len(inventory.accelerators[0].partitions) == count)
        gpu = inventory.accelerators[0]
        assert shape.cut(gpu)
        assert [part.index for part in gpu.partitions] == [f"0:{position}" for position in range(count)]
        assert len({part.uuid for part in gpu.partitions}) == count
        assert len({part.device_nodes for part in gpu.partitions}) == count
        for part in gpu.partitions:
            assert part.uuid.startswith(shape.slice_uuids)
            assert part.parent_uuid == uuid
            assert part.profile == shape.profile
            assert (part.slices_gi, part.slices_ci) == (1, 1)
            assert part.placement_size == 1
            assert part.memory_mib > shape.slice_memory_mib
            assert part.multiprocessors == shape.multiprocessors
            own, others = part.device_nodes[: shape.own_nodes], part.device_nodes[shape.own_nodes :]
            assert own == gpu.device_nodes[: shape.own_nodes]
            assert len(part.device_nodes) == shape.size
            assert all(path.startswith(shape.slice_nodes) for path in others)
        assert inventory.findings == ()
        assert usable(inventory) == list(range(8))


async def _drain(events) -> None:
    async for _ in events:
        pass
