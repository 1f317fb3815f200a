"""Pure: what a GPU hour costs where a workload ran, by the list and the facts that ``kgpu usage`` goes by.

Each device counts with its node's price of that time, by how long the workload held it; so what is advised about it is
in the money of its bill.
"""

from __future__ import annotations

from dataclasses import dataclass

from kgpu.usage.measure import uses_of
from kgpu.usage.nodes import priced_node
from kgpu.usage.prices import GpuPrice, PriceBook
from kgpu.usage.segments import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPrice:
    """Millionths of ``currency`` for an hour of a whole GPU, on average. ``sources``: the prices that it is from, with
    what is assumed of them, those that count most first.
    """

    per_gpu_hour: int
    currency: str
    sources: tuple[str, ...]


def workload_price(
    times: Timeline, book: PriceBook, namespace: str, name: str,
    between: tuple[int | None, int | None] = (None, None),
) -> WorkloadPrice | None:  # fmt: skip
    """The price of the GPUs that a workload held between two moments in microseconds since 1970, those of the recording
    where there is none; None where it held none.
    """
    held: dict[GpuPrice, int] = {}
    for segment, use in uses_of(times, namespace, name, *between):
        history = times.nodes[segment.node]
        price = book.price(priced_node(history.at(segment.begin_us), history.gpus), segment.product)
        held[price] = held.get(price, 0) + use.held_us
    total = sum(held.values())
    if not total:
        return None
    ordered = sorted(held, key=lambda price: (-held[price], price.source, price.assumed))
    return WorkloadPrice(
        per_gpu_hour=round(sum(price.per_gpu_hour * time for price, time in held.items()) / total),
        currency=book.currency,
        sources=tuple(
            dict.fromkeys(price.source + (f"; assumed: {price.assumed}" if price.assumed else "") for price in ordered)
        ),
    )
