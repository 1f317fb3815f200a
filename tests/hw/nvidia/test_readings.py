"""Readings and processes across the real C ABI: what `kgpu lab hw` sets is what the reader says, per GPU and slice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kgpu.hw.nvidia.client import NvidiaReader
from kgpu.hw.nvidia.process import ChildProcess
from kgpu.hw.open import open_reader
from kgpu.hw.port import ProcessKind, Reading
from kgpu.hw.simulator import mig, operate, processes

PATIENCE = 120.0
# A setting of the lab, what it must show as: reading, value.
SET: tuple[tuple[str, object, str, object], ...] = (
    ("temperature", 81, "temperature_c", 81),
    ("memory-temperature", 93, "memory_temperature_c", 93),
    ("encoder", 11, "encoder_percent", 11),
    ("decoder", 12, "decoder_percent", 12),
    ("memory-utilization", 44, "memory_utilization_percent", 44),
    ("memory-used", 5000, "memory_used_mib", 5000),
    ("bar1-used", 64, "bar1_used_mib", 64),
    ("throttle", "hw-thermal,power-brake", "clock_event_reasons", 0x1 | 0x40 | 0x80),
    ("ecc-corrected", 5, "ecc_corrected_volatile", 5),
    ("ecc-uncorrected", 6, "ecc_uncorrected_volatile", 6),
    ("ecc-corrected-total", 7, "ecc_corrected_aggregate", 7),
    ("ecc-uncorrected-total", 8, "ecc_uncorrected_aggregate", 8),
    ("remapped-corrected", 3, "remapped_rows_correctable", 3),
    ("remapped-uncorrected", 4, "remapped_rows_uncorrectable", 4),
    ("remap-pending", "on", "remapped_rows_pending", 1),
    ("remap-failed", "on", "remapped_rows_failure", 1),
    ("sram-exceeded", "on", "sram_exceeded", 1),
    ("pcie-replays", 9, "pcie_replays", 9),
    ("pcie-errors", 2, "pcie_correctable_errors", 2),
    ("pcie-gen", 4, "pcie_generation", 4),
    ("pcie-width", 8, "pcie_width", 8),
    ("nvlink-crc-flit", 500, "nvlink_crc_flit_errors", 500),
    ("nvlink-crc-data", 600, "nvlink_crc_data_errors", 600),
    ("nvlink-replays", 70, "nvlink_replay_errors", 70),
    ("nvlink-recoveries", 80, "nvlink_recovery_errors", 80),
    ("nvlink.5", "down", "nvlink_active", 17),
    ("fabric", "in-progress", "fabric_state", 2),
    ("fabric-health", "limited", "fabric_health", 3),
    ("fabric-health-mask", 5, "fabric_health_mask", 5),
    ("power-limit", 500, "power_limit_w", 500),
    ("persistence", "off", "persistence_mode", 0),
    ("compute-mode", "exclusive-process", "compute_mode", 3),
    ("vbios", "96.00.1", "vbios_version", "96.00.1"),
)  # fmt: skip

NEWER = {"driver-version": "580.65.06", "unrepairable-memory": "on"}


@pytest.fixture
async def node(sim_root):
    root = sim_root("hgx-h100", gpus=2)
    reader = NvidiaReader(driver_root=root, deadline=PATIENCE, init_deadline=PATIENCE)
    yield root, reader
    operate.clear(root)
    await reader.close()


def whole(readings: tuple[Reading, ...], place: int = 0) -> Reading:
    return [one for one in readings if one.whole][place]


async def until(reader: NvidiaReader, condition: Callable[[tuple[Reading, ...]], object]) -> tuple[Reading, ...]:
    async with asyncio.timeout(PATIENCE):
        while True:
            readings = await reader.readings()
            if condition(readings):
                return readings
            await asyncio.sleep(0.05)


async def test_what_is_set_is_read(node) -> None:
    root, reader = node
    operate.set_values(root, {key: value for key, value, _, _ in SET}, gpu=0)
    first, second = await reader.readings()
    assert {name: first.values.get(name) for _, _, name, _ in SET} == {name: value for _, _, name, value in SET}
    assert first.failures == {}
    assert first.values["nvlink_down"] == "5"
    untouched = [name for _, _, name, value in SET if second.values[name] == value]
    assert untouched == []


async def test_recovery_action_and_violations_are_read_while_they_grow(node) -> None:
    root, reader = node
    operate.set_values(root, {"throttle": "sw-thermal", "recovery-action": "reset", **NEWER}, 0)
    readings = await until(reader, lambda found: whole(found).values["thermal_violation_ns"])
    before = whole(readings).values["thermal_violation_ns"]
    assert whole(readings).values["recovery_action"] == 1
    assert whole(readings).values["memory_unrepairable"] == 1
    assert whole(readings, 1).values["memory_unrepairable"] == 0
    operate.clear(root, 0)
    after = whole(await reader.readings())
    assert after.values["thermal_violation_ns"] >= before, "a counter never goes back"
    assert after.values["recovery_action"] == 0


async def test_a_failing_reading_is_a_failure_of_that_reading(node) -> None:
    root, reader = node
    operate.set_values(root, {"failing": "power,memory"}, gpu=1)
    first, second = await reader.readings()
    assert first.failures == {}
    memory = {"memory_total_mib", "memory_used_mib", "memory_free_mib", "memory_reserved_mib"}
    assert second.failures == dict.fromkeys({"power_w", *memory}, "unknown")
    assert not set(second.failures) & set(second.values)
    assert set(first.values) == {*second.values, *second.failures, "memory_used_ratio"}
    operate.set_values(root, {"failing": "fields"}, gpu=1)
    _, second = await reader.readings()
    assert second.failures["memory_temperature_c"] == "unknown"
    assert second.values["power_w"] > 0


async def test_averages_come_with_the_second_reading(node) -> None:
    root, reader = node
    operate.set_values(root, {"utilization": 50}, gpu=0)
    first = whole(await reader.readings())
    assert "gpm_1" not in first.values
    # Of a GPU that missed its turn they come with the third.
    found = await until(reader, lambda found: all("gpm_1" in one.values for one in found if one.whole))
    busy, idle = (one for one in found if one.whole)
    assert 0 < busy.values["gpm_2"] < busy.values["gpm_1"] <= 100
    assert busy.values["gpm_20_mib_per_s"] > 0
    assert idle.values["gpm_1"] == 0


async def test_slices_have_their_own_memory_and_averages(node) -> None:
    root, reader = node
    await asyncio.to_thread(mig.partition, root, 0, ["1g.10gb"] * 3)
    readings = await until(reader, lambda found: all("gpm_1" in one.values for one in found))
    assert [one.gpu_instance for one in readings] == [None, *sorted(await instances(reader)), None]
    for one in readings[1:4]:
        assert one.uuid == readings[0].uuid
        assert one.failures == {}
        assert one.values["memory_used_mib"] + one.values["memory_free_mib"] == one.values["memory_total_mib"]
        assert 9000 < one.values["memory_total_mib"] < 11000
        assert "temperature_c" not in one.values
    assert "utilization_percent" not in readings[0].values, "nothing is measured of a GPU that is cut up"


async def test_a_slice_is_as_busy_as_it_is_told(node) -> None:
    root, reader = node
    await asyncio.to_thread(mig.partition, root, 0, ["1g.10gb"] * 2)
    first, second = sorted(await instances(reader))
    operate.set_values(root, {"utilization": 20}, gpu=0)
    processes.add(root, 0, pid=4242, sm_percent=50, gi=first, ci=0)

    def busy(found: tuple[Reading, ...]) -> dict[int, float]:
        return {one.gpu_instance: one.values["gpm_1"] for one in found if one.gpu_instance and "gpm_1" in one.values}

    found = await until(reader, lambda found: busy(found) == {first: 70.0, second: 20.0})
    slices = {one.gpu_instance: one for one in found if one.gpu_instance}
    assert 0 < slices[second].values["gpm_10"] < slices[first].values["gpm_10"] < 70


async def test_how_gpus_reach_each_other(node) -> None:
    root, reader = node
    assert [one.values["p2p_status"] for one in await reader.readings({"p2p_status"}) if one.whole] == ["1:0", "0:0"]
    operate.inject(root, "lost", gpu=1)
    (alone,) = [one for one in await reader.readings({"p2p_status", "power_w"}) if one.whole]
    assert alone.failures == {}


async def instances(reader: NvidiaReader) -> set[int]:
    inventory = await reader.inventory()
    return {one.gpu_instance for gpu in inventory.accelerators for one in gpu.partitions}


async def test_slices_that_go_are_gone_from_the_next_reading(node) -> None:
    root, reader = node
    await asyncio.to_thread(mig.partition, root, 0, ["1g.10gb"] * 2)
    await reader.inventory()
    assert len(await reader.readings()) == 4
    await asyncio.to_thread(mig.partition, root, 0, ["2g.20gb"])
    await reader.inventory()
    assert len(await reader.readings()) == 3
    await asyncio.to_thread(mig.disable, root, 0)
    assert len(await reader.readings()) == 2


async def test_gpus_without_gpm_or_links_have_no_such_readings(sim_root) -> None:
    root = sim_root("t4", gpus=1)
    reader = NvidiaReader(driver_root=root, deadline=PATIENCE, init_deadline=PATIENCE)
    try:
        await reader.readings()
        await asyncio.sleep(0.15)
        (reading,) = await reader.readings()
    finally:
        await reader.close()
    assert not [name for name in reading.values if name.startswith(("gpm_", "nvlink_", "remapped_"))]
    assert reading.values["retired_pages_dbe"] == 0
    assert reading.failures == {}


async def test_processes_by_gpu_and_slice(node) -> None:
    root, reader = node
    processes.add(root, 0, pid=4242, memory_mib=300, sm_percent=25)
    processes.add(root, 0, pid=4243, memory_mib=100, kind="mps")
    await asyncio.to_thread(mig.partition, root, 1, ["1g.10gb"] * 2)
    slices = sorted(await instances(reader))
    processes.add(root, 1, pid=4244, memory_mib=700, sm_percent=50, gi=slices[1], ci=0)
    first, second = (gpu.uuid for gpu in (await reader.inventory()).accelerators)
    found = {one.pid: one for one in await reader.processes()}
    assert {pid: (one.uuid, one.kind, one.memory_mib) for pid, one in found.items()} == {
        4242: (first, ProcessKind.COMPUTE, 300),
        4243: (first, ProcessKind.MPS, 100),
        4244: (second, ProcessKind.COMPUTE, 700),
    }
    assert (found[4242].sm_percent, found[4243].sm_percent, found[4244].sm_percent) == (25, 0, None)
    assert (found[4244].gpu_instance, found[4244].compute_instance) == (slices[1], 0)
    assert found[4242].gpu_instance is None
    readings = await until(
        reader, lambda rows: any(one.values.get("gpm_1") for one in rows if one.gpu_instance == slices[1])
    )
    used = {one.gpu_instance: one.values["memory_used_mib"] for one in readings if one.uuid == second}
    assert used == {None: 700, slices[0]: 0, slices[1]: 700}
    processes.remove(root, 0, 4242)
    assert {one.pid for one in await reader.processes()} == {4243, 4244}


async def test_a_gpu_has_two_seconds_for_its_values(sim_root, monkeypatch) -> None:
    """As docs/how-to/export-metrics.md says. What comes of one that needs more is tested with deadlines that pass."""
    asked: list[tuple[str, int | None, float]] = []
    wait = ChildProcess._next

    async def noted(self, number: int, op: str, gpu: int | None, limit: float):
        asked.append((op, gpu, limit))
        return await wait(self, number, op, gpu, PATIENCE)  # a busy machine may need longer

    monkeypatch.setattr(ChildProcess, "_next", noted)
    reader = open_reader(driver_root=sim_root("l4", gpus=2))
    try:
        await reader.readings()  # the first may have to wake the GPU up
        asked.clear()
        assert len(await reader.readings()) == 2
    finally:
        await reader.close()
    assert [one for one in asked if one[0] == "readings"] == [("readings", 0, 2.0), ("readings", 1, 2.0)]
