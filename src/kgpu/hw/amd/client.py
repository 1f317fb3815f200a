"""``AmdReader``: the hardware port over the files of the driver ``amdgpu``.

Nothing is loaded into this process: the driver shows GPUs, partitions, errors and telemetry as files. Each GPU is read
in a lane of its own with a deadline (``file_reader.py``), so that a file that hangs is a finding about one GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from kgpu.base.errors import DriverFault, HwError
from kgpu.formats.names import AMD
from kgpu.hw.amd import facts as judge
from kgpu.hw.amd import kfd
from kgpu.hw.amd.gather import AmdGpuFacts, gather
from kgpu.hw.amd.kfd import NodeScan, NoDriverError
from kgpu.hw.file_reader import FileReader, answering
from kgpu.hw.lanes import HungError
from kgpu.hw.port import (
    Accelerator,
    EventKind,
    HardwareEvent,
    Inventory,
    Link,
    Problem,
    Process,
    Reading,
    TopologyLevel,
)

MIB = 1 << 20


class AmdReader(FileReader[NodeScan, AmdGpuFacts]):
    """Implements ``kgpu.hw.port.Reader``. ``deadline`` is seconds for each GPU, ``poll`` between looks for changes."""

    VENDOR = AMD
    MODULES = "amdgpu and kfd"

    def __init__(self, *, driver_root: Path, deadline: float = 2.0, poll: float = 1.0) -> None:
        super().__init__(driver_root=driver_root, deadline=deadline, poll=poll)
        self._facts: dict[str, AmdGpuFacts] = {}
        self._types: tuple[NodeScan, dict[tuple[str, str], int]] | None = None

    @property
    def looking(self) -> str:
        """What hangs when the node can't be scanned."""
        return f"reading {self.sys}/{kfd.KFD}"

    def scan(self) -> NodeScan:
        """The GPUs that the driver has, and the KFD's nodes of them. Raises HwError without either."""
        try:
            return kfd.scan(self.sys)
        except NoDriverError as error:
            raise _no_driver(str(error)) from error

    async def gather(self, bus: str) -> AmdGpuFacts:
        """Read one GPU. Raises HungError."""
        facts = await self.lane(bus).ask(gather, self.sys, bus)
        if not facts.lost:
            self._facts[bus] = facts
        return facts

    def judge(self, bus: str, index: int, facts: AmdGpuFacts, before: Accelerator | None) -> Accelerator:
        """What follows from it."""
        del bus
        return judge.accelerator(index, facts, self.scanned, before)

    def silent(self, bus: str, index: int, before: Accelerator | None, problem: Problem) -> Accelerator:
        """What was known of the GPU, and why it says nothing."""
        return judge.silent(bus, index, before, problem, "its files" if problem is Problem.HUNG else "")

    def errors(self, facts: AmdGpuFacts) -> tuple[int, int] | None:
        """Those of all blocks; a GPU that is lost counts none."""
        return None if facts.lost else facts.errors()

    def changes(self, before: Inventory, now: Inventory) -> Iterator[HardwareEvent]:
        """GPUs that are parted otherwise."""
        parted = {gpu.uuid: gpu.partitions for gpu in before.accelerators}
        for gpu in now.accelerators:
            if gpu.partitions != parted.get(gpu.uuid, ()):
                yield HardwareEvent(kind=EventKind.MIG_CHANGE, uuid=gpu.uuid)

    async def read(self, gpu: Accelerator) -> Reading:
        """One GPU's telemetry. Raises HungError."""
        from kgpu.hw.amd import telemetry  # its tables are for those who measure

        return await self.lane(gpu.uuid).ask(telemetry.read, self.sys, gpu.uuid)

    async def links(self) -> tuple[Link, ...]:
        """Every pair of GPUs that answer and have a link of XGMI or PCIe in the KFD's topology."""
        inventory = await self.inventory()
        scan = self.scanned
        if self._types is None or self._types[0] != scan:
            try:
                types = await self.node.ask(_link_types, self.sys, scan, dict(self._facts))
            except HungError:
                return ()
            self._types = (scan, types)
        found = self._types[1]
        pairs = itertools.combinations(answering(inventory), 2)
        return tuple(_link(a, b, found[a.uuid, b.uuid]) for a, b in pairs if (a.uuid, b.uuid) in found)

    async def processes(self) -> tuple[Process, ...]:
        """Who has memory of the GPUs that answer."""
        inventory = await self.inventory()
        listed = {gpu.uuid for gpu in answering(inventory)}
        owners = {
            node.gpu_id: (gpu.uuid, position if gpu.partitions else None)
            for gpu in inventory.accelerators
            if gpu.uuid in self._facts
            for position, node in enumerate(judge.nodes_of(self._facts[gpu.uuid], self.scanned))
        }
        try:
            rows = await self.node.ask(lambda: list(kfd.memory_by_process(self.sys)))
        except HungError:
            return ()
        found = ((pid, *owners[number], size) for pid, number, size in rows if number in owners)
        return tuple(
            Process(uuid=uuid, pid=pid, memory_mib=size // MIB, gpu_instance=part)
            for pid, uuid, part, size in sorted(found, key=lambda row: (row[1], row[0]))
            if uuid in listed
        )


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
            if kind in kfd.KNOWN and other is not None and other != bus and found.get((bus, other)) != kfd.XGMI:
                found[bus, other] = found[other, bus] = kind
    return found


def _no_driver(path: str) -> HwError:
    if kfd.KFD in path:
        return HwError(
            "the driver amdgpu is loaded without the KFD, so programs can't compute", path,
            "load a kernel or driver with HSA_AMD (amdgpu-dkms); a virtual machine needs the GPU passed through",
            fault=DriverFault.INCOMPLETE,
        )  # fmt: skip
    return HwError(
        "the driver amdgpu is not loaded", path, "load it (modprobe amdgpu), or install amdgpu-dkms",
        fault=DriverFault.NOT_LOADED,
    )  # fmt: skip
