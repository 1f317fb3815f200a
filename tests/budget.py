"""How much a test tries: a seeded sample in ``make test``, large random counts in ``make test-deep``.

A sample is the same in every run, so that what passed once passes again; what only chance finds is ``test-deep``'s.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import hypothesis

DEEP: Final = os.environ.get("KGPU_DEEP") == "1"
_USUAL: Final = 100  # examples where a test says nothing, as with hypothesis itself
_SHARE: Final = 5
_LEAST: Final = 10
_TIMES: Final = 5

T = TypeVar("T")


def examples(usual: int) -> int:
    """Examples of a property that is held well by ``usual`` of them."""
    return usual * _TIMES if DEEP else min(usual, max(_LEAST, usual // _SHARE))


def tries(
    usual: int = _USUAL, *, suppress_health_check: Iterable[hypothesis.HealthCheck] = (), **settings: Any
) -> hypothesis.settings:
    """The settings of a property that is held well by ``usual`` examples."""
    left_out = {*suppress_health_check, hypothesis.HealthCheck.too_slow}
    return hypothesis.settings(max_examples=examples(usual), suppress_health_check=list(left_out), **settings)


def count(sample: T, deep: T) -> T:
    """A test's own number of cases, here and in ``make test-deep``."""
    return deep if DEEP else sample


def sample(items: Iterable[T], seed: object) -> list[T]:
    """A fifth of the items, drawn by the seed, and at least ten; in ``make test-deep`` all of them."""
    found = list(items)
    size = len(found) if DEEP else min(len(found), max(_LEAST, len(found) // _SHARE))
    return random.Random(str(seed)).sample(found, size)


def profile() -> None:
    """What holds for every property. How long an example takes, and to draw it, is a question for a benchmark: here it
    depends on what else the machine has to do.
    """
    hypothesis.settings.register_profile(
        "kgpu", deadline=None, derandomize=not DEEP, database=None, print_blob=True, max_examples=examples(_USUAL),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )  # fmt: skip
    hypothesis.settings.load_profile("kgpu")
