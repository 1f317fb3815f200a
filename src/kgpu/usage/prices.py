"""Pure: what an hour of a GPU costs: by its node's pool or type, else by its model, else by default; and what power
costs.

A person's list goes before kgpu's own. The price of a node is divided by its GPUs, so that they never cost more than
the node; with ``split`` only the part that the GPUs are of it, by usual prices of processors and memory. Every price
says where it comes from, and what was assumed. Amounts are millionths of the currency.
"""

from __future__ import annotations

import enum
import fnmatch
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from kgpu.base.printable import one_line
from kgpu.formats.usage import MILLION
from kgpu.usage.nodes import PricedNode
from kgpu.usage.price_file import PriceList, PriceRow, parse

LIST_PRICES: Final = Path(__file__).with_name("list_prices.csv")
# What a processor, a GiB and a GPU usually cost an hour, to divide a node's price among them (OpenCost's defaults).
CPU_HOUR: Final = Fraction("0.031611")
GIB_HOUR: Final = Fraction("0.004237")
GPU_HOUR: Final = Fraction("0.95")
_UJ_PER_KWH: Final = 3_600_000 * MILLION


class NodePriceRule(enum.StrEnum):
    """What of a node's price its GPUs have to carry."""

    GPU_INCLUSIVE = "gpu-inclusive"
    SPLIT = "split"


class PriceBasis(enum.StrEnum):
    """By what a price was found."""

    POOL = "pool"
    INSTANCE = "instance"
    MODEL = "model"
    DEFAULT = "default"


class Undivided(enum.StrEnum):
    """Why a price is not a part of a node's where that was asked for."""

    OF_GPU = "of-gpu"
    SIZE_UNKNOWN = "size-unknown"
    """Processors and memory of the node are not recorded: its GPUs carry all of the price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPrice:
    """Millionths of the currency for an hour of one GPU; ``assumed`` says what is not known to be so, if anything."""

    per_gpu_hour: int
    basis: PriceBasis
    source: str
    assumed: str = ""
    undivided: Undivided | None = None


class PriceBook:
    """A person's list, if there is one, and kgpu's own, unless that is in another currency."""

    def __init__(self, own: PriceList | None = None, *, rule: NodePriceRule = NodePriceRule.GPU_INCLUSIVE) -> None:
        shipped = list_prices()
        self.currency = own.currency if own is not None else shipped.currency
        self.rows = own.rows if own is not None else ()
        """The person's own."""
        self.name = own.name if own is not None else ""
        self._shipped = shipped.rows if self.currency == shipped.currency else ()
        self._rule = rule
        self.price = functools.lru_cache(maxsize=4096)(self._price)
        """The price of a GPU of this product on this node."""

    def lacks(self, node: PricedNode, product: str) -> bool:
        """Whether there is a list of a person's, and it has no row for such a GPU."""
        return bool(self.rows) and self._own_row(node, product) is None

    def _own_row(self, node: PricedNode, product: str) -> PriceRow | None:
        return _most_specific(row for row in self.rows if _fits(row, node, product))

    def _price(self, node: PricedNode, product: str) -> GpuPrice:
        row = self._own_row(node, product)
        if row is not None:
            return self._of(row, node, _basis(row), f"{self.name}, line {row.line}")
        row, basis, assumed = self._listed(node, product)
        return self._of(row, node, basis, f"{row.source}, {row.date}", assumed)

    def _listed(self, node: PricedNode, product: str) -> tuple[PriceRow, PriceBasis, str]:
        fitting = [row for row in self._shipped if _fits(row, node, product)]
        row = _most_specific(row for row in fitting if row.instance_type)
        if row is not None:
            untold = row.capacity_type and not node.capacity_told
            assumed = f"{row.instance_type} is {row.capacity_type}, as no label says" if untold else ""
            return row, PriceBasis.INSTANCE, assumed
        row = _most_specific(
            (row for row in self._shipped if row.instance_type and row.instance_type == node.instance_type), node
        )
        if row is not None:
            return row, PriceBasis.INSTANCE, f"{row.instance_type} at the {row.capacity_type} price of {row.region}"
        row = _most_specific(fitting)
        assert row is not None, "the list has a default"
        if row.is_default:
            return row, PriceBasis.DEFAULT, f"no price is known for {one_line(product, 80) or 'a GPU without a name'}"
        return row, PriceBasis.MODEL, f"{one_line(product, 80)} at the model's list price, as {_untold(node)}"

    def _of(self, row: PriceRow, node: PricedNode, basis: PriceBasis, source: str, assumed: str = "") -> GpuPrice:
        if row.per_gpu_hour is not None:
            whole = Undivided.OF_GPU if self._rule is NodePriceRule.SPLIT else None
            return GpuPrice(per_gpu_hour=row.per_gpu_hour, basis=basis, source=source, assumed=assumed, undivided=whole)
        part = _gpu_part(node, self._rule)
        price = int((row.per_node_hour or 0) * (1 if part is None else part) / node.gpus)
        unknown = Undivided.SIZE_UNKNOWN if part is None else None
        return GpuPrice(per_gpu_hour=price, basis=basis, source=source, assumed=assumed, undivided=unknown)


