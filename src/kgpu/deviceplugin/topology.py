"""Scores how well GPUs are connected, as the replaced program does, and chooses by these scores.

PCIe distance gives 10 to 60; each active direct NVLink lane gives 100, and at most 18 lanes count. Links behind an
NVSwitch do not count (all pairs are equal there). A pair that can't be read keeps its last score, so that a lost GPU
does not affect other choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.deviceplugin.search import best_set, set_score
from kgpu.hw.port import Accelerator, Link, TopologyLevel

PCI_SCORE: Final[Mapping[TopologyLevel, int]] = {
    TopologyLevel.INTERNAL: 60,
    TopologyLevel.SINGLE: 50,
    TopologyLevel.MULTIPLE: 40,
    TopologyLevel.HOSTBRIDGE: 30,
    TopologyLevel.NODE: 20,
    TopologyLevel.SYSTEM: 10,
}
LANE_SCORE: Final = 100
MAX_LANES: Final = 18
CACHE_LIMIT: Final = 2048


def pair_score(link: Link) -> int:
    """The score of one pair of GPUs."""
    return PCI_SCORE[link.level] + LANE_SCORE * min(link.lanes, MAX_LANES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The chosen GPUs. ``exact`` is False if the choice is not proven best."""

    uuids: tuple[str, ...]
    score: int
    exact: bool = True


class GpuTopology:
    """The GPUs in index order and their pair scores; answers are remembered."""

    def __init__(self, uuids: Sequence[str], links: Sequence[Link]) -> None:
        self._uuids = tuple(uuids)
        self._scores = {frozenset((link.a, link.b)): pair_score(link) for link in links}
        self._position = {uuid: position for position, uuid in enumerate(self._uuids)}
        self._weights = [
            [0 if a == b else self._scores.get(frozenset((a, b)), 0) for b in self._uuids] for a in self._uuids
        ]
        self._answers: dict[tuple[tuple[int, ...], tuple[int, ...], int], Alignment] = {}

    def updated(self, accelerators: Sequence[Accelerator], links: Sequence[Link]) -> GpuTopology:
        """The topology after another reading; the same object if nothing changed."""
        uuids = tuple(gpu.uuid for gpu in accelerators)
        present = set(uuids)
        fresh = {frozenset((link.a, link.b)): pair_score(link) for link in links}
        scores = {pair: score for pair, score in (self._scores | fresh).items() if pair <= present}
        if uuids == self._uuids and scores == self._scores:
            return self
        other = GpuTopology(uuids, ())
        other._scores = scores
        other._weights = [[0 if a == b else scores.get(frozenset((a, b)), 0) for b in uuids] for a in uuids]
        return other

    def score(self, uuids: Sequence[str]) -> int:
        """The sum of the pair scores among these GPUs; unknown ones add nothing."""
        return set_score(self._weights, [self._position[uuid] for uuid in uuids if uuid in self._position])

    def knows(self, uuid: str) -> bool:
        """True for a GPU of this node."""
        return uuid in self._position

    def align(self, available: Sequence[str], required: Sequence[str], size: int) -> Alignment:
        """The preferred GPUs in index order, none if the request can't be met. All uuids must be known."""
        key = (
            tuple(sorted({self._position[uuid] for uuid in available})),
            tuple(sorted({self._position[uuid] for uuid in required})),
            size,
        )
        answer = self._answers.get(key)
        if answer is None:
            result_set = best_set(self._weights, *key, links=_links(self._weights))
            answer = Alignment(
                uuids=tuple(self._uuids[position] for position in result_set.members),
                score=set_score(self._weights, result_set.members),
                exact=result_set.exact,
            )
            if len(self._answers) >= CACHE_LIMIT:
                self._answers.clear()
            self._answers[key] = answer
        return answer


def _links(weights: Sequence[Sequence[int]]) -> list[list[int]]:
    """The NVLinks in each pair's score: its other part is less than one of them counts."""
    return [[score // LANE_SCORE for score in row] for row in weights]
