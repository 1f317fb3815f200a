"""Bounded reads of the driver's files, and what stands in them as numbers. Every call may block for good.

A file that is not there is a ``FileNotFoundError``; one whose content no driver writes is ``GarbageError``.
"""

from __future__ import annotations

import os
import re
from typing import Final

LIMIT: Final = 16384
MOST_PROPERTIES: Final = 256
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_HEX: Final = re.compile(r"0x[0-9a-fA-F]{1,16}", re.ASCII)
_PROPERTY: Final = re.compile(r"([a-z0-9_]{1,64}) +([0-9]{1,20})", re.ASCII)
_COUNTS: Final = re.compile(r"ue:\s*([0-9]{1,20})\s+ce:\s*([0-9]{1,20})(?:\s+de:\s*([0-9]{1,20}))?", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z0-9]{1,16}", re.ASCII)
_LINE: Final = re.compile(r"[ -~]{0,200}")


class GarbageError(ValueError):
    """The content is not what a driver writes there."""


def raw(path: str, limit: int = LIMIT) -> bytes:
    """The first ``limit`` bytes. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = bytearray()
        while len(parts) < limit and (more := os.read(descriptor, limit - len(parts))):
            parts += more
        return bytes(parts)
    finally:
        os.close(descriptor)


def line(path: str) -> str:
    """One line of printable text. Raises OSError, GarbageError."""
    return _whole(_LINE, path)[0].strip()


def word(path: str) -> str:
    """One word of letters and digits. Raises OSError, GarbageError."""
    return _whole(_WORD, path)[0]


def number(path: str) -> int:
    """One decimal number. Raises OSError, GarbageError."""
    return int(_whole(_NUMBER, path)[0])


def hexadecimal(path: str) -> int:
    """One number such as 0x74a1. Raises OSError, GarbageError."""
    return int(_whole(_HEX, path)[0], 16)


def error_counts(path: str) -> tuple[int, int]:
    """A block's uncorrectable and correctable errors. Raises OSError, GarbageError."""
    return all_error_counts(path)[:2]


def all_error_counts(path: str) -> tuple[int, int, int | None]:
    """The same and deferred errors, which newer drivers count besides. Raises OSError, GarbageError."""
    found = _whole(_COUNTS, path)
    return int(found[1]), int(found[2]), None if found[3] is None else int(found[3])


def properties(path: str) -> dict[str, int]:
    """The names and numbers of a KFD file. Raises OSError, GarbageError."""
    rows = _text(path).splitlines()
    if len(rows) > MOST_PROPERTIES:
        raise GarbageError(path)
    found = [_PROPERTY.fullmatch(row) for row in rows if row.strip()]
    return {row[1]: int(row[2]) for row in found if row is not None}


def _text(path: str) -> str:
    try:
        return raw(path).decode("ascii")
    except UnicodeDecodeError as error:
        raise GarbageError(path) from error


def _whole(pattern: re.Pattern[str], path: str) -> re.Match[str]:
    found = pattern.fullmatch(_text(path).strip())
    if found is None:
        raise GarbageError(path)
    return found
