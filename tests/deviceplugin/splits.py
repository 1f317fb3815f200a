"""The alignment rule written out the long way: every split, no shortcuts. The oracle of test_search."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence


def all_splits(slots: Sequence[int | None], size: int) -> Iterator[list[tuple[int | None, ...]]]:
    """Every split of the slots into sets of `size`, in order; the first slot is fixed in the first set."""
    if not slots:
        yield []
        return
    first, rest = slots[0], slots[1:]
    for picked in itertools.combinations(range(len(rest)), size - 1):
        own = (first, *(rest[index] for index in picked))
        others = [slot for index, slot in enumerate(rest) if index not in picked]
        for tail in all_splits(others, size):
            yield [own, *tail]


def score(weights: Sequence[Sequence[int]], members: Sequence[int | None]) -> int:
    real = [member for member in members if member is not None]
    return sum(weights[a][b] for a, b in itertools.combinations(real, 2))


def best_by_walking(
    weights: Sequence[Sequence[int]],
    available: Sequence[int],
    required: Sequence[int],
    size: int,
    links: Sequence[Sequence[int]] = (),
) -> tuple[tuple[int, ...], int]:
    """The chosen set and the sum of its split's scores; ((), -1) when nothing fits. Sizes from 2."""
    if size <= 0 or len(available) < size or len(required) > size or not set(required) <= set(available):
        return (), -1
    slots: list[int | None] = sorted(available)
    slots += [None] * (-len(slots) % size)
    best: list[tuple[int | None, ...]] | None = None
    most = (-1, -1)
    for split in all_splits(slots, size):
        fitting = [part for part in split if None not in part and set(required) <= set(part)]
        if not fitting:
            continue
        total = sum(score(weights, part) for part in split), max(score(links, part) if links else 0 for part in fitting)
        if total > most:
            best, most = split, total
    assert best is not None
    fitting = [part for part in best if None not in part and set(required) <= set(part)]
    chosen = max(fitting, key=lambda part: score(weights, part))
    return tuple(member for member in chosen if member is not None), most[0]
