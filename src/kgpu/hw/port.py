"""The hardware port: accelerators, partitions, links and events in the field's terms, for every vendor alike.

A ``Reader`` never raises for one broken device: what it could not read becomes a ``HardwareFinding`` about that device,
and the others stay usable. Only "nothing can be read at all" (no driver, no library) is an ``HwError``. Every call has
a deadline, because a driver call can hang for good.

The in-memory fake is ``kgpu.hw.fake_reader``; both it and the real readers pass ``tests/hw/contract.py``.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec

from kgpu.base.errors import HwError


class DriverReleasedError(HwError):
    """The process has let go of the driver for a while, as a GPU is being reset. No failure: what was read last still
    holds, nothing is read or said anew, and the reader's events go on by themselves.
    """

    REASON = "DriverReleased"

    def __init__(self, why: str) -> None:
        super().__init__(why, "the driver within minutes", "nothing: it is opened again by itself")


class DriverExchangedError(DriverReleasedError):
    """The same while the driver itself is exchanged for another: what was found with the one before says nothing about
    the next.
    """


class Problem(enum.StrEnum):
    """What kind of trouble a finding is about."""

    LOST = "lost"  # fallen off the bus: only a reset or reboot brings it back
    HUNG = "hung"  # a driver call did not answer in time
    CRASHED = "crashed"  # the driver library killed the process that called it
    UNREADABLE = "unreadable"  # a reading failed although the device answers
    NEEDS_RESET = "needs-reset"  # the driver asks for a reset or reboot
    MISSING = "missing"  # seen before, not enumerated any more
    UNPROVEN = "unproven"  # a test on it failed, or has not passed yet


class TopologyLevel(enum.IntEnum):
    """Nearest common PCI ancestor of two accelerators; values as NVML's topology levels."""

    INTERNAL = 0  # same board
    SINGLE = 10  # one PCIe switch
    MULTIPLE = 20  # several PCIe switches, one host bridge
    HOSTBRIDGE = 30
    NODE = 40  # same NUMA node
    SYSTEM = 50  # across CPUs


class EventKind(enum.StrEnum):
    """What an event reports. For XID, ``HardwareEvent.code`` is the Xid number."""

    XID = "xid"
    SINGLE_BIT_ECC = "single-bit-ecc"
    DOUBLE_BIT_ECC = "double-bit-ecc"
    MIG_CHANGE = "mig-change"
    RECOVERY_ACTION = "recovery-action"
    INVENTORY = "inventory"  # devices or partitions came, went, or changed health: read the inventory again


