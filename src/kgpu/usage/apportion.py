"""Pure: a whole number divided by weights into whole numbers that sum to it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

Weight: TypeAlias = int | Fraction
"""Exact, and 0 or more."""


def apportion(total: int, weights: Sequence[Weight]) -> list[int]:
    """Parts in proportion to the weights, each less than 1 from its exact share, of which the largest remainders are
    rounded up; of equal ones the first. A weight of 0 gets nothing. Raises ValueError where all are 0 and ``total`` is
    not.
    """
    whole = sum(weights)
    if whole == 0:
        if total:
            raise ValueError(f"{total} to divide, and nobody to have it")
        return [0] * len(weights)
    exact = [total * weight for weight in weights]
    parts = [int(amount // whole) for amount in exact]
    missing = total - sum(parts)
    if missing:
        order = sorted(range(len(parts)), key=lambda at: parts[at] * whole - exact[at])
        for at in order[:missing]:
            parts[at] += 1
    return parts
