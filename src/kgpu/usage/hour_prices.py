"""What a GPU costs an hour now, by the list and the facts that ``kgpu usage`` goes by: for messages, metrics and lists.

A node's price depends on its last line (type, region, capacity, pool) and on how many GPUs are seen on it. Of a node
that is not known yet a GPU costs what its model does, and the price says that this is assumed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kgpu.formats.usage import RecordedNode
from kgpu.usage.nodes import PricedNode, priced_node
from kgpu.usage.prices import GpuPrice, PriceBook


class KnownNodes:
    """What is known of nodes."""

    def __init__(self) -> None:
        self._lines: dict[str, RecordedNode] = {}
        self._gpus: dict[str, int] = {}
        self._priced: dict[str, PricedNode] = {}

    def learn(self, lines: Iterable[RecordedNode]) -> None:
        """Take nodes' lines, the oldest first."""
        for line in lines:
            self._lines[line.node] = line
            self._priced.pop(line.node, None)

    def count(self, node: str, devices: Iterable[str]) -> None:
        """Take the names of a node's devices. One that is not seen any more still has its part of the node's price."""
        gpus = len(set(devices))
        if gpus > self._gpus.get(node, 0):
            self._gpus[node] = gpus
            self._priced.pop(node, None)

    def priced(self, node: str) -> PricedNode:
        """The node as prices are looked up for it; one without a type while it is not known how many GPUs it has."""
        found = self._priced.get(node)
        if found is None:
            line = self._lines.get(node)
            gpus = line.gpus if line is not None and line.gpus else self._gpus.get(node, 0)
            found = self._priced[node] = priced_node(line if gpus else None, gpus)
        return found

    def keep(self, nodes: Iterable[str]) -> None:
        """Forget all other nodes."""
        kept = frozenset(nodes)
        self._lines = {node: line for node, line in self._lines.items() if node in kept}
        self._gpus = {node: gpus for node, gpus in self._gpus.items() if node in kept}
        self._priced = {node: priced for node, priced in self._priced.items() if node in kept}


@functools.cache
def shipped(name: str) -> PriceBook:
    """Kgpu's own list, whatever list is asked for."""
    del name
    return PriceBook()


@dataclass(frozen=True, slots=True)
class HourPrices:
    """``book``: the list of that name, that of the cluster for ""."""

    book: Callable[[str], PriceBook] = shipped
    nodes: KnownNodes = field(default_factory=KnownNodes)

    def of(self, node: str, product: str, *, prices: str = "") -> GpuPrice:
        """The price of a GPU of this product on this node, by the list of that name."""
        return self.book(prices).price(self.nodes.priced(node), product)

    def currency(self, prices: str = "") -> str:
        """What the list of that name counts in."""
        return self.book(prices).currency
