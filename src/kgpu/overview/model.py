"""What the page is made of, as data: what was gathered and how old it is, and what is shown of it to whom.

Times are seconds of a clock that only grows, so that a clock that jumps makes nothing look new or old.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from kgpu.top.history import GpuHistory
from kgpu.top.model import GpuNode
from kgpu.top.rows import GpuRow, TroubleRow, Whole

T = TypeVar("T")

Sees: TypeAlias = frozenset[str] | None
"""The namespaces whose pods somebody may see; None for all of them."""


class ViewerRights(NamedTuple):
    """What somebody may see: the pods of these namespaces, and whether he may list nodes."""

    namespaces: Sees
    nodes: bool


HIDDEN: Final = "hidden"
"""What stands for a pod's name where that may not be seen."""


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """What somebody has last said. ``at``: when, None for never; ``trouble``: why there is nothing newer."""

    value: T
    at: float | None = None
    trouble: str = ""


class ToldEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """As ``kgpu doctor -o json`` has it."""

    value: str
    object: str = ""
    field: str = ""
    file: str = ""


class ToldFinding(msgspec.Struct, frozen=True, kw_only=True):
    """As ``kgpu doctor -o json`` has it; pods are ``NAMESPACE/NAME``."""

    id: str
    subject: str
    cause: str
    level: str
    evidence: tuple[ToldEvidence, ...] = ()
    remedy: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    expected: str = ""
    consequences: tuple[ToldFinding, ...] = ()


class ToldReport(msgspec.Struct, frozen=True, kw_only=True):
    """As ``kgpu doctor -o json`` has it."""

    findings: tuple[ToldFinding, ...] = ()


class ToldIdle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """As ``kgpu idle -o json`` has it: amounts of a currency, null for what is not known; ``since`` is a time."""

    who: str
    kind: str
    state: str
    gpus: float
    per_hour: float
    currency: str
    where: str = ""
    since: str | None = None
    wasted: float | None = None


class ToldIdleness(msgspec.Struct, frozen=True, kw_only=True):
    """As ``kgpu idle -o json`` has it; ``silent`` says why nodes are unknown, by node, ``*`` for all."""

    idle: tuple[ToldIdle, ...] = ()
    silent: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPod:
    """A pod that asks for accelerators and is not placed or started yet. ``since``: RFC 3339, "" for not known."""

    namespace: str
    name: str
    asks: tuple[tuple[str, int], ...] = ()
    since: str = ""

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLimit:
    """What a namespace may have of a resource and what it has used of that, by the quota that leaves least."""

    namespace: str
    resource: str
    used: int
    hard: int

    def __str__(self) -> str:
        return f"{self.used} of {self.hard} {self.resource}"


