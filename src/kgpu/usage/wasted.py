"""Pure: how many GPU hours were wasted and what these cost, counted on from line to line as agents write them.

Wasted is what was held and not used (``held-empty``, ``held-idle``, ``hung``), what nobody held (``free``) and what was
``down``; what was not watched is none of it. It is the WASTED, ``__idle__`` and ``__down__`` of ``kgpu usage``. Time
before ``since`` does not count: a history that begins anew reads what agents have of two weeks, and these would be an
increase. What has to be kept is one value a node: whoever stores it with the lines counts each once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from kgpu.base import typed
from kgpu.base.metric_text import head, label_text
from kgpu.formats.usage import MILLION, RecordedGpu, RecordedNode, UsageState
from kgpu.usage.apportion import apportion
from kgpu.usage.hour_prices import HourPrices
from kgpu.usage.model import Segment
from kgpu.usage.prices import GpuPrice
from kgpu.usage.recording import UsageRecording
from kgpu.usage.segments import timeline
from kgpu.usage.shares import PayerKind, TimeShare, split
from kgpu.usage.states import WASTED

MOST_SERIES: Final = 2000
"""Namespaces times reasons; what is beyond counts under ``OTHERS``."""
OTHERS: Final = "__others__"
SECOND_US: Final = 1_000_000
HOUR_US: Final = 3600 * SECOND_US
_REASONS: Final = tuple(sorted(WASTED))
_OF_NOBODY: Final = {PayerKind.IDLE: UsageState.FREE, PayerKind.DOWN: UsageState.DOWN}
T = TypeVar("T")
PriceAt: TypeAlias = Callable[[str, str], tuple[GpuPrice, str]]
"""An hour's price by node and product, and its currency."""


