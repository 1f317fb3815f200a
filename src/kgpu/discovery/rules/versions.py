"""Versions as rules with ``type: version`` compare them: one to three numbers, and what comes after is not compared.

Lenient in what is left out and strict in the rest, as the semver library of the replaced program: ``v1.2`` and
``6.8.0-45-generic`` are versions, ``1.2.3.4``, ``5.4.0_rc`` and ``1.2-01`` are none.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

Version: TypeAlias = "tuple[int, int, int]"

_PARTS: Final = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION: Final = re.compile(
    rf"v?([0-9]{{1,20}})(?:\.([0-9]{{1,20}}))?(?:\.([0-9]{{1,20}}))?(?:-({_PARTS}))?(?:\+{_PARTS})?", re.ASCII
)
_PADDED: Final = re.compile(r"0[0-9]+", re.ASCII)
_MOST: Final = 2**64
MAX_LENGTH: Final = 256


def version(text: str) -> Version | None:
    """The version; None for what is none."""
    found = _VERSION.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if found is None or any(_PADDED.fullmatch(part) for part in (found[4] or "").split(".")):
        return None
    major, minor, patch = (int(part or 0) for part in found.group(1, 2, 3))
    return (major, minor, patch) if max(major, minor, patch) < _MOST else None
