"""Pure: from stretches of time to a report: who used how much, what it costs, and what was wasted.

The costs of all rows sum to the price of each GPU times its time: in exact numbers while they are added up, and in
whole millionths of the currency in the end, where each row is less than one from its own.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from kgpu.base.advice import Advice
from kgpu.usage.apportion import apportion
from kgpu.usage.grouping import Grouping, UsagePlace
from kgpu.usage.model import NodeHistory, Segment
from kgpu.usage.nodes import PricedNode, priced_node
from kgpu.usage.price_advice import price_advice
from kgpu.usage.prices import GpuPrice, PriceBook
from kgpu.usage.segments import Timeline
from kgpu.usage.shares import Basis, PayerKind, SharingMode, TimeShare, split

HOUR_US: Final = 3_600_000_000
IDLE: Final = "__idle__"
DOWN: Final = "__down__"
UNKNOWN: Final = "__unknown__"
PLATFORM: Final = "__platform__"
ROW_OF: Final = {PayerKind.IDLE: IDLE, PayerKind.DOWN: DOWN, PayerKind.UNKNOWN: UNKNOWN}


class IdlePolicy(enum.StrEnum):
    """Who pays for GPUs that nobody held."""

    SEPARATE = "separate"
    """A row of its own."""
    WEIGHTED = "weighted"
    """Those that held GPUs of the same pool, by what theirs cost."""
    EVEN = "even"
    """Those that held GPUs of the same pool, each the same."""
    PLATFORM = "platform"
    """Whoever runs the cluster, as for GPUs that are down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageWish:
    """What is asked for. Moments in microseconds since 1970."""

    grouping: Grouping
    begin_us: int | None = None
    end_us: int | None = None
    idle: IdlePolicy = IdlePolicy.SEPARATE
    basis: Basis = Basis.HELD
    sharing: SharingMode = SharingMode.PRESENT


@dataclass(slots=True, kw_only=True)
class Sums:
    """What a row adds up. ``cost`` and ``wasted_cost`` are millionths of the currency times microseconds, until they
    are rounded. ``watched_us`` is the held time of which activity is known, ``measured_us`` that with multiprocessors;
    ``metered_us`` is the GPU time of which energy is known. ``wasted_us`` and ``wasted_cost`` are, of time and cost,
    those of GPUs that were free, down, or held and not used. None is what was not known of any of it.
    """

    gpu_us: int = 0
    cost: int = 0
    held_us: int = 0
    starting_us: int = 0
    busy_us: int = 0
    watched_us: int = 0
    sm_us: int = 0
    measured_us: int = 0
    memory_mib_ms: int | None = None
    wasted_us: int = 0
    wasted_cost: int = 0
    energy_uj: int | None = None
    metered_us: int = 0
    idle_cost: int = 0
    """Of ``cost``, what was laid on it of GPUs that nobody held."""

    def add(self, share: TimeShare, price: int, energy_uj: int | None) -> None:
        self.gpu_us += share.gpu_us
        self.cost += share.gpu_us * price
        self.wasted_us += share.wasted_us
        self.wasted_cost += share.wasted_us * price
        self.energy_uj = _plus(self.energy_uj, energy_uj)
        self.metered_us += share.gpu_us if energy_uj is not None else 0
        use = share.use
        if use is None:
            return
        self.held_us += use.held_us
        self.starting_us += use.starting_us
        self.memory_mib_ms = _plus(self.memory_mib_ms, use.memory_mib_ms)
        if use.busy_us is not None:
            self.busy_us += use.busy_us
            self.watched_us += use.held_us
        if use.sm_us is not None:
            self.sm_us += use.sm_us
            self.measured_us += use.held_us

    def include(self, other: Sums) -> None:
        for attr in Sums.__slots__:
            setattr(self, attr, _plus(getattr(self, attr), getattr(other, attr)))


