"""Semantic versions (2.0.0), as attributes of devices have them and selectors compare them."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = r"(0|[1-9][0-9]{0,18})"
_WORDS: Final = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_SHAPE: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_WORDS}))?(?:\+{_WORDS})?", re.ASCII)
_LOOSE: Final = re.compile(r"v?([0-9]+(?:\.[0-9]+)*)(.*)", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class SemanticVersion:
    """Ordered by precedence: ``before`` is the sort key of the pre-release. Build metadata does not order."""

    major: int
    minor: int
    patch: int
    before: tuple[tuple[int, int, str], ...]


@functools.lru_cache(maxsize=1024)
def parse_version(text: str) -> SemanticVersion:
    """Raises ValueError for what is no semantic version."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a semantic version")
    major, minor, patch, before = match.groups()
    # Without a pre-release a version is greater than with one.
    key: tuple[tuple[int, int, str], ...] = ((2, 0, ""),)
    if before is not None:
        words = before.split(".")
        if any(word.isdigit() and len(word) > 1 and word[0] == "0" for word in words):
            raise ValueError(f"{text!r} is not a semantic version: a number starts with 0")
        key = tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in words)
    return SemanticVersion(int(major), int(minor), int(patch), key)


def completed(text: str) -> str:
    """Without a v in front and leading zeros, and with the parts that are missing: v1.02 is 1.2.0."""
    match = _LOOSE.fullmatch(text)
    if match is None:
        return text
    numbers = [part.lstrip("0") or "0" for part in match[1].split(".")]
    return ".".join([*numbers, "0", "0"][: max(3, len(numbers))]) + match[2]