class WastedCounters(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Since a moment, in microseconds since 1970: microseconds of GPUs by reason and namespace (``reason/namespace``),
    and millionths of a currency times seconds by those and the currency (``currency/reason/namespace``). Whole numbers
    that 64 bits hold for centuries.
    """

    since_us: int
    time_us: dict[str, int] = {}
    cost: dict[str, int] = {}

    def add(self, reason: str, namespace: str, us: int, price: int, currency: str) -> None:
        """Count a part of a stretch."""
        key = f"{reason}/{namespace}"
        if key not in self.time_us and len(self.time_us) >= MOST_SERIES:
            key = f"{reason}/{OTHERS}"
        self.time_us[key] = self.time_us.get(key, 0) + us
        paid = f"{currency}/{key}"
        self.cost[paid] = self.cost.get(paid, 0) + us * price // SECOND_US


def count(
    counters: WastedCounters, before: Mapping[str, RecordedGpu], lines: Iterable[RecordedGpu], price: PriceAt
) -> dict[str, RecordedGpu]:
    """Count what a node's new lines say beyond those ``before``, by device; returns the lines to go on from."""
    new = list(lines)
    devices = {line.device for line in new}
    known = [line for device, line in before.items() if device in devices]
    for (node, _), segments in timeline(UsageRecording(devices=[*known, *new])).devices.items():
        for segment in segments:
            found, currency = price(node, segment.product)
            counted = segment.within(counters.since_us, segment.end_us)
            for reason, namespace, us in wasted_time(counted) if counted is not None else ():
                counters.add(reason, namespace, us, found.per_gpu_hour, currency)
    return {**before, **{line.device: line for line in new}}


def wasted_time(segment: Segment) -> Iterator[tuple[str, str, int]]:
    """What of a stretch was wasted: why, in which namespace ("" where nobody held it), and microseconds of a GPU."""
    for share in split(segment):
        if share.kind in _OF_NOBODY and share.gpu_us:
            yield _OF_NOBODY[share.kind], "", share.gpu_us
        elif share.wasted_us and share.use is not None:
            yield from _held(segment, share, share.use.holder.partition, share.use.holder.namespace)


def _held(segment: Segment, share: TimeShare, partition: str, namespace: str) -> Iterator[tuple[str, str, int]]:
    """A holder's waste by what its device or partition did."""
    by_partition = {part.id: part.states_us for part in segment.partitions}
    states = by_partition.get(partition, segment.states_us)
    weights = [states.get(state, 0) for state in _REASONS]
    for state, us in zip(_REASONS, apportion(share.wasted_us, weights), strict=True):
        if us:
            yield state, namespace, us


class LastLines(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A node's last lines: about itself, and about each of its devices."""

    node: RecordedNode | None = None
    devices: dict[str, RecordedGpu] = {}


class WastedTally:
    """The counters of a cluster and each node's last lines. ``take`` gives what has to be kept with the lines; it
    counts once ``kept`` is called. ``recall`` gets what was kept under a key.
    """

    def __init__(self, prices: HourPrices) -> None:
        self._prices = prices
        self._last: dict[str, LastLines] = {}
        self._counters: WastedCounters | None = None
        self._next: tuple[WastedCounters, str, LastLines] | None = None

    @property
    def counters(self) -> WastedCounters | None:
        """What was counted; None before anything was recalled."""
        return self._counters

    def begin(self, kept: bytes | None, now: float) -> None:
        """Go on from the counters that were kept, or begin now."""
        if self._counters is None:
            self._counters = _read(kept, WastedCounters) or WastedCounters(since_us=int(now * 1e6))

    def knows(self, node: str) -> bool:
        """Whether the node's last lines are known."""
        return node in self._last

    def recall(self, node: str, kept: bytes | None) -> None:
        """Take the node's last lines as they were kept."""
        last = self._last[node] = _read(kept, LastLines) or LastLines()
        self._prices.nodes.learn([last.node] if last.node is not None else [])

    def take(self, node: str, lines: Sequence[RecordedNode | RecordedGpu]) -> list[tuple[str, bytes]]:
        """Count a node's new lines; returns keys and values to keep."""
        assert self._counters is not None, "begun before lines are taken"
        last = self._last[node]
        about = [line for line in lines if isinstance(line, RecordedNode)]
        self._prices.nodes.learn(about)
        counters = msgspec.structs.replace(
            self._counters, time_us=dict(self._counters.time_us), cost=dict(self._counters.cost)
        )
        devices = count(counters, last.devices, (line for line in lines if isinstance(line, RecordedGpu)), self._price)
        following = LastLines(node=about[-1] if about else last.node, devices=devices)
        self._next = counters, node, following
        return [(WASTED_KEY, msgspec.json.encode(counters)), (last_key(node), msgspec.json.encode(following))]

    def kept(self) -> None:
        """What was taken last is kept: it counts."""
        if self._next is not None:
            self._counters, node, self._last[node] = self._next
            self._next = None

    def forget(self, nodes: Collection[str]) -> None:
        """Forget the last lines of all other nodes; what they have wasted stays counted."""
        self._last = {node: last for node, last in self._last.items() if node in nodes}
        self._prices.nodes.keep(nodes)

    def _price(self, node: str, product: str) -> tuple[GpuPrice, str]:
        return self._prices.of(node, product), self._prices.currency()


WASTED_KEY: Final = "wasted"


def last_key(node: str) -> str:
    """Under which a node's last lines are kept."""
    return f"last:{node}"


def _read(kept: bytes | None, kind: type[T]) -> T | None:
    return None if kept is None else typed.read(kept.decode("utf-8", "replace"), kind)


def metric_lines(counters: WastedCounters) -> list[str]:
    """For a metrics page."""
    hours = "kgpu_wasted_gpu_hours_total"
    cost = "kgpu_wasted_cost_total"
    lines = [*head(hours, "counter", "GPU hours that were free, held and not used, or down, by why and whose.")]
    for key, us in sorted(counters.time_us.items()):
        reason, _, namespace = key.partition("/")
        lines.append(f"{hours}{label_text(reason=reason, namespace=namespace)} {us / HOUR_US:.9g}")
    lines += head(cost, "counter", "What these hours cost, by the price list in force.")
    for key, amount in sorted(counters.cost.items()):
        currency, _, rest = key.partition("/")
        reason, _, namespace = rest.partition("/")
        labels = label_text(reason=reason, namespace=namespace, currency=currency)
        lines.append(f"{cost}{labels} {amount / 3600 / MILLION:.9g}")
    return lines