def _plus(one: int | None, other: int | None) -> int | None:
    """The sum of what is known of both; None where nothing is."""
    return None if one is None and other is None else (one or 0) + (other or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """A row: ``kind`` says whose the time is. Costs are whole millionths of the currency."""

    name: str
    kind: PayerKind
    sums: Sums
    cost: int
    wasted_cost: int
    idle_cost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """The rows, the dearest first, those that nobody held last; and the whole. Moments in microseconds since 1970."""

    begin_us: int
    end_us: int
    currency: str
    rows: tuple[UsageRow, ...]
    total: UsageRow
    prices: Mapping[GpuPrice, int]
    """Each price, and for how many microseconds of GPUs it counted."""
    recorded: tuple[int, int] = (0, 0)
    """From when to when the recording is, whatever was asked for; zeros where it has no time yet."""
    advice: tuple[Advice, ...] = ()


@dataclass(slots=True)
class _Cells:
    """Sums by pool, row and kind: who is to carry idle time is decided within a pool."""

    sums: dict[tuple[str, str, PayerKind], Sums] = field(default_factory=dict)
    prices: dict[GpuPrice, int] = field(default_factory=dict)
    priced: dict[tuple[PricedNode, str], GpuPrice] = field(default_factory=dict)


def report(timeline: Timeline, book: PriceBook, wish: UsageWish) -> UsageReport:
    """The report of what was asked for."""
    recorded = first_moment(timeline), last_moment(timeline)
    begin = recorded[0] if wish.begin_us is None else wish.begin_us
    end = max(begin, recorded[1] if wish.end_us is None else wish.end_us)
    cells = _Cells()
    for segments in timeline.devices.values():
        for segment in segments:
            part = segment.within(begin, end)
            if part is not None:
                _take(cells, part, timeline.nodes, book, wish)
    _lay_on(cells.sums, wish.idle)
    rows, total = _rounded(_by_row(cells.sums, wish))
    advice = (*timeline.advice, *price_advice(cells.priced, book))
    return UsageReport(
        begin_us=begin, end_us=end, currency=book.currency, rows=rows, total=total, prices=cells.prices, advice=advice,
        recorded=recorded,
    )  # fmt: skip


def last_moment(timeline: Timeline) -> int:
    """The end of the newest stretch, in microseconds since 1970; 0 where there is none."""
    return max((segments[-1].end_us for segments in timeline.devices.values() if segments), default=0)


def first_moment(timeline: Timeline) -> int:
    """The beginning of the oldest stretch, in microseconds since 1970; 0 where there is none."""
    return min((segments[0].begin_us for segments in timeline.devices.values() if segments), default=0)


def _take(cells: _Cells, segment: Segment, nodes: Mapping[str, NodeHistory], book: PriceBook, wish: UsageWish) -> None:
    history = nodes[segment.node]
    node = priced_node(history.at(segment.begin_us), history.gpus)
    price = book.price(node, segment.product)
    cells.priced[node, segment.product] = price
    cells.prices[price] = cells.prices.get(price, 0) + segment.length_us
    place = UsagePlace(node=segment.node, pool=node.pool, product=segment.product)
    shares = split(segment, wish.sharing, wish.basis)
    energy: Sequence[int | None] = (
        [None] * len(shares) if segment.energy_uj is None
        else apportion(segment.energy_uj, [share.gpu_us for share in shares])
    )  # fmt: skip
    for share, joules in zip(shares, energy, strict=True):
        if not share.gpu_us and not (share.use is not None and share.use.held_us):
            continue
        name = wish.grouping.name(place, share.use.holder if share.use is not None else None)
        sums = cells.sums.setdefault((node.pool, name, share.kind), Sums())
        sums.add(share, price.per_gpu_hour, joules)


def _lay_on(sums: dict[tuple[str, str, PayerKind], Sums], policy: IdlePolicy) -> None:
    """Lays the cost of idle GPUs on those that held others of the same pool; where nobody did, it stays idle."""
    if policy in {IdlePolicy.SEPARATE, IdlePolicy.PLATFORM}:
        return
    for key in [key for key in sums if key[2] is PayerKind.IDLE]:
        idle = sums[key]
        holders = [one for (pool, _, kind), one in sorted(sums.items()) if pool == key[0] and kind is PayerKind.HELD]
        weights = [1 if policy is IdlePolicy.EVEN else one.cost for one in holders]
        if not any(weights):
            continue
        laid = apportion(idle.cost, weights), apportion(idle.wasted_cost, weights)
        for one, amount, wasted in zip(holders, *laid, strict=True):
            one.cost += amount
            one.idle_cost += amount
            one.wasted_cost += wasted
        idle.cost = idle.wasted_cost = 0


def _by_row(sums: Mapping[tuple[str, str, PayerKind], Sums], wish: UsageWish) -> dict[tuple[str, PayerKind], Sums]:
    found: dict[tuple[str, PayerKind], Sums] = {}
    for (_, name, kind), one in sums.items():
        shown = _row_name(name, kind, wish)
        found.setdefault((shown, kind), Sums()).include(one)
    return found


def _row_name(name: str, kind: PayerKind, wish: UsageWish) -> str:
    if kind is PayerKind.HELD:
        return name
    special = PLATFORM if kind is PayerKind.IDLE and wish.idle is IdlePolicy.PLATFORM else ROW_OF[kind]
    return f"{name} {special}" if name else special


def _rounded(found: Mapping[tuple[str, PayerKind], Sums]) -> tuple[tuple[UsageRow, ...], UsageRow]:
    """Rows with whole millionths, which sum to the total's."""
    order = sorted(found, key=lambda key: (key[1] is not PayerKind.HELD, -found[key].cost, key))
    whole = Sums()
    for key in order:
        whole.include(found[key])
    total = _row("", PayerKind.HELD, whole, round(Fraction(whole.cost, HOUR_US)))
    costs = apportion(total.cost, [found[key].cost for key in order]) if whole.cost else [0] * len(order)
    return tuple(_row(*key, found[key], cost) for key, cost in zip(order, costs, strict=True)), total


def _row(name: str, kind: PayerKind, sums: Sums, cost: int) -> UsageRow:
    return UsageRow(
        name=name, kind=kind, sums=sums, cost=cost, wasted_cost=min(cost, sums.wasted_cost // HOUR_US),
        idle_cost=min(cost, sums.idle_cost // HOUR_US),
    )  # fmt: skip


def ratio(part: int, whole: int) -> float | None:
    """The part of 1; None of nothing."""
    return part / whole if whole else None


def waste_ratio(report: UsageReport) -> float | None:
    """Which part of all GPU time was free, down, or held and not used; None where there is none."""
    return ratio(report.total.sums.wasted_us, report.total.sums.gpu_us)
