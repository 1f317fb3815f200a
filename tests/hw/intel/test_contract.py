"""``IntelReader`` over the simulated drivers' files keeps the port's contract, and survives what only it can meet."""

from __future__ import annotations

import shutil

import pytest

from kgpu.base.errors import HwError
from kgpu.formats.names import INTEL
from kgpu.hw.intel.client import IntelReader
from kgpu.hw.intel.facts import product
from kgpu.hw.intel.vendor import VENDOR
from kgpu.hw.port import Problem
from kgpu.hw.simulator import modules, operate, processes
from tests.hw.contract import PATIENCE, ReaderContract, Shape, hurry, hurry_no_more, problems, usable, wait_for

MAX1550 = Shape(
    vendor=INTEL, uuid="0000:", name="Max 1550", memory_mib=(131_000, 131_072), pci_class=0x038000,
    nodes=lambda gpu: (f"/dev/dri/card{gpu.minor}", f"/dev/dri/renderD{128 + gpu.minor}"), process_memory=False,
    healthy={"pci_device_id": 0x0BD58086, "mode": "i915"},
)  # fmt: skip


class SimulatedNode:
    shape = MAX1550

    def __init__(self, root) -> None:
        self.root = root
        self.reader = IntelReader(driver_root=root, deadline=PATIENCE, poll=0.02)

    async def lose(self, gpu: int) -> None:
        operate.inject(self.root, "lost", gpu=gpu)

    async def hang(self, gpu: int) -> None:
        await hurry(self.reader, gpu)
        operate.inject(self.root, "hang", gpu=gpu)

    async def run(self, gpu: int, pid: int, memory_mib: int) -> None:
        processes.add(self.root, gpu, pid=pid, memory_mib=memory_mib)

    async def clear(self, gpu: int) -> None:
        operate.clear(self.root, gpu)
        hurry_no_more(self.reader)

    async def take_driver(self) -> None:
        modules.unload(self.root)

    async def return_driver(self) -> None:
        modules.load(self.root)


@pytest.fixture
async def node(sim_root):
    node = SimulatedNode(sim_root("max1550"))
    yield node
    operate.clear(node.root)
    await node.reader.close()


class TestIntelReader(ReaderContract):
    pass


async def test_garbage_is_a_finding_and_keeps_what_was_known(node) -> None:
    before = (await node.reader.inventory()).accelerators[1]
    operate.inject(node.root, "garbage", gpu=1)
    after = (await node.reader.inventory()).accelerators[1]
    assert problems(after) == {Problem.UNREADABLE}
    assert after.findings[0].what == "numa_node, energy can't be read or understood"
    assert (after.usable, after.numa_node) == (True, before.numa_node)


async def test_a_gpu_that_is_parted_into_virtual_functions_is_not_offered(node) -> None:
    (node.root / "sys/bus/pci/devices/0000:3a:00.0/sriov_numvfs").write_text("4\n")
    assert "0000:3a:00.0" not in [gpu.uuid for gpu in (await node.reader.inventory()).accelerators]


async def test_a_gpu_whose_driver_was_taken_from_it_is_missing_and_comes_back(node) -> None:
    before = await node.reader.inventory()
    link = node.root / "sys/bus/pci/drivers/i915/0000:2a:00.0"
    link.rename(link.with_name("gone"))
    after = await node.reader.inventory()
    assert problems(after.accelerators[1]) == {Problem.MISSING}
    assert usable(after) == [0, 2, 3, 4, 5, 6, 7]
    link.with_name("gone").rename(link)
    assert await wait_for(node.reader, lambda inventory: not inventory.accelerators[1].findings) == before


@pytest.mark.parametrize(
    ("profile", "facts", "clock"),
    [
        ("arc", ("Intel Arc Pro B60", "xe", 24480), 2400),
        ("max1550", ("Intel Data Center GPU Max 1550", "i915", 131072), 1600),
    ],
)
async def test_both_drivers_are_read_whole(sim_root, profile: str, facts: tuple[str, str, int], clock: int) -> None:
    reader = IntelReader(driver_root=sim_root(profile), deadline=PATIENCE)
    inventory = await reader.inventory()
    assert {(gpu.name, gpu.mode, gpu.memory_mib) for gpu in inventory.accelerators} == {facts}
    for reading in await reader.readings():
        assert not reading.failures
        assert reading.numbers["max_sm_clock_mhz"] == clock
        assert reading.numbers["energy_mj"] == 1_000_000
        assert 20 < reading.numbers["temperature_c"] < 60
        assert reading.numbers["power_limit_w"] in (200, 600)
    await reader.close()


async def test_without_either_driver_it_says_so(sim_root) -> None:
    root = sim_root("arc")
    shutil.rmtree(root / "sys/bus/pci/drivers")
    reader = IntelReader(driver_root=root)
    with pytest.raises(HwError, match="neither the driver i915 nor xe"):
        await reader.inventory()
    assert [place.rpartition("/")[2] for place in VENDOR.missing(root)] == ["i915", "xe"]
    await reader.close()


@pytest.mark.parametrize(
    ("vendor", "kind", "found"),
    [("0x10de", "0x030200", False), ("0x1da3", "0x120000", False), ("0x10de", "0x020000", True)],
)
def test_a_processors_graphics_beside_another_makers_card_are_not_what_the_node_is_for(
    sim_root, vendor, kind, found
) -> None:
    root = sim_root("arc")
    assert VENDOR.missing(root) == []
    folder = root / "sys/bus/pci/devices/0000:81:00.0"
    folder.mkdir()
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    assert (VENDOR.missing(root) == []) is found


def test_an_unknown_id_has_a_name() -> None:
    assert product(0xE212) == "Intel Arc Pro B50"
    assert product(0x1234) == "Intel GPU 1234"
