"""Pure: what to know of the prices that counted: which are assumed, what a person's list has no row for and what would
fit there, and where dividing a node's price changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from kgpu.base.advice import Advice, Severity
from kgpu.base.printable import one_line
from kgpu.formats.usage import MILLION
from kgpu.usage.nodes import NO_POOL, PricedNode
from kgpu.usage.price_file import PriceRow
from kgpu.usage.prices import GpuPrice, PriceBook, Undivided, misfits, model_pattern

Priced: TypeAlias = Mapping[tuple[PricedNode, str], GpuPrice]
"""By node and product."""
SHOWN: Final = 3
_UNDIVIDED: Final = {
    Undivided.OF_GPU: ("its price is one of a GPU, not of a node",
                       "give the node's: a row with instanceType or pool and perNodeHour in --prices"),
    Undivided.SIZE_UNKNOWN: ("how many processors and how much memory its nodes have is not recorded",
                             "leave --node-price split out, or give perGpuHour in --prices"),
}  # fmt: skip


def price_advice(priced: Priced, book: PriceBook) -> Iterator[Advice]:
    """What to know of these prices, in a stable order."""
    missing = {place: price for place, price in priced.items() if book.lacks(*place)}
    assumed = {price for place, price in priced.items() if price.assumed and place not in missing}
    for price in sorted(assumed, key=lambda one: (one.source, one.assumed)):
        yield Advice(
            what=f"a price is assumed: {price.assumed}", evidence=(price.source,), severity=Severity.WARNING,
            reason="PriceAssumed", remedy="give your prices with --prices FILE",
        ).printable()  # fmt: skip
    yield from _not_listed(missing, book)
    yield from _undivided(priced)


def _not_listed(missing: Priced, book: PriceBook) -> Iterator[Advice]:
    """A note for each model that the list has no row for, and price that counts in its place."""
    found: dict[tuple[str, str, int], list[PricedNode]] = {}
    for (node, product), price in missing.items():
        found.setdefault((product, price.source, price.per_gpu_hour), []).append(node)
    for (product, source, amount), nodes in sorted(found.items(), key=lambda item: item[0]):
        name = one_line(product, 80) or "a GPU without a name"
        counts = f"kgpu's list price counts, {amount / MILLION:.3f} {book.currency} a GPU's hour"
        yield Advice(
            what=f"{book.name} has no row for {name} on {_where(nodes)}; {counts}",
            evidence=(source, *_nearly(book.rows, nodes[0], product)), severity=Severity.WARNING,
            reason="PriceNotListed", remedy=_row_to_add(nodes, product, book),
        ).printable()  # fmt: skip


def _where(nodes: Iterable[PricedNode]) -> str:
    types = sorted({node.instance_type for node in nodes})
    if not any(types):
        return "nodes without a type"
    return f"nodes of type {_listed(name or '(none)' for name in types)}"


def _nearly(rows: Iterable[PriceRow], node: PricedNode, product: str) -> Iterator[str]:
    """Rows that would fit but for one of their columns."""
    near = ((row, misfits(row, node, product)) for row in rows)
    lines = [
        f'line {row.line} would fit, but for {column} "{wanted}"'
        for row, wrong in near if len(wrong) == 1
        for column, wanted in wrong.items() if column != "product" or _means(wanted, product)
    ]  # fmt: skip
    yield from lines[:SHOWN]


def _means(wanted: str, product: str) -> bool:
    """Whether a name without ``*`` is a part of the model's: ``L4`` of ``NVIDIA-L4``."""
    return bool(wanted.strip("*")) and wanted.strip("*").lower() in product.lower()


def _row_to_add(nodes: Iterable[PricedNode], product: str, book: PriceBook) -> str:
    """What a row for it would have, in any of its columns."""
    names = [name for name in (product.replace(" ", "-"), model_pattern(product)) if name]
    pools = sorted({node.pool for node in nodes} - {NO_POOL})
    types = sorted({node.instance_type for node in nodes} - {""})
    ways = [("product", names), ("instanceType", types), ("pool", pools)]
    said = [f"{column} {_listed(one_line(name, 80) for name in fitting)}" for column, fitting in ways if fitting]
    return f"add a row to {book.name} with {', or '.join([*said, 'perGpuHour alone, for all that no other row fits'])}"


def _undivided(priced: Priced) -> Iterator[Advice]:
    """Where ``--node-price split`` was asked for and changed nothing."""
    for reason, (why, remedy) in _UNDIVIDED.items():
        names = {one_line(product, 80) for (_, product), price in priced.items() if price.undivided is reason}
        if names:
            yield Advice(
                what=f"--node-price split changes nothing for {_listed(sorted(names))}", why=why, remedy=remedy,
                severity=Severity.WARNING, reason="NodePriceNotDivided",
            ).printable()  # fmt: skip


def _listed(names: Iterable[str]) -> str:
    every = list(dict.fromkeys(names))
    more = len(every) - SHOWN
    return " or ".join(every) if more <= 0 else f"{', '.join(every[:SHOWN])} and {more} more"
