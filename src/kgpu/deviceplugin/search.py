"""Finds the best set of GPUs of a given size, by the rule of the replaced program. Pure.

The rule: all available GPUs are split into sets of ``size`` (the last ones may be smaller); the split with the largest
sum of pair scores within its sets wins, and the answer is its best full set that has every required GPU. So a choice
also leaves good sets for later. Among equal splits the first in the order of indices wins. A set of one has no pairs:
the answer is the GPU that the others miss least.

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


def best_set(weights: Weights, available: Sequence[int], required: Sequence[int], size: int) -> SearchResult:
    """The preferred ``size`` positions of ``available``, including all ``required`` ones."""
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
    local = [[weights[a][b] for b in positions] for a in positions]
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


def _search(local: Weights, wanted: Sequence[int], size: int) -> tuple[Sequence[int], bool]:
    count = len(local)
    if count > MAX_EXACT:
        return _grow(local, wanted, size), False
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


def _pair_sums(local: Weights) -> list[int]:
    """The sum of the pair scores inside it for every mask."""
    count = len(local)
    table = [0]
    for index in range(count - 1, -1, -1):
        rows = _sums(local[index][index + 1 :])
        table += list(map(operator.add, table, rows))
    return table


class _Splits:
    """Searches splits into more than two sets, or of few GPUs."""

    def __init__(self, local: Weights, wanted: Sequence[int], size: int) -> None:
        self._count = len(local)
        self._size = size
        bits = _bits(self._count)
        self._must = sum(bits[index] for index in wanted)
        self._inside = _pair_sums(local)
        # No element can add more than half of its size-1 best pairs; the values are doubled to stay integers.
        self._bound = _sums(
            [
                sum(sorted((w for other, w in enumerate(row) if other != index), reverse=True)[: size - 1])
                for index, row in enumerate(local)
            ]
        )
        self._solved: dict[tuple[int, int, bool], tuple[int, int]] = {}
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

    def _solve(self, mask: int, sets: int, need: bool) -> tuple[int, int]:
        """The best sum of splitting ``mask`` into ``sets``, -1 if impossible, and the split's first set.

        ``need`` requires at least one full set among them.
        """
        if sets == 0:
            return (-1 if need else 0), 0
        key = (mask, sets, need)
        if (known := self._solved.get(key)) is not None:
            return known
        inside, bound, must, size = self._inside, self._bound, self._must, self._size
        best, first = -1, 0
        ceiling = bound[mask]
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
            if 2 * own + bound[rest] <= 2 * best:
                continue
            others = self._solve(rest, sets - 1, need and not full)[0]
            if others >= 0 and own + others > best:
                best, first = own + others, part
                if 2 * best >= ceiling:
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


def _two_sets(local: Weights, wanted: Sequence[int], size: int) -> list[int]:
    """The best set by its own score plus that of all the rest; exact if those two sets are the whole split.

    The score of a set plus that of the rest is a constant plus ``2 * inside - degrees``. This is a sum over two halves
    of the GPUs and the pairs between them, so the halves' subsets are tabulated and only their combinations are tried.
    """
    count = len(local)
    bits = _bits(count)
    half = count // 2
    low, high = range(half), range(half, count)
    degree = [sum(row) for row in local]
    even = count == 2 * size
    best: tuple[int, int] | None = None
    # Scores are shifted left, so that the low bits decide between equal ones by the order of splits.
    for lead in (True, False):
        if not lead and even and not wanted:
            break  # these are the same splits with their sets swapped
        sign = 1 if lead else -1
        own = [-(degree[index] << count) + sign * bits[index] for index in range(count)]
        halves = _best_halves(local, own, low, high, size, wanted, lead=lead)
        if halves is not None:
            value = halves[0] + (0 if lead else (1 << count) - 1)
            if best is None or value > best[0]:
                best = (value, halves[1])
    assert best is not None
    mask = best[1]
    if even and not wanted:
        inside = _members(mask, count)
        rest = _members(mask ^ ((1 << count) - 1), count)
        return rest if set_score(local, rest) > set_score(local, inside) else inside
    return _members(mask, count)


def _best_halves(  # noqa: PLR0917 - one search, taken apart only for reading
    local: Weights,
    own: Sequence[int],
    low: range,
    high: range,
    size: int,
    wanted: Sequence[int],
    *,
    lead: bool,
) -> tuple[int, int] | None:
    """The best value and mask of ``size`` members, with (``lead``) or without the first GPU."""
    count = len(local)
    scale = count + 1  # pairs count twice
    n_high = len(high)
    inner = _pair_sums([[local[a][b] << scale for b in high] for a in high])
    high_values = list(map(operator.add, inner, _sums([own[index] for index in high])))
    high_must = sum(1 << (count - 1 - index) for index in wanted if index in high)
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
            base = sum(own[a] for a in chosen) + (set_score(local, chosen) << scale)
            cross = _sums([sum(local[a][b] for a in chosen) << scale for b in high])
            totals = list(map(operator.add, values, pick(cross)))
            top = max(totals)
            if best is None or base + top > best[0]:
                mask = sum(1 << (count - 1 - a) for a in chosen) | masks[totals.index(top)]
                best = (base + top, mask)
    return best


def _picker(masks: Sequence[int]) -> Callable[[list[int]], Sequence[int]]:
    if len(masks) == 1:
        only = masks[0]
        return lambda table: (table[only],)
    return operator.itemgetter(*masks)


def _grow(local: Weights, wanted: Sequence[int], size: int) -> list[int]:
    """Start from the required ones or the best pair, and keep adding the best fit."""
    chosen = list(wanted)
    if not chosen:
        count = len(local)
        pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
        first, second = max(pairs, key=lambda pair: local[pair[0]][pair[1]])
        chosen = [first, second]
    while len(chosen) < size:
        left = [index for index in range(len(local)) if index not in chosen]
        chosen.append(max(left, key=lambda index: sum(local[index][other] for other in chosen)))
    return sorted(chosen)
