"""The port's Reader for vendors whose drivers show their cards as files: all but what the files are.

A vendor's reader says how the node is scanned, how a card is read, and what follows: the abstract methods. Each card
is read in a lane of its own with a deadline (``lanes.py``), so that one that hangs is a finding about one card.
"""

from __future__ import annotations

import abc
import asyncio
import itertools
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from kgpu.base.errors import DriverFault, HwError
from kgpu.formats.simulated import state_file
from kgpu.hw import roots
from kgpu.hw.lanes import HungError, Lane
from kgpu.hw.port import (
    Accelerator,
    Activity,
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

MOST_FILES: Final = 4096
"""Open files of one process, and entries of one folder, that are looked at."""
Scan = TypeVar("Scan", bound="CardScan")
Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True)
class CardScan:
    """What is there: the cards' PCI addresses, versions, and what is wrong with the node as a whole."""

    buses: tuple[str, ...]
    driver_version: str = ""
    library_version: str = ""
    findings: tuple[HardwareFinding, ...] = ()


class FileReader(abc.ABC, Generic[Scan, Facts]):
    """Implements ``kgpu.hw.port.Reader``. ``deadline`` is seconds for each card, ``poll`` between looks for changes."""

    VENDOR = ""
    MODULES = "the driver"
    """Whom the kernel log is to be searched for."""

    def __init__(self, *, driver_root: Path, deadline: float = 2.0, poll: float = 1.0) -> None:
        self.root = str(driver_root)
        self.sys = roots.sys_root(self.root)
        self.deadline = deadline
        self._poll = poll
        self.node = Lane(deadline)
        """For what is about the node as a whole."""
        self._lanes: dict[str, Lane] = {}
        self._scanned: Scan | None = None
        self._known: dict[str, Accelerator] = {}
        self._errors: dict[str, tuple[int, int]] = {}
        self._last: Inventory | None = None
        self._subscriptions = Subscriptions()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    @abc.abstractmethod
    def scan(self) -> Scan:
        """What is there now; may block for good. Raises HwError when there is no driver."""

    @abc.abstractmethod
    async def gather(self, bus: str) -> Facts:
        """Read one card, by ``asked``. Raises HungError."""

    @abc.abstractmethod
    def judge(self, bus: str, index: int, facts: Facts, before: Accelerator | None) -> Accelerator:
        """What follows from it."""

    @abc.abstractmethod
    def silent(self, bus: str, index: int, before: Accelerator | None, problem: Problem) -> Accelerator:
        """A card that says nothing now: what was known of it, and why."""

    @abc.abstractmethod
    def errors(self, facts: Facts) -> tuple[int, int] | None:
        """Uncorrectable and correctable memory errors; None: none are counted."""

    @abc.abstractmethod
    async def read(self, gpu: Accelerator) -> Reading:
        """One card's telemetry. Raises HungError."""

    def changes(self, before: Inventory, now: Inventory) -> Iterator[HardwareEvent]:
        """Events of a vendor's own for what has changed."""
        del before, now
        return iter(())

    @property
    def looking(self) -> str:
        """What hangs when the node can't be scanned."""
        return f"looking for cards in {self.sys}"

    @property
    def scanned(self) -> Scan:
        """The last look, of which there was one before any card is judged."""
        assert self._scanned is not None
        return self._scanned

    async def inventory(self) -> Inventory:
        """Enumerate now. Raises HwError when there is no driver, or nothing of it can be read."""
        self._check_open()
        scan, trouble = await self._look()
        buses = tuple(sorted({*scan.buses, *self._known}))
        gpus = await asyncio.gather(*(self._card(bus, index, scan) for index, bus in enumerate(buses)))
        inventory = Inventory(
            vendor=self.VENDOR, driver_version=scan.driver_version, accelerators=tuple(gpus),
            library_version=scan.library_version, findings=(*scan.findings, *trouble),
        )  # fmt: skip
        self._known.update({gpu.pci_bus_id: gpu for gpu in answering(inventory)})
        before, self._last = self._last, inventory
        if before is not None and before != inventory:
            for event in (*self.changes(before, inventory), HardwareEvent(kind=EventKind.INVENTORY)):
                self._subscriptions.publish(event)
        return inventory

    async def links(self) -> tuple[Link, ...]:
        """Every pair of cards that answer, by their NUMA nodes."""
        inventory = await self.inventory()
        return tuple(_link(a, b) for a, b in itertools.combinations(answering(inventory), 2))

    async def readings(self, keys: Collection[str] | None = None) -> tuple[Reading, ...]:
        """Telemetry of every card that answers."""
        del keys
        inventory = await self.inventory()
        asked = await asyncio.gather(*(self._reading(gpu) for gpu in answering(inventory)))
        return tuple(reading for reading in asked if reading is not None)

    async def processes(self) -> tuple[Process, ...]:
        """Who has a device node of the cards that answer open; how much memory it holds is not told."""
        inventory = await self.inventory()
        owners = {path: gpu for gpu in answering(inventory) for path in gpu.device_nodes}
        try:
            rows = await self.node.ask(lambda: sorted(set(_open_files(_proc(self.root), owners.keys()))))
        except HungError:
            return ()
        found = dict.fromkeys((owners[path].index, owners[path].uuid, pid) for pid, path in rows)
        return tuple(Process(uuid=uuid, pid=pid) for _, uuid, pid in sorted(found))

    async def activity(self, keys: Collection[str]) -> tuple[Activity, ...]:
        """Nothing: files show what is now, and keep no record."""
        del keys
        self._check_open()
        return ()

    def events(self) -> Subscription:
        """Events from now on; the driver is looked at once in ``poll`` seconds while anybody listens."""
        self._check_open()
        subscription = self._subscriptions.add()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name=f"{self.VENDOR}-events")
        return subscription

    async def close(self) -> None:
        """End every subscription."""
        self._closed = True
        self._subscriptions.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    def lane(self, bus: str) -> Lane:
        """The lane of one card."""
        return self._lanes.setdefault(bus, Lane(self.deadline))

    async def _look(self) -> tuple[Scan, tuple[HardwareFinding, ...]]:
        """The node now; as it was before, with a finding, while that can't be read."""
        try:
            self._scanned = await self.node.ask(self.scan)
        except HungError as error:
            what, expected = f"{self.looking} did not end in time", "an answer of the kernel"
            remedy = f"look at dmesg for {self.MODULES}; reboot the machine if it stays so"
            if self._scanned is None:
                raise HwError(what, expected, remedy, fault=DriverFault.HUNG) from error
            return self._scanned, (
                HardwareFinding(subject="", problem=Problem.HUNG, what=what, expected=expected, remedy=remedy),
            )
        return self._scanned, ()

    async def _card(self, bus: str, index: int, scan: Scan) -> Accelerator:
        before = self._known.get(bus)
        if bus not in scan.buses:
            return self.silent(bus, index, before, Problem.MISSING)
        try:
            facts = await self.gather(bus)
        except HungError:
            return self.silent(bus, index, before, Problem.HUNG)
        found = self.judge(bus, index, facts, before)
        self._count(bus, found.uuid, self.errors(facts))
        return found

    async def _reading(self, gpu: Accelerator) -> Reading | None:
        try:
            return await self.read(gpu)
        except HungError:
            return None

    def _count(self, bus: str, uuid: str, now: tuple[int, int] | None) -> None:
        """Tell of memory errors that are new since the last look; the first look tells of none."""
        if now is None:
            return
        before = self._errors.get(bus, now)
        self._errors[bus] = now
        kinds = (EventKind.DOUBLE_BIT_ECC, EventKind.SINGLE_BIT_ECC)
        for kind, count, known in zip(kinds, now, before, strict=True):
            if count > known:
                self._subscriptions.publish(HardwareEvent(kind=kind, uuid=uuid, code=count - known))

    async def _watch(self) -> None:
        there = True
        while self._subscriptions:
            before = there
            try:
                await self.inventory()
            except HwError:
                there = False
            else:
                there = True
            if there != before:
                self._subscriptions.publish(HardwareEvent(kind=EventKind.INVENTORY))
            await asyncio.sleep(self._poll)

    def _check_open(self) -> None:
        if self._closed:
            raise HwError("the hardware reader is closed", "a reader that is in use", "open a new one")


def answering(inventory: Inventory) -> Iterator[Accelerator]:
    """The cards that say something."""
    mute = {Problem.LOST, Problem.HUNG, Problem.MISSING}
    return (gpu for gpu in inventory.accelerators if not any(row.problem in mute for row in gpu.findings))


def _link(a: Accelerator, b: Accelerator) -> Link:
    near = a.numa_node is not None and a.numa_node == b.numa_node
    return Link(a=a.uuid, b=b.uuid, level=TopologyLevel.NODE if near else TopologyLevel.SYSTEM)


def _proc(root: str) -> str:
    """A simulated root has its own processes; for every other they are those that this process sees."""
    return os.path.join(root, "proc") if state_file(root) else "/proc"


def _open_files(proc: str, wanted: Collection[str]) -> Iterator[tuple[int, str]]:
    """(pid, path) of every process that has one of these files open, as far as this process may look."""
    for pid in _names(proc):
        if not (pid.isdecimal() and len(pid) <= 10):
            continue
        for number in _names(f"{proc}/{pid}/fd"):
            try:
                path = os.readlink(f"{proc}/{pid}/fd/{number}")
            except OSError:
                continue
            if path in wanted:
                yield int(pid), path


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)[:MOST_FILES]
    except OSError:
        return []
