"""``AmdReader`` over the simulated driver's files keeps the port's contract, and survives what only it can meet."""

from __future__ import annotations

import asyncio
import re
import shutil

import pytest

from kgpu.base.errors import HwError
from kgpu.hw.amd.client import AmdReader
from kgpu.hw.port import EventKind, Problem, TopologyLevel
from kgpu.hw.simulator.amd import operate
from tests.hw.contract import (
    HUNG_S,
    PATIENCE,
    DriverEventsContract,
    ReaderContract,
    Shape,
    SlicesContract,
    hurry,
    hurry_no_more,
    problems,
    usable,
    wait_for,
    wait_for_event,
)

MI300X = Shape(
    vendor="amd", uuid="0000:", name="MI300X", memory_mib=(196_000, 196_608), pci_class=0x120000,
    nodes=lambda gpu: (f"/dev/dri/card{gpu.minor}", f"/dev/dri/renderD{128 + gpu.minor}"),
    cut=lambda gpu: gpu.mode != "spx_nps1", slices=8, slice_uuids=("0000:", "amdgpu_xcp_"), profile="cpx_nps1",
    slice_memory_mib=24_000, multiprocessors=38, slice_nodes="/dev/dri/", own_nodes=0, size=2,
    event=EventKind.SINGLE_BIT_ECC, code=3, healthy={"mode": "spx_nps1", "pci_device_id": 0x74A11002},
)  # fmt: skip


class SimulatedNode:
    shape = MI300X

    def __init__(self, root) -> None:
        self.root = root
        self.reader = AmdReader(driver_root=root, deadline=PATIENCE, poll=0.02)

    async def lose(self, gpu: int) -> None:
        operate.inject(self.root, "lost", gpu=gpu)

    async def hang(self, gpu: int) -> None:
        await hurry(self.reader, gpu)
        operate.inject(self.root, "hang", gpu=gpu)

    async def report(self, gpu: int) -> None:
        operate.inject(self.root, "ecc", gpu=gpu, count=MI300X.code, corrected=True)

    async def slice(self, gpu: int, count: int) -> None:
        assert count == MI300X.slices
        await asyncio.to_thread(operate.set_partition, self.root, [gpu], "cpx")

    async def run(self, gpu: int, pid: int, memory_mib: int) -> None:
        operate.add_process(self.root, gpu, pid=pid, memory_mib=memory_mib)

    async def clear(self, gpu: int) -> None:
        operate.clear(self.root, gpu)
        hurry_no_more(self.reader)

    async def take_driver(self) -> None:
        operate.unload(self.root)

    async def return_driver(self) -> None:
        operate.load(self.root)


@pytest.fixture
async def node(sim_root):
    node = SimulatedNode(sim_root("mi300x"))
    yield node
    operate.clear(node.root)
    await node.reader.close()


class TestAmdReader(ReaderContract, DriverEventsContract, SlicesContract):
    pass


async def test_uncorrectable_errors_are_an_event_and_a_finding_until_a_reset(node) -> None:
    events = node.reader.events()
    await node.reader.inventory()
    operate.inject(node.root, "ecc", gpu=6, count=2)
    event = await wait_for_event(events, lambda event: event.kind is EventKind.DOUBLE_BIT_ECC)
    assert (event.uuid, event.code) == ("0000:c6:00.0", 2)
    sick = (await wait_for(node.reader, lambda inventory: 6 not in usable(inventory))).accelerators[6]
    assert problems(sick) == {Problem.NEEDS_RESET}
    assert sick.recovery_action == "reset"
    assert "2 uncorrectable" in sick.findings[0].sentence
    operate.clear(node.root)
    assert len(usable(await wait_for(node.reader, lambda inventory: 6 in usable(inventory)))) == 8


async def test_garbage_is_a_finding_that_names_the_files_and_keeps_what_was_known(node) -> None:
    operate.set_partition(node.root, [1], "cpx", "nps4")
    before = (await node.reader.inventory()).accelerators[1]
    operate.inject(node.root, "garbage", gpu=1)
    after = (await node.reader.inventory()).accelerators[1]
    assert problems(after) == {Problem.UNREADABLE}
    assert "current_compute_partition" in after.findings[0].what
    assert (after.mode, after.partitions, after.numa_node) == (before.mode, before.partitions, before.numa_node)
    assert after.usable
    reading = next(one for one in await node.reader.readings() if one.uuid == after.uuid)
    assert reading.failures["ecc_uncorrected_volatile"] == reading.failures["utilization_percent"] == "unknown"
    assert reading.values["memory_total_mib"] == 196592


