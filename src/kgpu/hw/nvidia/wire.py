"""What the hardware child writes, as strict types for the parent: a frame that doesn't fit is a defect, not a value."""

from __future__ import annotations

import msgspec

Trouble = tuple[str, int, str]
"""The call that failed, its nvmlReturn_t, and NVML's own words."""


class Pulse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The readings whose change means that the inventory changed; ``instances`` are (position, gi, ci)."""

    uuid: str
    mig_capable: bool
    mig: bool
    mig_pending: bool
    instances: tuple[tuple[int, int, int], ...]
    recovery: int | None


class MigFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One MIG device. ``engines``: copy, decoder, encoder, jpeg, ofa. ``caps``: minors of the two capability nodes."""

    uuid: str
    position: int
    name: str
    gi: int
    ci: int
    gi_kind: int | None
    gi_memory_mib: int | None
    ci_kind: int | None
    start: int
    size: int
    memory_mib: int
    multiprocessors: int
    slices: tuple[int, int]
    engines: tuple[int, int, int, int, int]
    caps: tuple[int | None, int | None]


class GpuReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU. Memory in bytes; ``fabric`` is (cluster uuid, clique, status) once registration has completed."""

    index: int
    pulse: Pulse
    name: str
    serial: str
    minor: int | None
    bus_id: str
    pci_device_id: int
    pci_class: int
    numa_node: int | None
    memory_bytes: int | None
    compute_capability: tuple[int, int] | None
    fabric: tuple[str, int, int] | None
    migs: tuple[MigFacts, ...]
    errors: tuple[Trouble, ...]
    coherent: bool = False
    addressing: int | None = None
    brand: int | None = None


class NodeReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``known``: (bus id, uuid, model, minor) of each GPU in procfs. ``generation`` changes with a driver reload."""

    count: int
    generation: tuple[object, ...]
    known: tuple[tuple[str, str, str, str], ...]


class Init(NodeReply, frozen=True, forbid_unknown_fields=True):
    """The answer to the first request. ``cuda_version`` is 1000 * major + 10 * minor."""

    driver_version: str | None
    nvml_version: str | None
    cuda_version: int | None
    library: str


class GpuLinks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``levels`` by the other GPU's index, ``lanes`` by remote PCI bus id (an NVSwitch's when there is one)."""

    levels: dict[int, int | None]
    lanes: dict[str, int]


class UnitReadings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Telemetry of one GPU instance or NVLink by hw.port.Reading's keys."""

    values: dict[str, int | float | str]
    failures: dict[str, str]
    gpu_instance: int | None = None
    link: int | None = None


class Readings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Telemetry of one GPU by hw.port.Reading's keys, and of what is part of it."""

    uuid: str
    values: dict[str, int | float | str]
    failures: dict[str, str]
    instances: tuple[UnitReadings, ...] = ()
    links: tuple[UnitReadings, ...] = ()


class MigComputeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A compute instance as hw.partitioning.CutCompute has it."""

    id: int
    profile: int
    start: int


class MigInstanceState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU instance as hw.partitioning.CutInstance has it."""

    id: int
    profile: int
    start: int
    compute: tuple[MigComputeState, ...]
    used: bool


class MigState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one GPU is cut, as hw.partitioning.CutGpu has it."""

    index: int
    uuid: str
    product: str
    device: int
    subsystem: int
    capable: bool
    enabled: bool
    pending: bool
    instances: tuple[MigInstanceState, ...]
    used: bool


class ProcessReply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One process on a GPU or slice; percentages are None where not measured."""

    pid: int
    kind: str
    memory_mib: int | None
    gpu_instance: int | None
    compute_instance: int | None
    sm_percent: int | None
    memory_percent: int | None
    encoder_percent: int | None
    decoder_percent: int | None


class Processes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who uses one GPU."""

    uuid: str
    processes: tuple[ProcessReply, ...]


class UnitActivity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one GPU, or the GPU instance of that id, has done since it was asked before."""

    gpu_instance: int | None
    values: dict[str, int | float]
    seconds: float = 0.0
    peak: float | None = None


class DeviceActivity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The GPU's own first, then its instances'. ``processes``: percent of the multiprocessors by pid."""

    uuid: str
    units: tuple[UnitActivity, ...]
    processes: tuple[tuple[int, int], ...] | None


class Listening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mask of event types that one GPU delivers."""

    types: int


class DriverEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One NVML event; ``type`` 0 says that the event set failed with the return code in ``data``."""

    type: int
    data: int
    uuid: str | None
    gi: int | None
    ci: int | None


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line from the child: an event, or part of the answer to request ``id``."""

    id: int = 0
    gpu: int | None = None
    data: msgspec.Raw = msgspec.Raw(b"")
    error: Trouble | None = None
    end: bool = False
    event: DriverEvent | None = None
