"""The hardware port's fake reader, in memory: inventory, links, telemetry, events and faults are set by the caller.

For tests of whatever stands on the port. It keeps the port's promises as the real readers do and passes the same
contract tests (``tests/hw/contract.py``): faults become findings, changes become INVENTORY events, a driver that is
away is an HwError until it is back.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kgpu.base.errors import HwError
from kgpu.formats.names import NVIDIA
from kgpu.hw.port import (
    Accelerator,
    Activity,
    EventKind,
    HardwareEvent,
    HardwareFinding,
    Inventory,
    Link,
    Partition,
    Problem,
    Process,
    Reading,
    TopologyLevel,
    Value,
)
from kgpu.hw.subscription import Subscription, Subscriptions

# Problems with which a device can be neither measured nor placed in the topology.
SILENT = frozenset({Problem.LOST, Problem.HUNG, Problem.CRASHED, Problem.MISSING})


class FakeReader:
    """Implements ``kgpu.hw.port.Reader`` over values that a test sets."""

    def __init__(
        self,
        inventory: Inventory,
        *,
        links: Iterable[Link] | None = None,
        readings: Mapping[str, Mapping[str, Value]] | None = None,
        processes: Iterable[Process] = (),
    ) -> None:
        self._inventory = inventory
        self._links = None if links is None else tuple(links)
        self._readings: dict[tuple[str, int | None, int | None], Reading] = {}
        self.set_readings(Reading(uuid=uuid, values=values) for uuid, values in (readings or {}).items())
        self._processes = tuple(processes)
        self._activity: tuple[Activity, ...] = ()
        self._error: HwError | None = None
        self._subscriptions = Subscriptions()
        self._closed = False
        self.inventory_calls = 0

    async def inventory(self) -> Inventory:
        """What was last set, faults included."""
        self._check()
        self.inventory_calls += 1
        return self._inventory

    async def links(self) -> tuple[Link, ...]:
        """The given links between readable devices; without any given, every pair at level SYSTEM."""
        self._check()
        readable = [device.uuid for device in self._readable()]
        if self._links is None:
            return tuple(Link(a=a, b=b, level=TopologyLevel.SYSTEM) for a, b in itertools.combinations(readable, 2))
        return tuple(link for link in self._links if link.a in readable and link.b in readable)

    async def readings(self, keys: Collection[str] | None = None) -> tuple[Reading, ...]:
        """Telemetry of readable devices, empty where none was given; of instances and links where it was."""
        del keys
        self._check()
        readings: list[Reading] = []
        for device in self._readable():
            own = [reading for reading in self._readings.values() if reading.uuid == device.uuid]
            if not any(reading.whole for reading in own):
                own.append(Reading(uuid=device.uuid))
            readings += sorted(own, key=_place)
        return tuple(readings)

    async def processes(self) -> tuple[Process, ...]:
        """What was set, of readable devices."""
        self._check()
        readable = {device.uuid for device in self._readable()}
        return tuple(process for process in self._processes if process.uuid in readable)

    async def activity(self, keys: Collection[str]) -> tuple[Activity, ...]:
        """What was set since the call before, of readable devices."""
        del keys
        self._check()
        readable = {device.uuid for device in self._readable()}
        found, self._activity = self._activity, ()
        return tuple(one for one in found if one.uuid in readable)

    def events(self) -> Subscription:
        """Events from now on."""
        self._check_open()
        return self._subscriptions.add()

    async def close(self) -> None:
        """End every subscription."""
        self._closed = True
        self._subscriptions.close()

    # --- what a test does to the node ---

    def set_readings(self, readings: Iterable[Reading]) -> None:
        """Replace what was read of the same device, instance or link."""
        for reading in readings:
            self._readings[reading.uuid, reading.gpu_instance, reading.link] = reading

    def set_processes(self, processes: Iterable[Process]) -> None:
        """Replace everything that runs."""
        self._processes = tuple(processes)

    def set_activity(self, activity: Iterable[Activity]) -> None:
        """Replace what the next call tells."""
        self._activity = tuple(activity)

    def set_inventory(self, inventory: Inventory) -> None:
        """Replace everything, and announce it."""
        self._inventory = inventory
        self._subscriptions.publish(HardwareEvent(kind=EventKind.INVENTORY))

    def change(self, uuid: str, **fields: Any) -> None:
        """Set fields of one accelerator, and announce it."""
        if not any(device.uuid == uuid for device in self._inventory.accelerators):
            raise KeyError(uuid)
        changed = tuple(replace(a, **fields) if a.uuid == uuid else a for a in self._inventory.accelerators)
        self.set_inventory(replace(self._inventory, accelerators=changed))

    def set_partitions(self, uuid: str, partitions: Iterable[Partition]) -> None:
        """Enable MIG with these slices; a MIG_CHANGE event goes before the INVENTORY event, as the driver does it."""
        self._subscriptions.publish(HardwareEvent(kind=EventKind.MIG_CHANGE, uuid=uuid))
        self.change(uuid, mig_enabled=True, mig_pending=True, partitions=tuple(partitions))

    def fail(self, uuid: str, problem: Problem, what: str = "injected") -> None:
        """Give one accelerator a finding in place of its others."""
        finding = HardwareFinding(
            subject=uuid, problem=problem, what=what, expected="a healthy device", remedy="heal it"
        )
        self.change(uuid, findings=(finding,))

    def heal(self, uuid: str) -> None:
        """Take one accelerator's findings away."""
        self.change(uuid, findings=(), recovery_action="none")

    def report(self, event: HardwareEvent) -> None:
        """Deliver one driver event."""
        self._subscriptions.publish(event)

    def set_down(self, error: HwError | None) -> None:
        """Make every call fail with this error, or work again."""
        self._error = error
        self._subscriptions.publish(HardwareEvent(kind=EventKind.INVENTORY))

    def _readable(self) -> list[Accelerator]:
        return [a for a in self._inventory.accelerators if not any(f.problem in SILENT for f in a.findings)]

    def _check(self) -> None:
        self._check_open()
        if self._error is not None:
            raise self._error

    def _check_open(self) -> None:
        if self._closed:
            raise HwError("the hardware reader is closed", "a reader that is in use", "open a new one")


