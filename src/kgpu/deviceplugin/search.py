"""Finds the best set of GPUs of a given size, by the rule of the replaced program. Pure.

The rule: all available GPUs are split into sets of ``size`` (the last ones may be smaller); the split with the largest
sum of pair scores within its sets wins, and the answer is its best full set that has every required GPU. So a choice
also leaves good sets for later. Of equal splits the one with the set that has most NVLinks of its own wins, and of
those the first in the order of indices, which is what the replaced program takes. A set of one has no pairs: the answer
is the GPU that the others miss least.

The replaced program tries every split (2.6 million for 16 GPUs in fours). Here two-way splits are computed from two
halves, and the others are searched by branch and bound with memoization. Above ``MAX_EXACT`` GPUs, or past ``BUDGET``
steps, the answer is good but not proven best, and ``SearchResult.exact`` is False.

Sets are bit masks in which the lowest index is the highest bit, so a larger mask comes earlier in the order.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Weights = Sequence[Sequence[int]]
"""Symmetric pair scores, zero on the diagonal."""

MAX_EXACT = 16
SMALL = 10
BUDGET = 150_000


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Positions in ascending order, empty if the request can't be met. ``exact`` is False if not proven best."""

    members: tuple[int, ...]
    exact: bool = True


class _OverBudgetError(Exception):
    """The search would take too long."""


@dataclass(frozen=True, slots=True)
class _Local:
    """The available GPUs' pair scores, and their NVLinks."""

    scores: Weights
    links: Weights

    def __len__(self) -> int:
        return len(self.scores)


def best_set(
    weights: Weights, available: Sequence[int], required: Sequence[int], size: int, *, links: Weights = ()
) -> SearchResult:
    """The preferred ``size`` positions of ``available``, including all ``required`` ones.

    ``links``: the NVLinks of each pair, where there are any.
    """
    positions = sorted(set(available))
    must = set(required)
    if size <= 0 or len(positions) < size or len(must) > size or not must <= set(positions):
        return SearchResult(())
    if size == len(positions):
        return SearchResult(tuple(positions))
    if len(must) == size:
        return SearchResult(tuple(sorted(must)))
    if size == 1:
        return SearchResult((_least_missed(weights, positions),))
    local = _Local(
        [[weights[a][b] for b in positions] for a in positions],
        [[links[a][b] if links else 0 for b in positions] for a in positions],
    )
    wanted = [index for index, position in enumerate(positions) if position in must]
    chosen, exact = _search(local, wanted, size)
    return SearchResult(tuple(positions[index] for index in chosen), exact)


def set_score(weights: Weights, members: Sequence[int]) -> int:
    """The sum of the pair scores within a set."""
    return sum(weights[a][b] for a, b in itertools.combinations(members, 2))


def _least_missed(weights: Weights, positions: Sequence[int]) -> int:
    """The GPU with the lowest best pair score; ties go to the lowest sum of scores, then to the first."""

    def cost(position: int) -> tuple[int, int, int]:
        others = [weights[position][other] for other in positions if other != position]
        return max(others, default=0), sum(others), position

    return min(positions, key=cost)


