"""Near misses: what a user probably meant."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Collection, Iterable
from typing import Final

from kgpu.base.printable import one_line

_FEW: Final = 5
_LIKE: Final = 3
_LONGEST: Final = 120
"""Characters of a name, which may be anybody's."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A phrase such as ``did you mean "replicas"?``, or "" when nothing known is near. Case is ignored."""
    by_lower: dict[str, str] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), candidate)
    hits = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f'did you mean "{by_lower[hits[0]]}"?' if hits else ""


def one_of(word: str, known: Collection[str]) -> str:
    """What could have been said: all of a few, of many those that are most like the word. ``known`` is not empty."""

    def unlike(name: str) -> tuple[float, str]:
        return -difflib.SequenceMatcher(None, word.lower(), name.lower()).quick_ratio(), name

    few = len(known) <= _FEW
    names = ", ".join(one_line(name, _LONGEST) for name in heapq.nsmallest(_FEW if few else _LIKE, known, unlike))
    if few:
        return names if len(known) == 1 else f"one of {names}"
    return f"one of {len(known)} there are, such as {names}"