def _place(reading: Reading) -> tuple[int, int]:
    """The device itself, its instances, its links."""
    link = -1 if reading.link is None else reading.link
    return (link, -1 if reading.gpu_instance is None else reading.gpu_instance)


def sample_inventory(
    count: int = 8,
    *,
    name: str = "NVIDIA H100 80GB HBM3",
    memory_mib: int = 81559,
    compute_capability: tuple[int, int] = (9, 0),
    numa_nodes: int = 2,
    driver_version: str = "550.54.15",
    cuda_version: tuple[int, int] = (12, 4),
) -> Inventory:
    """A node of equal NVIDIA GPUs with deterministic uuids, spread evenly over the NUMA nodes."""
    accelerators = tuple(
        Accelerator(
            vendor=NVIDIA,
            index=index,
            uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'kgpu-{name}-{index}')}",
            name=name,
            minor=index,
            serial=f"{1650000000000 + index}",
            pci_bus_id=f"0000:{index + 7:02x}:00.0",
            pci_class=0x030200,
            pci_device_id=0x233010DE,
            numa_node=index * numa_nodes // count if numa_nodes else None,
            memory_mib=memory_mib,
            compute_capability=compute_capability,
            mig_capable=compute_capability >= (8, 0),
            device_nodes=(f"/dev/nvidia{index}",),
        )
        for index in range(count)
    )
    return Inventory(
        vendor=NVIDIA,
        driver_version=driver_version,
        accelerators=accelerators,
        cuda_version=cuda_version,
        library_version=f"12.{driver_version}",
    )


def sample_partitions(gpu: Accelerator, profile: str = "1g.10gb", count: int = 7) -> tuple[Partition, ...]:
    """Equal slices of one GPU as ``sample_inventory`` makes it; 1g memory, placements 0 to ``count - 1``."""
    return tuple(
        Partition(
            uuid=f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu.uuid}-{profile}-{position}')}",
            index=f"{gpu.index}:{position}",
            parent_uuid=gpu.uuid,
            profile=profile,
            gpu_instance=7 + position,
            compute_instance=0,
            placement_start=position,
            placement_size=1,
            memory_mib=9856,
            multiprocessors=16,
            slices_gi=1,
            slices_ci=1,
            copy_engines=1,
            decoders=1,
            jpeg_engines=1,
            device_nodes=(
                *gpu.device_nodes,
                f"/dev/nvidia-caps/nvidia-cap{3 + 9 * (7 + position) + 135 * gpu.minor}",
                f"/dev/nvidia-caps/nvidia-cap{4 + 9 * (7 + position) + 135 * gpu.minor}",
            ),
        )
        for position in range(count)
    )
