"""``GaudiReader`` over the simulated driver's files and library keeps the port's contract, and survives what only it meets."""

from __future__ import annotations

import os
import signal

import pytest

from kgpu.formats.names import HLML_LIBRARY
from kgpu.hw.gaudi.client import GaudiReader
from kgpu.hw.gaudi.hlml import HlmlAnswer
from kgpu.hw.port import EventKind, Problem, TopologyLevel
from kgpu.hw.simulator import modules, operate, processes
from tests.hw.contract import (
    HUNG_S,
    PATIENCE,
    DriverEventsContract,
    ReaderContract,
    Shape,
    hurry,
    hurry_no_more,
    problems,
    usable,
    wait_for,
    wait_for_event,
)

GAUDI3 = Shape(
    vendor="gaudi", uuid="AN", name="Gaudi 3", memory_mib=(131_000, 131_072), pci_class=0x120000,
    nodes=lambda gpu: (
        f"/dev/accel/accel{gpu.minor}", f"/dev/accel/accel_controlD{gpu.minor}", f"/dev/infiniband/uverbs{gpu.minor}",
    ),
    event=EventKind.SINGLE_BIT_ECC, code=3, process_memory=False, healthy={"pci_device_id": 0x10601DA3},
)  # fmt: skip


class SimulatedNode:
    shape = GAUDI3

    def __init__(self, root) -> None:
        self.root = root
        self.reader = GaudiReader(driver_root=root, deadline=PATIENCE, poll=0.02)
        self._hung: set[str] = set()
        self._ask = self.reader._hlml.ask
        self.reader._hlml.ask = self._asked  # type: ignore[method-assign]

    async def _asked(self, bus: str, *, more: bool = False) -> HlmlAnswer:
        """The library is asked as ever, but a card that hangs is not waited for as long as the others."""
        self.reader._hlml._deadline = HUNG_S if bus in self._hung else PATIENCE
        return await self._ask(bus, more=more)

    async def lose(self, gpu: int) -> None:
        operate.inject(self.root, "lost", gpu=gpu)

    async def hang(self, gpu: int) -> None:
        self._hung.add(await hurry(self.reader, gpu))
        operate.inject(self.root, "hang", gpu=gpu)

    async def report(self, gpu: int) -> None:
        operate.inject(self.root, "ecc", gpu=gpu, count=GAUDI3.code, corrected=True)

    async def run(self, gpu: int, pid: int, memory_mib: int) -> None:
        processes.add(self.root, gpu, pid=pid, memory_mib=memory_mib)

    async def clear(self, gpu: int) -> None:
        operate.clear(self.root, gpu)
        hurry_no_more(self.reader)
        self._hung.clear()

    async def take_driver(self) -> None:
        modules.unload(self.root)

    async def return_driver(self) -> None:
        modules.load(self.root)


@pytest.fixture
async def node(sim_root):
    node = SimulatedNode(sim_root("gaudi3"))
    yield node
    operate.clear(node.root)
    await node.reader.close()


class TestGaudiReader(ReaderContract, DriverEventsContract):
    pass


async def test_uncorrectable_errors_are_an_event_and_a_finding_until_a_reset(node) -> None:
    events = node.reader.events()
    await node.reader.inventory()
    operate.inject(node.root, "ecc", gpu=6, count=2)
    event = await wait_for_event(events, lambda event: event.kind is EventKind.DOUBLE_BIT_ECC)
    sick = (await wait_for(node.reader, lambda inventory: 6 not in usable(inventory))).accelerators[6]
    assert (event.uuid, event.code) == (sick.uuid, 2)
    assert problems(sick) == {Problem.NEEDS_RESET}
    assert sick.recovery_action == "reset"
    assert "2 uncorrectable" in sick.findings[0].sentence
    operate.clear(node.root)
    assert len(usable(await wait_for(node.reader, lambda inventory: 6 in usable(inventory)))) == 8


