"""What an inventory and the hardware port's telemetry give the exporter without any other reading."""

from __future__ import annotations

from kgpu.exporter.facts import gather
from kgpu.exporter.model import Unit
from kgpu.hw.port import Reading
from tests.exporter.made import DRIVER, gpu, inventory, partition, uuid


def test_facts_and_telemetry_come_together():
    one = gpu(0, memory_mib=81559, compute_capability=(9, 0), serial="1", recovery_action="reset")
    readings = (Reading(uuid=uuid(0), values={"power_w": 70.5}), Reading(uuid="GPU-elsewhere", values={"power_w": 1.0}))
    values = gather(inventory(one), readings)
    assert set(values) == {Unit(uuid(0))}
    expected = {"power_w": 70.5, "driver_version": DRIVER, "memory_total_mib": 81559, "compute_capability": 589824,
                "serial": "1", "recovery_action": 1, "pci_bus_id": "00000000:1B:00.0"}  # fmt: skip
    assert expected.items() <= values[Unit(uuid(0))].items()


def test_what_is_not_known_is_absent():
    values = gather(inventory(gpu(0, recovery_action="unknown")), ())[Unit(uuid(0))]
    assert not {"memory_total_mib", "serial", "brand", "recovery_action", "compute_capability"} & set(values)


def test_a_gpu_that_does_not_answer_asks_for_nothing_that_is_known():
    values = gather(inventory(gpu(0), gpu(1)), (Reading(uuid=uuid(1)), Reading(uuid=uuid(0), gpu_instance=7)))
    assert [values[Unit(uuid(n))].get("recovery_action") for n in range(2)] == [None, 0]


def test_instances_have_their_memory():
    values = gather(inventory(gpu(0, partition(0, 7))), ())
    assert values[Unit(uuid(0), 7)] == {"memory_total_mib": 9728}
