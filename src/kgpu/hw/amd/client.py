"""``AmdReader``: the hardware port over the files of the driver ``amdgpu``.

Nothing is loaded into this process: the driver shows GPUs, partitions, errors and telemetry as files. Each GPU is read
in a lane of its own with a deadline (``lanes.py``), so that a file that hangs is a finding about one GPU.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterator
from pathlib import Path

from kgpu.base.errors import HwError
from kgpu.formats.names import AMD
from kgpu.hw import roots
from kgpu.hw.amd import facts as judge
from kgpu.hw.amd import kfd
from kgpu.hw.amd.gather import AmdGpuFacts, gather
from kgpu.hw.amd.kfd import NodeScan, NoDriverError
from kgpu.hw.lanes import HungError, Lane
from kgpu.hw.port import (
    Accelerator,
    EventKind,
    HardwareEvent,
    HardwareFinding,
    Inventory,
    Link,
    Problem,
    Process,
    Reading,
    TopologyLevel,
)
from kgpu.hw.subscription import Subscription, Subscriptions

MIB = 1 << 20


class AmdReader:
    """Implements ``kgpu.hw.port.Reader``. ``deadline`` is seconds for each GPU, ``poll`` between looks for changes."""

    def __init__(self, *, driver_root: Path, deadline: float = 2.0, poll: float = 1.0) -> None:
        self._sys = roots.sys_root(str(driver_root))
        self._deadline = deadline
        self._poll = poll
        self._node = Lane(deadline)
        self._lanes: dict[str, Lane] = {}
        self._scan: NodeScan | None = None
        self._known: dict[str, Accelerator] = {}
        self._facts: dict[str, AmdGpuFacts] = {}
        self._errors: dict[str, tuple[int, int]] = {}
        self._last: Inventory | None = None
        self._types: tuple[NodeScan, dict[tuple[str, str], int]] | None = None
        self._subscriptions = Subscriptions()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    async def inventory(self) -> Inventory:
        """Enumerate now. Raises HwError when there is no driver, or nothing of it can be read."""
        self._check_open()
        scan, trouble = await self._look()
        buses = tuple(sorted({*scan.buses, *self._known}))
        gpus = await asyncio.gather(*(self._gpu(bus, index, scan) for index, bus in enumerate(buses)))
        inventory = Inventory(
            vendor=AMD, driver_version=scan.driver_version, accelerators=tuple(gpus),
            library_version=scan.source_version, findings=trouble,
        )  # fmt: skip
        self._known.update({gpu.uuid: gpu for gpu in _answering(inventory)})
        self._tell(inventory)
        return inventory

    async def links(self) -> tuple[Link, ...]:
        """Every pair of GPUs that answer and have a link in the KFD's topology."""
        inventory = await self.inventory()
        assert self._scan is not None, "an inventory has just been made of it"
        if self._types is None or self._types[0] != self._scan:
            try:
                types = await self._node.ask(_link_types, self._sys, self._scan, dict(self._facts))
            except HungError:
                return ()
            self._types = (self._scan, types)
        found = self._types[1]
        pairs = itertools.combinations(_answering(inventory), 2)
        return tuple(_link(a, b, found[a.uuid, b.uuid]) for a, b in pairs if (a.uuid, b.uuid) in found)

    async def readings(self, keys: Collection[str] | None = None) -> tuple[Reading, ...]:
        """Telemetry of every GPU that answers."""
        del keys
        inventory = await self.inventory()
        asked = await asyncio.gather(*(self._reading(gpu.uuid) for gpu in _answering(inventory)))
        return tuple(reading for reading in asked if reading is not None)

    async def processes(self) -> tuple[Process, ...]:
        """Who has memory of the GPUs that answer."""
        inventory = await self.inventory()
        answering = {gpu.uuid for gpu in _answering(inventory)}
        assert self._scan is not None, "an inventory has just been made of it"
        owners = {
            node.gpu_id: (gpu.uuid, position if gpu.partitions else None)
            for gpu in inventory.accelerators
            if gpu.uuid in self._facts
            for position, node in enumerate(judge.nodes_of(self._facts[gpu.uuid], self._scan))
        }
        try:
            rows = await self._node.ask(lambda: list(kfd.memory_by_process(self._sys)))
        except HungError:
            return ()
        found = ((pid, *owners[number], size) for pid, number, size in rows if number in owners)
        return tuple(
            Process(uuid=uuid, pid=pid, memory_mib=size // MIB, gpu_instance=part)
            for pid, uuid, part, size in sorted(found, key=lambda row: (row[1], row[0]))
            if uuid in answering
        )

    def events(self) -> Subscription:
        """Events from now on; the driver is looked at once in ``poll`` seconds while anybody listens."""
        self._check_open()
        subscription = self._subscriptions.add()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="amd-events")
        return subscription

    async def close(self) -> None:
        """End every subscription."""
        self._closed = True
        self._subscriptions.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _look(self) -> tuple[NodeScan, tuple[HardwareFinding, ...]]:
        """The node now; as it was before, with a finding, while that can't be read."""
        try:
            self._scan = await self._node.ask(kfd.scan, self._sys)
        except NoDriverError as error:
            raise _no_driver(str(error)) from error
        except HungError as error:
            what, expected = f"reading {self._sys}/{kfd.KFD} did not end in time", "an answer of the kernel"
            remedy = "look at dmesg for amdgpu and kfd; reboot the machine if it stays so"
            if self._scan is None:
                raise HwError(what, expected, remedy) from error
            return self._scan, (
                HardwareFinding(subject="", problem=Problem.HUNG, what=what, expected=expected, remedy=remedy),
            )
        return self._scan, ()

    async def _gpu(self, bus: str, index: int, scan: NodeScan) -> Accelerator:
        before = self._known.get(bus)
        if bus not in scan.buses:
            return judge.silent(bus, index, before, Problem.MISSING)
        try:
            facts = await self._lane(bus).ask(gather, self._sys, bus)
        except HungError:
            return judge.silent(bus, index, before, Problem.HUNG, "its files")
        if not facts.lost:
            self._facts[bus] = facts
            self._count(facts)
        return judge.accelerator(index, facts, scan, before)

    async def _reading(self, bus: str) -> Reading | None:
        from kgpu.hw.amd import telemetry  # its tables are for those who measure

        try:
            return await self._lane(bus).ask(telemetry.read, self._sys, bus)
        except HungError:
            return None

    def _lane(self, bus: str) -> Lane:
        return self._lanes.setdefault(bus, Lane(self._deadline))

    def _count(self, facts: AmdGpuFacts) -> None:
        """Tell of memory errors that are new since the last look; the first look tells of none."""
        now = facts.errors()
        if now is None:
            return
        before = self._errors.get(facts.bus)
        self._errors[facts.bus] = now
        for kind, count in (
            (EventKind.DOUBLE_BIT_ECC, now[0] - before[0] if before else 0),
            (EventKind.SINGLE_BIT_ECC, now[1] - before[1] if before else 0),
        ):
            if count > 0:
                self._subscriptions.publish(HardwareEvent(kind=kind, uuid=facts.bus, code=count))

    def _tell(self, inventory: Inventory) -> None:
        before, self._last = self._last, inventory
        if before is None or before == inventory:
            return
        parted = {gpu.uuid: gpu.partitions for gpu in before.accelerators}
        for gpu in inventory.accelerators:
            if gpu.partitions != parted.get(gpu.uuid, ()):
                self._subscriptions.publish(HardwareEvent(kind=EventKind.MIG_CHANGE, uuid=gpu.uuid))
        self._subscriptions.publish(HardwareEvent(kind=EventKind.INVENTORY))

    async def _watch(self) -> None:
        there = True
        while self._subscriptions:
            try:
                await self.inventory()
            except HwError:
                if there:
                    self._subscriptions.publish(HardwareEvent(kind=EventKind.INVENTORY))
                there = False
            else:
                if not there:
                    self._subscriptions.publish(HardwareEvent(kind=EventKind.INVENTORY))
                there = True
            await asyncio.sleep(self._poll)

    def _check_open(self) -> None:
        if self._closed:
            raise HwError("the hardware reader is closed", "a reader that is in use", "open a new one")