async def test_a_status_of_the_driver_is_a_finding_in_its_words(node) -> None:
    operate.inject(node.root, "needs-reset", gpu=4)
    sick = (await node.reader.inventory()).accelerators[4]
    assert problems(sick) == {Problem.NEEDS_RESET}
    assert "Malfunction" in sick.findings[0].sentence


async def test_garbage_is_a_finding_that_names_the_files_and_keeps_what_was_known(node) -> None:
    before = (await node.reader.inventory()).accelerators[1]
    operate.inject(node.root, "garbage", gpu=1)
    after = (await node.reader.inventory()).accelerators[1]
    assert problems(after) == {Problem.UNREADABLE}
    assert "device_type" in after.findings[0].what
    assert (after.name, after.module_id, after.numa_node) == (before.name, 1, before.numa_node)
    assert after.usable
    reading = next(one for one in await node.reader.readings() if one.uuid == after.uuid)
    assert reading.values["memory_total_mib"] == 131072


async def test_telemetry_has_units_of_the_port(node) -> None:
    processes.add(node.root, 0, pid=4100, memory_mib=1024)
    reading = (await node.reader.readings())[0]
    assert not reading.failures
    expected = {
        "power_w": 220, "power_limit_w": 900, "temperature_c": 31, "board_temperature_c": 27, "memory_used_mib": 1024,
        "memory_free_mib": 130048, "utilization_percent": 100, "energy_mj": 1_000_000, "sm_clock_mhz": 1600,
        "pcie_generation": 5, "pcie_width": 16, "pcie_replays": 0, "ecc_uncorrected_volatile": 0,
    }  # fmt: skip
    assert {key: reading.values[key] for key in expected} == expected


async def test_a_library_whose_process_dies_leaves_the_cards_usable_and_comes_back(node) -> None:
    before = await node.reader.inventory()
    os.kill(node.reader._hlml._process.pid, signal.SIGKILL)
    after = await wait_for(node.reader, lambda inventory: bool(inventory.findings))
    assert "has ended" in after.findings[0].what
    assert [gpu.uuid for gpu in after.accelerators] == [gpu.uuid for gpu in before.accelerators]
    assert usable(after) == list(range(8))
    healed = await wait_for(node.reader, lambda inventory: not inventory.findings)
    assert healed == before


async def test_without_the_library_cards_have_their_addresses_and_it_is_said(node) -> None:
    (node.root / HLML_LIBRARY).unlink()
    inventory = await node.reader.inventory()
    assert inventory.accelerators[0].uuid == "0000:19:00.0"
    assert usable(inventory) == list(range(8))
    assert "serials, memory, errors" in inventory.findings[0].what


async def test_a_library_of_noise_is_no_crash(node) -> None:
    (node.root / HLML_LIBRARY).write_bytes(b"\x7fELF garbage")
    inventory = await node.reader.inventory()
    assert usable(inventory) == list(range(8))
    assert "libhlml can't be asked" in inventory.findings[0].what


async def test_links_are_nearer_on_one_numa_node(node) -> None:
    gpus = [gpu.uuid for gpu in (await node.reader.inventory()).accelerators]
    for link in await node.reader.links():
        same = gpus.index(link.a) // 4 == gpus.index(link.b) // 4
        assert link.level is (TopologyLevel.NODE if same else TopologyLevel.SYSTEM)


@pytest.mark.parametrize(
    ("profile", "name", "mib"), [("gaudi2", "Intel Gaudi 2", 98304), ("gaudi3", "Intel Gaudi 3", 131072)]
)
async def test_every_model_is_read_whole(sim_root, profile: str, name: str, mib: int) -> None:
    reader = GaudiReader(driver_root=sim_root(profile), deadline=PATIENCE)
    inventory = await reader.inventory()
    assert {(gpu.name, gpu.memory_mib, gpu.usable) for gpu in inventory.accelerators} == {(name, mib, True)}
    assert [gpu.module_id for gpu in inventory.accelerators] == list(range(8))
    await reader.close()
