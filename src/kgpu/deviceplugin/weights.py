"""Chooses devices by distance: the least sum of pair weights, with slices of one accelerator together. Pure.

A pair's weight is the sum of three: 10 for two parts of one GPU, else 20; 10 for XGMI between them, 40 for PCIe, 50 for
a pair of which no link is known; 10 on one NUMA node, else 20. These are the replaced program's, except that there a
pair without a known link weighs nothing and so looks best. Among equal choices the GPU with the fewest free parts comes
first, so that whole GPUs stay free, then the first on the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.deviceplugin.model import PluginDevice
from kgpu.hw.port import Accelerator, Link

SAME_GPU, OTHER_GPU = 10, 20
XGMI, PCIE, UNKNOWN = 10, 40, 50
SAME_NUMA, OTHER_NUMA = 10, 20
WITHIN: Final = SAME_GPU + XGMI + SAME_NUMA
NEAREST: Final = OTHER_GPU + XGMI + SAME_NUMA
BUDGET: Final = 20_000
"""Steps of the search; past them the choice is good but not proven best."""


class PairWeights:
    """The weights between a node's GPUs, by UUID. A pair that can't be read keeps its last link."""

    def __init__(self, numa: Mapping[str, int | None], links: Mapping[frozenset[str], int]) -> None:
        self._numa = dict(numa)
        self._links = dict(links)

    def updated(self, accelerators: Sequence[Accelerator], links: Sequence[Link]) -> PairWeights:
        """The weights after another reading."""
        numa = {gpu.uuid: gpu.numa_node for gpu in accelerators}
        fresh = {frozenset((link.a, link.b)): XGMI if link.lanes else PCIE for link in links}
        known = {pair: weight for pair, weight in (self._links | fresh).items() if pair <= numa.keys()}
        return PairWeights(numa, known)

    def between(self, a: str, b: str) -> int:
        """The weight of a device of one GPU and one of another, or of two parts of the same."""
        if a == b:
            return WITHIN
        near = self._numa.get(a) == self._numa.get(b)
        link = self._links.get(frozenset((a, b)), UNKNOWN)
        return OTHER_GPU + link + (SAME_NUMA if near else OTHER_NUMA)

    def total(self, counts: Mapping[str, int]) -> int:
        """The sum over all pairs of so many devices of each GPU."""
        gpus = [gpu for gpu, count in counts.items() if count]
        within = sum(counts[gpu] * (counts[gpu] - 1) // 2 * WITHIN for gpu in gpus)
        across = sum(
            counts[a] * counts[b] * self.between(a, b) for place, a in enumerate(gpus) for b in gpus[place + 1 :]
        )
        return within + across


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedChoice:
    """The chosen devices in their order, and the sum of their pairs' weights. ``exact``: proven least."""

    devices: tuple[PluginDevice, ...]
    weight: int
    exact: bool


def lightest(
    available: Sequence[PluginDevice], required: Sequence[PluginDevice], size: int, weights: PairWeights
) -> WeighedChoice:
    """The choice of ``size`` devices with all ``required`` ones, of at least as many; ``available`` is in the node's
    order.
    """
    must = Counter(device.unit.gpu_uuid for device in required)
    free = Counter(device.unit.gpu_uuid for device in available)
    order = {gpu: place for place, gpu in enumerate(dict.fromkeys(device.unit.gpu_uuid for device in available))}
    gpus = sorted(free, key=lambda gpu: (free[gpu], order[gpu]))
    search = _LightestChoice(gpus, free, must, size, weights)
    counts = search.best()
    wanted = {device.id for device in required}
    left = Counter(counts)
    left.subtract(must)
    chosen = []
    for device in available:
        gpu = device.unit.gpu_uuid
        if device.id in wanted:
            chosen.append(device)
        elif left[gpu] > 0:
            left[gpu] -= 1
            chosen.append(device)
    return WeighedChoice(devices=tuple(chosen), weight=weights.total(counts), exact=search.exact)


class _LightestChoice:
    """How many devices of each GPU: devices of one GPU are all alike."""

    def __init__(
        self, gpus: Sequence[str], free: Mapping[str, int], must: Mapping[str, int], size: int, weights: PairWeights
    ) -> None:
        self._gpus, self._free, self._must, self._size = gpus, free, must, size
        self._weights = weights
        self._largest = max(free.values())
        self._steps = 0
        self.exact = True

    def best(self) -> dict[str, int]:
        """The counts with the least weight, the first of equals."""
        starts = [gpu for gpu in self._gpus if self._must.get(gpu)] or list(self._gpus)
        grown = [self._grown(start) for start in starts]
        self._found = min(grown, key=self._weights.total)
        self._least = self._weights.total(self._found)
        self._descend(0, {}, 0)
        return self._found

    def _grown(self, start: str) -> dict[str, int]:
        """A good choice to begin with: from one GPU on, always as many of the one that adds the least."""
        counts = dict(self._must)
        left = self._size - sum(counts.values())
        rest = [start, *(gpu for gpu in self._gpus if gpu != start)]
        while left > 0:
            open_gpus = [gpu for gpu in rest if counts.get(gpu, 0) < self._free[gpu]]
            gpu = min(open_gpus, key=lambda gpu: self._added(counts, gpu)) if any(counts.values()) else open_gpus[0]
            taken = min(left, self._free[gpu] - counts.get(gpu, 0))
            counts[gpu] = counts.get(gpu, 0) + taken
            left -= taken
        return counts

    def _added(self, counts: Mapping[str, int], gpu: str) -> int:
        return sum(count * self._weights.between(gpu, other) for other, count in counts.items())

    def _descend(self, place: int, counts: dict[str, int], weight: int) -> None:
        left = self._size - sum(counts.values())
        if left == 0 and not any(self._must.get(gpu, 0) for gpu in self._gpus[place:]):
            if weight < self._least:
                self._least, self._found = weight, dict(counts)
            return
        if place == len(self._gpus) or self._steps >= BUDGET:
            self.exact = self.exact and self._steps < BUDGET
            return
        gpu = self._gpus[place]
        each = self._added(counts, gpu)
        for count in self._counts(gpu, left):
            self._steps += 1
            more = weight + count * each + count * (count - 1) // 2 * WITHIN
            after = left - count
            if more + self._at_least(after, self._size - after) < self._least:
                self._descend(place + 1, {**counts, gpu: count} if count else counts, more)

    def _counts(self, gpu: str, left: int) -> Iterator[int]:
        return iter(range(min(self._free[gpu], left), self._must.get(gpu, 0) - 1, -1))

    def _at_least(self, left: int, before: int) -> int:
        """What the rest adds at least: it lies in whole GPUs next to everything that is chosen."""
        groups, rest = divmod(left, self._largest)
        pairs = groups * self._largest * (self._largest - 1) // 2 + rest * (rest - 1) // 2
        across = left * (left - 1) // 2 - pairs
        return left * before * NEAREST + pairs * WITHIN + across * NEAREST