DAY: Final = 86_400.0
"""Seconds for which hardware errors are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareError:
    """An error of a GPU, as somebody tells of it.

    ``code``: ``Xid 79``, ``SXid 20034`` or the name that health gives it.
    ``at``: when it was told last, ``since`` first, RFC 3339, "" for not known. ``uuid``, ``index`` and ``pci`` are as
    far as they are told. ``count``: how often an Event tells of it. ``text`` may quote anything.
    """

    node: str
    code: str
    at: str
    since: str = ""
    uuid: str = ""
    index: int | None = None
    pci: str = ""
    count: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCluster:
    """Everything that is known at ``now``. ``read_at``: when each node was read last.

    ``pace``: seconds between two readings of most nodes, 0 where that is not known yet.
    ``found``: whether nodes have been looked for; ``trouble``: why that failed. ``named``: the nodes that may be
    named, None for all; the others are here under other names.
    """

    now: float
    nodes: tuple[GpuNode, ...] = ()
    read_at: Mapping[str, float] = field(default_factory=dict)
    pace: float = 0.0
    history: GpuHistory = field(default_factory=GpuHistory)
    found: bool = False
    trouble: str = ""
    remedy: str = ""
    named: frozenset[str] | None = None
    report: Told[ToldReport] = Told(ToldReport())
    idleness: Told[ToldIdleness] = Told(ToldIdleness())
    waiting: Told[tuple[PendingPod, ...]] = Told(())
    limits: Told[tuple[NamespaceLimit, ...]] = Told(())
    events: Told[tuple[HardwareError, ...]] = Told(())
    verdicts: Told[tuple[HardwareError, ...]] = Told(())


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewQuery:
    """What of it is asked for, as the address has it. ``page`` counts from 1. ``notes``: what was not understood."""

    words: str = ""
    node: str = ""
    namespace: str = ""
    sort: str = "health"
    page: int = 1
    notes: tuple[str, ...] = field(default=(), compare=False)


class CellState(enum.StrEnum):
    """What a GPU is, for its cell: the first that is so."""

    STALE = "stale"  # its node can't be read: it is as it was
    LOST = "lost"
    BAD = "bad"
    WARN = "warn"
    BUSY = "busy"
    HELD = "held"  # a pod has it, and it did nothing at the last reading
    FREE = "free"
    UNKNOWN = "unknown"  # nobody says what it does


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCell:
    """One GPU. ``fill``: its activity in quarters, 0 to 4."""

    row: GpuRow
    state: CellState
    fill: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCells:
    """A node with its GPUs. ``stale``: for how many seconds it has not been read, None while it is."""

    name: str
    cells: tuple[GpuCell, ...]
    stale: float | None = None
    trouble: str = ""


class MapScale(enum.StrEnum):
    """How much room a GPU has."""

    CARDS = "cards"
    ROWS = "rows"
    DENSE = "dense"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWaiting:
    """A pod that waits and why, by the doctor; ``finding`` is None where it has said nothing of it."""

    pod: PendingPod
    finding: ToldFinding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownError:
    """A hardware error with its meaning. ``place``: which GPU; ``holders`` hold it now, which need not be who held it
    then. ``finding`` is what the doctor says of it, None for nothing.
    """

    error: HardwareError
    place: str
    means: str
    holders: tuple[str, ...] = ()
    namespaces: frozenset[str] = frozenset()
    finding: ToldFinding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRow:
    """What the pods of a namespace hold: GPUs, some perhaps with others, and of these busy; "" is for those hidden,
    whose pods nobody counts.

    ``idle`` and ``per_hour`` are of what is held and has not been used for an hour, ``limits`` what quotas allow; None
    where nobody says.
    """

    name: str
    pods: int | None
    held: int
    busy: int
    idle: float | None = None
    per_hour: float | None = None
    currency: str = ""
    limits: tuple[NamespaceLimit, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTotals:
    """The sums of what is read now. ``stale`` are GPUs of nodes that are not, and in no other sum.

    ``idle``, ``per_hour`` and ``wasted`` are of GPUs that are held and unused for an hour, None where nobody says;
    of ``silent`` nodes it is not known. ``errors``: of the hardware, in the last 24 hours, None where nobody says.
    """

    whole: Whole
    nodes: int = 0
    busy: int = 0
    free: int = 0
    stale: int = 0
    idle: float | None = None
    per_hour: float | None = None
    wasted: float | None = None
    currency: str = ""
    silent: int = 0
    errors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewPage:
    """What is shown. ``hidden``: how many findings, pods and workloads are of namespaces that may not be seen, and
    errors of nodes that may not be named. ``undated``: GPUs with an Xid of which nobody says when it came.
    """

    query: OverviewQuery
    totals: HeadTotals
    scale: MapScale
    pools: tuple[tuple[str, tuple[NodeCells, ...]], ...] = ()
    findings: tuple[ToldFinding, ...] = ()
    hidden_findings: int = 0
    troubles: tuple[TroubleRow, ...] = ()
    unwell: tuple[GpuCell, ...] = ()
    waiting: tuple[ShownWaiting, ...] = ()
    hidden_waiting: int = 0
    idle: tuple[ToldIdle, ...] = ()
    hidden_idle: float = 0.0
    errors: tuple[ShownError, ...] = ()
    hidden_errors: int = 0
    undated: int = 0
    namespaces: tuple[NamespaceRow, ...] = ()
    rows: tuple[GpuCell, ...] = ()
    pages: int = 1
    gathered: KnownCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class LabButtons:
    """What breaks and repairs the simulated GPUs of these nodes: actions by name, with what each button says.

    ``secret`` proves that a form is of this page.
    """

    secret: str
    nodes: frozenset[str]
    actions: tuple[tuple[str, str], ...]