def _search(local: _Local, wanted: Sequence[int], size: int) -> tuple[Sequence[int], bool]:
    count = len(local)
    if count > MAX_EXACT:
        return _grow(local.scores, wanted, size), False
    sets = -(-count // size)
    if sets == 2 and count > SMALL:
        return _two_sets(local, wanted, size), True
    try:
        return _Splits(local, wanted, size).best(), True
    except _OverBudgetError:
        return _two_sets(local, wanted, size), False


def _bits(count: int) -> list[int]:
    return [1 << (count - 1 - index) for index in range(count)]


def _members(mask: int, count: int) -> list[int]:
    return [index for index in range(count) if mask >> (count - 1 - index) & 1]


def _sums(values: Sequence[int]) -> list[int]:
    """The sum of its members for every mask over ``values``, of which the first is the highest bit."""
    table = [0]
    for value in reversed(values):
        table += [entry + value for entry in table]
    return table


def _pair_sums(pairs: Weights) -> list[int]:
    """The sum of the pairs inside it for every mask."""
    count = len(pairs)
    table = [0]
    for index in range(count - 1, -1, -1):
        rows = _sums(pairs[index][index + 1 :])
        table += list(map(operator.add, table, rows))
    return table


class _Splits:
    """Searches splits into more than two sets, or of few GPUs."""

    def __init__(self, local: _Local, wanted: Sequence[int], size: int) -> None:
        self._count = len(local)
        self._size = size
        bits = _bits(self._count)
        self._must = sum(bits[index] for index in wanted)
        self._inside = _pair_sums(local.scores)
        # No element can add more than half of its size-1 best pairs; the values are doubled to stay integers.
        self._bound = _sums(
            [
                sum(sorted((w for other, w in enumerate(row) if other != index), reverse=True)[: size - 1])
                for index, row in enumerate(local.scores)
            ]
        )
        linked = any(map(any, local.links))
        self._links = _pair_sums(local.links) if linked else [0] * len(self._inside)
        # No set that can be the answer has more.
        self._most = max(
            (
                links
                for mask, links in enumerate(self._links if linked else ())
                if mask.bit_count() == size and mask & self._must == self._must
            ),
            default=0,
        )
        self._solved: dict[tuple[int, int, bool], tuple[tuple[int, int], int]] = {}
        self._left = BUDGET

    def best(self) -> list[int]:
        everything = (1 << self._count) - 1
        mask, sets, need = everything, -(-self._count // self._size), not self._must
        self._solve(mask, sets, need)
        parts: list[int] = []
        while sets:
            part = self._solve(mask, sets, need)[1]
            parts.append(part)
            mask, sets, need = mask ^ part, sets - 1, need and part.bit_count() < self._size
        full = [part for part in parts if part.bit_count() == self._size and part & self._must == self._must]
        return _members(max(full, key=lambda part: self._inside[part]), self._count)  # max keeps the first of equals

    def _solve(self, mask: int, sets: int, need: bool) -> tuple[tuple[int, int], int]:
        """The best split of ``mask`` into ``sets``: its sum and the most links of a set of it, and its first set.

        ``need`` requires at least one full set among them. The sum is -1 where there is no such split, the links are
        where no set of it can be the answer.
        """
        if sets == 0:
            return ((-1 if need else 0), -1), 0
        key = (mask, sets, need)
        if (known := self._solved.get(key)) is not None:
            return known
        inside, bound, must, size = self._inside, self._bound, self._must, self._size
        best, first = (-1, -1), 0
        most = self._most if mask & must == must else -1
        ceiling = (bound[mask], most)
        for part in self._firsts(mask, sets):
            touched = part & must
            full = part.bit_count() == size
            if touched and (touched != must or not full):
                continue
            self._left -= 1
            if self._left < 0:
                raise _OverBudgetError
            rest = mask ^ part
            own = inside[part]
            if (2 * own + bound[rest], most) <= (2 * best[0], best[1]):
                continue
            others, links = self._solve(rest, sets - 1, need and not full)[0]
            if others < 0:
                continue
            if full and touched == must:
                links = max(links, self._links[part])
            if (own + others, links) > best:
                best, first = (own + others, links), part
                if (2 * best[0], best[1]) >= ceiling:
                    break
        self._solved[key] = (best, first)
        return best, first

    def _firsts(self, mask: int, sets: int) -> Sequence[int]:
        """Every possible first set, which contains the mask's lowest index, in order."""
        lead = 1 << (mask.bit_length() - 1)
        rest = [bit for bit in _bits(self._count) if bit & mask and bit != lead]
        padding = sets * self._size - mask.bit_count()
        smallest = max(1, self._size - padding)
        if smallest == self._size:
            return [lead + sum(combo) for combo in itertools.combinations(rest, self._size - 1)]
        return sorted(
            (
                lead + sum(combo)
                for length in range(smallest - 1, min(self._size - 1, len(rest)) + 1)
                for combo in itertools.combinations(rest, length)
            ),
            reverse=True,
        )


def _two_sets(local: _Local, wanted: Sequence[int], size: int) -> list[int]:
    """The best set by its own score plus that of all the rest; exact if those two sets are the whole split.

    The score of a set plus that of the rest is a constant plus ``2 * inside - degrees``. This is a sum over two halves
    of the GPUs and the pairs between them, so the halves' subsets are tabulated and only their combinations are tried.
    """
    count = len(local)
    best: tuple[int, int] | None = None
    for lead in (True, False):
        halves = _best_halves(local, wanted, size, lead=lead)
        if halves is not None:
            # Without the first GPU, the rest has it and is the split's first set.
            value = halves[0] + (0 if lead else (1 << count) - 1)
            if best is None or value > best[0]:
                best = (value, halves[1])
    assert best is not None
    inside = _members(best[1], count)
    if wanted or count != 2 * size:
        return inside
    rest = _members(best[1] ^ ((1 << count) - 1), count)
    first, second = sorted((inside, rest))
    return second if set_score(local.scores, second) > set_score(local.scores, first) else first


def _best_halves(local: _Local, wanted: Sequence[int], size: int, *, lead: bool) -> tuple[int, int] | None:
    """The best value and mask of ``size`` members, with (``lead``) or without the first GPU.

    A value is one number in which a split's score counts first, then the set's links, then the order of splits.
    """
    count = len(local)
    bits, half = _bits(count), count // 2
    low, high = range(half), range(half, count)
    split = (sum(map(sum, local.links)) + 1) << count
    pairs = [
        [2 * score * split + (links << count) for score, links in zip(*rows, strict=True)]
        for rows in zip(local.scores, local.links, strict=True)
    ]
    sign = 1 if lead else -1
    own = [sign * bit - sum(scores) * split for bit, scores in zip(bits, local.scores, strict=True)]
    n_high = len(high)
    inner = _pair_sums([[pairs[a][b] for b in high] for a in high])
    high_values = list(map(operator.add, inner, _sums([own[index] for index in high])))
    high_must = sum(bits[index] for index in wanted if index in high)
    low_must = {index for index in wanted if index in low}
    # For each number of members: the masks of the upper half, their values, and a fast way to pick them from a table.
    rows: dict[int, tuple[list[int], list[int], Callable[[list[int]], Sequence[int]]]] = {}
    for number in range(n_high + 1):
        masks = [m for m in range(1 << n_high) if m.bit_count() == number and m & high_must == high_must]
        if masks:
            rows[number] = (masks, [high_values[m] for m in masks], _picker(masks))
    best: tuple[int, int] | None = None
    for number in range(max(0, size - n_high), min(len(low), size) + 1):
        if size - number not in rows:
            continue
        masks, values, pick = rows[size - number]
        for chosen in itertools.combinations(low, number):
            if (0 in chosen) != lead or not low_must <= set(chosen):
                continue
            base = sum(own[a] for a in chosen) + set_score(pairs, chosen)
            cross = _sums([sum(pairs[a][b] for a in chosen) for b in high])
            totals = list(map(operator.add, values, pick(cross)))
            top = max(totals)
            if best is None or base + top > best[0]:
                mask = sum(bits[a] for a in chosen) | masks[totals.index(top)]
                best = (base + top, mask)
    return best


def _picker(masks: Sequence[int]) -> Callable[[list[int]], Sequence[int]]:
    if len(masks) == 1:
        only = masks[0]
        return lambda table: (table[only],)
    return operator.itemgetter(*masks)


def _grow(scores: Weights, wanted: Sequence[int], size: int) -> list[int]:
    """Start from the required ones or the best pair, and keep adding the best fit."""
    chosen = list(wanted)
    if not chosen:
        count = len(scores)
        pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
        first, second = max(pairs, key=lambda pair: scores[pair[0]][pair[1]])
        chosen = [first, second]
    while len(chosen) < size:
        left = [index for index in range(len(scores)) if index not in chosen]
        chosen.append(max(left, key=lambda index: sum(scores[index][other] for other in chosen)))
    return sorted(chosen)
