"""What a screen consists of: the wish behind it, and rows of each kind, ready to be drawn or written as JSON."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from kgpu.top.history import IdleTime
from kgpu.top.model import GpuHealth, GpuInstance, GpuNode, GpuProcess, GpuUser, ShownGpu


class TableView(enum.StrEnum):
    """The views: what a row stands for."""

    GPUS = "gpus"
    NODES = "nodes"
    PODS = "pods"


class Detail(enum.StrEnum):
    """What stands under a GPU: nothing; MIG instances and more users than one; everybody."""

    COMPACT = "compact"
    AUTO = "auto"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be shown. ``sort`` is a name of ``SORTS``; empty ``nodes`` and ``namespaces`` are all."""

    view: TableView = TableView.GPUS
    detail: Detail = Detail.AUTO
    sort: str = "natural"
    reverse: bool = False
    words: str = ""
    nodes: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU."""

    node: GpuNode
    gpu: ShownGpu
    idle: IdleTime | None = None
    activity: tuple[int, ...] = ()
    xid_age: float | None = None
    """Seconds since its last Xid, None where that came before this look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """A MIG instance under its GPU."""

    gpu: ShownGpu
    part: GpuInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """One user of the device above."""

    user: GpuUser
    total_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """A process on the GPU above."""

    process: GpuProcess
    total_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTotals:
    """One node with the totals of its GPUs."""

    node: GpuNode
    whole: Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """One pod and the devices that it holds; ``shared`` counts those that it holds not alone.

    Activity is the mean of its devices; memory and power are theirs, memory its own where that is known.
    """

    namespace: str
    pod: str
    nodes: tuple[str, ...]
    devices: int
    shared: int
    utilization: float | None
    memory_mib: float | None
    total_mib: float | None
    power_w: float | None
    models: tuple[str, ...] = ()
    health: GpuHealth = GpuHealth.UNKNOWN
    idle: IdleTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleRow:
    """Nodes that can't be read, or not wholly, for one reason; all are named in ``nodes``."""

    nodes: tuple[str, ...]
    what: str
    remedy: str = ""


Row = GpuRow | PartRow | UserRow | ProcessRow | NodeTotals | PodRow | TroubleRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The totals of several GPUs. Sums are over those with a value; None where none has one."""

    gpus: int = 0
    used: int = 0
    bad: int = 0
    lost: int = 0
    pods: int = 0
    utilization: float | None = None
    memory_mib: float | None = None
    total_mib: float | None = None
    power_w: float | None = None
    limit_w: float | None = None
    temperature_c: float | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The rows of one view. ``whole`` is of everything that the filter lets through. ``unread`` devices are on nodes
    that have never told of them.
    """

    rows: tuple[Row, ...]
    whole: Whole
    nodes: int
    silent: int
    unread: int = 0
    history: tuple[int, ...] = ()
    gpus: tuple[GpuRow, ...] = field(default=(), repr=False)