async def test_a_hung_topology_is_a_finding_about_the_node_once_it_was_known(node, tmp_path) -> None:
    before = await node.reader.inventory()
    place = node.root / "sys/class/kfd/kfd/topology/nodes/4/properties"
    text = place.read_text()
    place.unlink()
    import os

    os.mkfifo(place)
    node.reader.node._deadline = HUNG_S
    after = await node.reader.inventory()
    assert after.accelerators == before.accelerators
    assert [row.problem for row in after.findings] == [Problem.HUNG]
    fresh = AmdReader(driver_root=node.root, deadline=HUNG_S)
    with pytest.raises(HwError, match="did not end in time"):
        await fresh.inventory()
    await fresh.close()
    place.rename(tmp_path / "fifo")
    place.write_text(text)
    node.reader.node._deadline = PATIENCE
    # Ends both who wait for a writer. Opened for writing alone it would itself wait once they have gone.
    os.close(os.open(tmp_path / "fifo", os.O_RDWR))
    healed = await wait_for(node.reader, lambda inventory: not inventory.findings)
    assert healed == before


async def test_a_gpu_that_the_driver_lists_no_more_is_missing_and_keeps_its_facts(node) -> None:
    before = await node.reader.inventory()
    link = node.root / "sys/bus/pci/drivers/amdgpu/0000:26:00.0"
    link.rename(link.with_name("gone"))
    after = await node.reader.inventory()
    assert problems(after.accelerators[1]) == {Problem.MISSING}
    assert after.accelerators[1].name == before.accelerators[1].name
    assert usable(after) == [0, 2, 3, 4, 5, 6, 7]
    link.with_name("gone").rename(link)
    assert await node.reader.inventory() == before


async def test_without_the_kfd_it_is_said_that_programs_can_not_compute(node) -> None:
    shutil.rmtree(node.root / "sys/class/kfd")
    with pytest.raises(HwError, match="without the KFD") as caught:
        await node.reader.inventory()
    assert "HSA_AMD" in caught.value.remedy


async def test_a_gpu_that_the_kfd_does_not_list_is_not_usable(sim_root) -> None:
    root = sim_root("w7900")
    (root / "sys/class/kfd/kfd/topology/nodes/1/properties").write_text("cpu_cores_count 0\n")
    reader = AmdReader(driver_root=root, deadline=PATIENCE)
    first, second = (await reader.inventory()).accelerators
    assert problems(first) == {Problem.UNPROVEN}
    assert second.usable
    assert second.mode == ""
    assert second.numa_node is None
    await reader.close()


async def test_a_link_of_another_type_says_nothing_of_distance(sim_root) -> None:
    root = sim_root("mi210", gpus=2)
    for properties in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/*_links/*/properties"):
        properties.write_text(re.sub(r"^type \d+$", "type 3", properties.read_text(), flags=re.MULTILINE))
    reader = AmdReader(driver_root=root, deadline=PATIENCE)
    assert (await reader.links()) == ()
    await reader.close()


async def test_links_are_xgmi_within_a_hive_and_pcie_between(sim_root) -> None:
    reader = AmdReader(driver_root=sim_root("mi210"), deadline=PATIENCE)
    gpus = [gpu.uuid for gpu in (await reader.inventory()).accelerators]
    links = await reader.links()
    assert len(links) == 28
    for link in links:
        same = gpus.index(link.a) // 4 == gpus.index(link.b) // 4
        assert link.lanes == int(same)
        assert link.level is (TopologyLevel.NODE if same else TopologyLevel.SYSTEM)
    await reader.close()


@pytest.mark.parametrize(
    ("profile", "name", "mode"),
    [
        ("mi210", "AMD Instinct MI210", ""),
        ("mi250x", "AMD Instinct MI250X", ""),
        ("mi300x", "AMD Instinct MI300X OAM", "spx_nps1"),
        ("mi325x", "AMD Instinct MI325X OAM", "spx_nps1"),
        ("rx7900xtx", "AMD Radeon RX 7900 XTX", ""),
        ("w7900", "AMD Radeon PRO W7900", ""),
    ],
)
async def test_every_model_is_read_whole(sim_root, profile: str, name: str, mode: str) -> None:
    reader = AmdReader(driver_root=sim_root(profile), deadline=PATIENCE)
    inventory = await reader.inventory()
    assert {(gpu.name, gpu.mode, gpu.usable) for gpu in inventory.accelerators} == {(name, mode, True)}
    for reading in await reader.readings():
        assert not reading.failures
        assert reading.numbers["power_w"] > 10
        assert reading.numbers["energy_mj"] == pytest.approx(1_000_013.8, abs=0.1)
        assert reading.numbers["sm_clock_mhz"] > 100
    await reader.close()
