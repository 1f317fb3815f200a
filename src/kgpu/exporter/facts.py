"""Readings that an inventory has already: identities, versions, memory of GPU instances, the recovery action.

With it and ``hw.port.Reading`` the exporter has values without asking the driver anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kgpu.exporter.labels import long_bus_id
from kgpu.exporter.model import PlanInput, Unit, Value
from kgpu.hw import port
from kgpu.hw.port import Accelerator, Inventory, Problem
from kgpu.hw.recovery import RECOVERY_CODES

_SILENT: Final = frozenset({Problem.LOST, Problem.HUNG, Problem.CRASHED, Problem.MISSING})


def answered(readings: Iterable[port.Reading]) -> frozenset[Unit]:
    """The GPUs that have answered with a reading."""
    return frozenset(Unit(reading.uuid) for reading in readings if reading.whole)


def readable(gpu: Accelerator, look: PlanInput) -> bool:
    """Whether the GPU can be read now, whatever its health: one that waits for a reset has values too."""
    gone = any(finding.problem in _SILENT for finding in gpu.findings)
    return look.answers and not gone and Unit(gpu.uuid) in look.now.answered


def gather(inventory: Inventory, readings: Sequence[port.Reading]) -> dict[Unit, dict[str, Value]]:
    """Values by unit, from the inventory and the telemetry; telemetry of unknown GPUs is left out."""
    values = {Unit(gpu.uuid): facts_of(gpu, inventory) for gpu in inventory.accelerators}
    for unit in values.keys() - answered(readings):
        values[unit].pop("recovery_action", None)  # nobody knows what a GPU that does not answer needs now
    for gpu in inventory.accelerators:
        values |= instance_facts(gpu)
    for reading in readings:
        if Unit(reading.uuid) in values:
            values.setdefault(Unit(reading.uuid, reading.gpu_instance, reading.link), {}).update(reading.values)
    return values


def failures(inventory: Inventory, readings: Iterable[port.Reading]) -> dict[Unit, Mapping[str, str]]:
    """What could not be read, by unit, with a word for the reason."""
    known = {gpu.uuid for gpu in inventory.accelerators}
    return {
        Unit(reading.uuid, reading.gpu_instance, reading.link): reading.failures
        for reading in readings
        if reading.failures and reading.uuid in known
    }


def facts_of(gpu: Accelerator, inventory: Inventory) -> dict[str, Value]:
    """Readings that do not change while the GPU works, without unknown ones."""
    values: dict[str, Value] = {
        "uuid": gpu.uuid, "name": gpu.name, "index": gpu.index, "minor": gpu.minor, "mig_mode": int(gpu.mig_enabled),
    }  # fmt: skip
    texts: Mapping[str, str] = {
        "brand": gpu.brand, "serial": gpu.serial, "driver_version": inventory.driver_version,
        "nvml_version": inventory.library_version, "fabric_cluster": gpu.fabric_cluster,
        "pci_bus_id": long_bus_id(gpu.pci_bus_id),
    }  # fmt: skip
    values |= {name: text for name, text in texts.items() if text}
    if gpu.fabric_cluster:
        values["fabric_clique"] = gpu.fabric_clique
    if gpu.compute_capability is not None:
        values["compute_capability"] = gpu.compute_capability[0] * 65536 + gpu.compute_capability[1]
    if gpu.memory_mib is not None:
        values["memory_total_mib"] = gpu.memory_mib
    if gpu.recovery_action in RECOVERY_CODES:
        values["recovery_action"] = RECOVERY_CODES[gpu.recovery_action]
    return values


def instance_facts(gpu: Accelerator) -> dict[Unit, dict[str, Value]]:
    """The memory of each GPU instance, which its compute instances share."""
    return {
        Unit(gpu.uuid, partition.gpu_instance): {"memory_total_mib": partition.memory_mib}
        for partition in gpu.partitions
        if partition.memory_mib
    }