def _untold(node: PricedNode) -> str:
    """Why there is no price of the node's type."""
    name = one_line(node.instance_type, 60)
    return f"there is none for nodes of type {name}" if name else "the node's type is not recorded"


@functools.cache
def list_prices() -> PriceList:
    """The list that comes with kgpu: prices with date and source of each."""
    return parse(LIST_PRICES.read_text(encoding="utf-8"), source=LIST_PRICES.name)


def model_pattern(product: str) -> str:
    """The pattern by which kgpu's own list has this model, "" where it has not."""
    rows = (row for row in list_prices().rows if row.product and _fits_product(row, product))
    row = _most_specific(rows)
    return row.product if row is not None else ""


def _gpu_part(node: PricedNode, rule: NodePriceRule) -> Fraction | None:
    """The part of a node's price that is its GPUs'; None where it is not known and asked for."""
    if rule is NodePriceRule.GPU_INCLUSIVE:
        return Fraction(1)
    if not node.cpus or not node.memory_mib:
        return None
    gpus = GPU_HOUR * node.gpus
    return gpus / (gpus + CPU_HOUR * node.cpus + GIB_HOUR * Fraction(node.memory_mib, 1024))


def _basis(row: PriceRow) -> PriceBasis:
    if row.pool:
        return PriceBasis.POOL
    if row.instance_type:
        return PriceBasis.INSTANCE
    return PriceBasis.MODEL if row.product else PriceBasis.DEFAULT


def _fits(row: PriceRow, node: PricedNode, product: str) -> bool:
    return not misfits(row, node, product)


def misfits(row: PriceRow, node: PricedNode, product: str) -> dict[str, str]:
    """The columns of a row that are not so of this GPU on this node, with what the row has there."""
    # A type of machine is one provider's, also where the node's is not recorded.
    provider = node.provider or (row.provider if row.instance_type else "")
    columns = (
        ("provider", row.provider, provider), ("region", row.region, node.region), ("pool", row.pool, node.pool),
        ("instanceType", row.instance_type, node.instance_type),
        ("capacityType", row.capacity_type, node.capacity_type),
    )  # fmt: skip
    wrong = {column: wanted for column, wanted, there in columns if wanted and wanted != there}
    return wrong if _fits_product(row, product) else {**wrong, "product": row.product}


def _fits_product(row: PriceRow, product: str) -> bool:
    return not row.product or fnmatch.fnmatchcase(product.replace(" ", "-"), row.product.replace(" ", "-"))


def _most_specific(rows: Iterable[PriceRow], node: PricedNode | None = None) -> PriceRow | None:
    """The row that says most of what it fits; of a node's, one of its own capacity or region before another's."""

    def rank(row: PriceRow) -> tuple[object, ...]:
        near = (row.capacity_type == node.capacity_type, row.region == node.region) if node is not None else ()
        names = row.instance_type, row.product, row.region, row.capacity_type, row.provider
        return (*near, bool(row.pool), bool(names[0]), len(names[1]), *map(bool, names[2:]))

    return max(rows, key=rank, default=None)


def energy_cost(energy_uj: int, *, tariff: Fraction, pue: Fraction = Fraction(1)) -> int:
    """Millionths of the currency for so many microjoules at ``tariff`` a kWh; ``pue`` is the building's power over the
    machines'. Rounded down.
    """
    return int(energy_uj * pue * tariff * MILLION / _UJ_PER_KWH)


def per_useful_hour(per_gpu_hour: Fraction, use: Fraction) -> Fraction | None:
    """What an hour of work costs where the GPU is used for this part of the time; None where it is not used."""
    return per_gpu_hour / use if use > 0 else None
