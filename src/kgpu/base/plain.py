"""Reads decoded JSON of unknown shape: a value of the wrong type counts as absent, and nothing here raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_NONE: Final[Mapping[str, Any]] = {}


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _NONE


def items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in items(value) if isinstance(item, str))


def number(value: Any, default: int = 0) -> int:
    """An integer; a float only when it is whole, as 1.0 is in some clients' JSON."""
    if isinstance(value, bool):
        return default
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else default


def strings(value: Any) -> dict[str, str]:
    """A map of labels: entries that are not text are left out."""
    return {key: entry for key, entry in mapping(value).items() if isinstance(entry, str)}