class HardwareFinding(msgspec.Struct, frozen=True, kw_only=True, rename={"remedy": "todo"}):
    """Something wrong, with what was expected and what to do; ``subject`` is a device's uuid, "" for the node.

    ``gpu`` is the index of the GPU that ``what`` leaves unnamed, None where ``what`` is a sentence of its own.
    """

    subject: str
    problem: Problem
    what: str
    expected: str
    remedy: str
    gpu: int | None = None

    @property
    def sentence(self) -> str:
        """What is wrong, with the GPU's name, for those who do not name it themselves."""
        return self.what if self.gpu is None else f"GPU {self.gpu}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A hardware slice of an accelerator (NVIDIA: a MIG device, that is one compute instance; AMD: a partition, of
    which the first has the accelerator's own ``uuid``).

    ``index`` is ``"<gpu>:<position>"``. ``profile`` is the vendor's spelling, e.g. ``1g.10gb+me`` or ``1c.3g.40gb``.
    ``memory_mib`` and the engine counts are what the slice owns. ``device_nodes`` are absolute paths under the device
    root, the parent's first.
    """

    uuid: str
    index: str
    parent_uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    placement_start: int = 0
    placement_size: int = 0
    memory_mib: int = 0
    multiprocessors: int = 0
    slices_gi: int = 0
    slices_ci: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0
    device_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One physical accelerator as last read.

    ``vendor`` is a name of ``kgpu.hw.vendor``, ``index`` the driver's order, ``minor`` the number of its device node.
    ``pci_bus_id`` is ``0000:07:00.0`` (4-digit domain, lower case). ``pci_class`` is the 24-bit class, 0 when unknown.
    ``numa_node`` is None when unknown or negative. Memory is MiB. ``compute_capability`` is (major, minor).
    ``mode`` is how a vendor's driver parts it, e.g. ``spx_nps1`` or ``cpx_nps4``; "" where it can't be parted so.
    ``compute_units``, ``simds`` and ``target`` (90402 for gfx942) are AMD's; 0 when unknown. ``family`` is what AMD's
    programs call GPUs of such targets, "" when unknown.
    ``module_id`` is a Gaudi's place on its baseboard.
    ``findings`` are about this device; a device with a LOST, HUNG or MISSING finding keeps its last known facts,
    but for ``recovery_action``, which is unknown then.
    """

    vendor: str
    index: int
    uuid: str
    name: str
    minor: int = 0
    serial: str = ""
    pci_bus_id: str = ""
    pci_class: int = 0
    pci_device_id: int = 0
    numa_node: int | None = None
    memory_mib: int | None = None
    compute_capability: tuple[int, int] | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False
    mode: str = ""
    compute_units: int = 0
    simds: int = 0
    target: int = 0
    family: str = ""
    module_id: int | None = None
    partitions: tuple[Partition, ...] = ()
    fabric_cluster: str = ""  # cluster uuid of the NVLink fabric, "" when not attached or not completed
    fabric_clique: int = 0
    recovery_action: str = "none"  # none | reset | reboot | drain | drain-reset | imex | unknown
    brand: str = ""  # as images' requirements have it, e.g. tesla, geforce, nvidiartx; "" when the driver was not asked
    addressing_mode: str = ""  # HMM, ATS or None, in NVML's words; "" when the driver can't tell
    coherent: bool = False  # reaches system memory through the CPU's page tables (NVML: addressing mode ATS)
    device_nodes: tuple[str, ...] = ()
    findings: tuple[HardwareFinding, ...] = ()

    @property
    def part_simds(self) -> int:
        """The SIMDs of each of its partitions, 0 without any."""
        return self.simds // len(self.partitions) if self.partitions else 0

    @property
    def usable(self) -> bool:
        """True when nothing found says that work on this device would fail."""
        blocking = {Problem.LOST, Problem.HUNG, Problem.CRASHED, Problem.NEEDS_RESET, Problem.MISSING, Problem.UNPROVEN}
        return not any(finding.problem in blocking for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How two accelerators reach each other: PCI level, and active direct NVLink/xGMI lanes between them."""

    a: str  # uuid
    b: str  # uuid
    level: TopologyLevel
    lanes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything enumerable at one moment, in the driver's order. ``findings`` concern the node as a whole."""

    vendor: str
    driver_version: str
    accelerators: tuple[Accelerator, ...] = ()
    cuda_version: tuple[int, int] | None = None  # the newest CUDA that the driver serves
    library_version: str = ""
    findings: tuple[HardwareFinding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareEvent:
    """Something the driver reported. ``uuid`` is the physical device's, or None when the driver could not say which.

    ``gpu_instance``/``compute_instance`` are None when the event is about the whole device.
    """

    kind: EventKind
    uuid: str | None = None
    code: int = 0
    gpu_instance: int | None = None
    compute_instance: int | None = None


Value: TypeAlias = "float | str"
"""A reading's value: a number, or the text of an identity (``vbios_version``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Telemetry of one accelerator, of one of its GPU instances, or of one of its links.

    ``uuid`` is always the physical device's; ``gpu_instance`` is set for a hardware slice, ``link`` for an NVLink. The
    unit of measure is in the name: ``power_w``, ``memory_used_mib``, ``energy_mj``; the list is in ``hw/README.md``. A
    value that the device does not have is absent, not zero; one whose reading failed is in ``failures``, with a short
    word for the reason (``timeout``, ``no-permission``, ``unknown``).
    """

    uuid: str
    values: Mapping[str, Value] = field(default_factory=dict)
    gpu_instance: int | None = None
    link: int | None = None
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """True when it is about the accelerator itself."""
        return self.gpu_instance is None and self.link is None

    @property
    def numbers(self) -> dict[str, float]:
        """The values that are numbers."""
        return {name: value for name, value in self.values.items() if not isinstance(value, str)}


class ProcessKind(enum.StrEnum):
    """How a process uses the accelerator."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"  # through a multi-process service


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process on an accelerator, or on one of its slices: one row for each device, slice and pid.

    One that computes and draws is ``compute``. ``uuid`` is the physical device's. ``pid`` is in the pid namespace of
    this process: the node's when it may see that. ``memory_mib`` is None where the driver can't tell. The percentages
    are parts of the whole accelerator's engines over the last second or so, None where the driver does not measure
    them, as with MIG on.
    """

    uuid: str
    pid: int
    kind: ProcessKind = ProcessKind.COMPUTE
    memory_mib: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    sm_percent: float | None = None
    memory_percent: float | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What an accelerator, or one of its GPU instances, has done since it was asked before, by the driver's own record.

    ``values`` are averages by the keys of ``Reading``: performance counters (``gpm_...``) over all of the time, and
    ``utilization_percent`` over the ``sampled_seconds`` for which the driver has kept samples, the largest of which is
    ``peak_percent``. ``processes`` is what each process had of the multiprocessors, in percent, in its newest sample of
    that time; one that is not there has done nothing. None: the driver does not measure it.
    """

    uuid: str
    gpu_instance: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    sampled_seconds: float = 0.0
    peak_percent: float | None = None
    processes: Mapping[int, float] | None = None


class Reader(Protocol):
    """Reads one vendor's accelerators on this node. Safe to call from one asyncio loop; calls may overlap."""

    async def inventory(self) -> Inventory:
        """Enumerate now. Raises HwError only when nothing can be read at all."""
        ...

    async def links(self) -> tuple[Link, ...]:
        """Every unordered pair of readable accelerators; pairs whose topology can't be read are left out."""
        ...

    async def readings(self, keys: Collection[str] | None = None) -> tuple[Reading, ...]:
        """Telemetry of every readable accelerator: each one's own reading first, then its instances', then its links'.

        ``keys`` names the values that are wanted, to save reading the others (which may come nevertheless); None is
        all. Cheap enough for once a second. Averages (``gpm_...``) are over the time since the reading before.
        """
        ...

    async def processes(self) -> tuple[Process, ...]:
        """Who uses the readable accelerators now."""
        ...

    async def activity(self, keys: Collection[str]) -> tuple[Activity, ...]:
        """What accelerators and GPU instances have done since the call before, where their driver keeps a record of it.

        ``keys`` are the counters that are wanted. For one caller: what has passed is told once. The first call begins,
        and has processes at most. Every ten seconds is often enough, as the driver's record goes back about 15.
        """
        ...

    def events(self) -> AsyncIterator[HardwareEvent]:
        """Events from now on, for as long as the caller iterates. Survives restarts of the driver library."""
        ...

    async def close(self) -> None:
        """Let go of the driver; the reader can't be used afterwards."""
        ...