def _answering(inventory: Inventory) -> Iterator[Accelerator]:
    mute = {Problem.LOST, Problem.HUNG, Problem.MISSING}
    return (gpu for gpu in inventory.accelerators if not any(row.problem in mute for row in gpu.findings))


def _link(a: Accelerator, b: Accelerator, kind: int) -> Link:
    near = a.numa_node is not None and a.numa_node == b.numa_node
    level = TopologyLevel.NODE if near else TopologyLevel.SYSTEM
    return Link(a=a.uuid, b=b.uuid, level=level, lanes=int(kind == kfd.XGMI))


def _link_types(sys: str, scan: NodeScan, facts: dict[str, AmdGpuFacts]) -> dict[tuple[str, str], int]:
    """The types of links between GPUs, by both addresses in either order. If the directions differ, XGMI wins."""
    first = {bus: nodes[0] for bus, row in facts.items() if (nodes := judge.nodes_of(row, scan))}
    by_number = {node.number: bus for bus, node in first.items()}
    found: dict[tuple[str, str], int] = {}
    for bus, node in first.items():
        for number, kind in kfd.links(sys, node).items():
            other = by_number.get(number)
            if other is not None and other != bus and found.get((bus, other)) != kfd.XGMI:
                found[bus, other] = found[other, bus] = kind
    return found


def _no_driver(path: str) -> HwError:
    if kfd.KFD in path:
        return HwError(
            "the driver amdgpu is loaded without the KFD, so programs can't compute", path,
            "load a kernel or driver with HSA_AMD (amdgpu-dkms); a virtual machine needs the GPU passed through",
        )  # fmt: skip
    return HwError("the driver amdgpu is not loaded", path, "load it (modprobe amdgpu), or install amdgpu-dkms")
