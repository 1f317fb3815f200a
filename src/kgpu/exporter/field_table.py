"""The rows of the field table, and finding one by any spelling that a counters file may have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from kgpu.exporter.fields import MetricField, Spelled
from kgpu.exporter.rows import ROWS


def all_fields() -> tuple[MetricField, ...]:
    """Every row, in the order of the default output."""
    return _table()[0]


def find(name: str) -> Spelled | None:
    """The field that a name means; capitals count, as in the replaced program."""
    return _table()[1].get(name)


def known_names() -> Iterable[str]:
    """Every spelling."""
    return _table()[1].keys()


def _spellings(field: MetricField) -> Iterator[Spelled]:
    yield Spelled(field, field.name)
    for alias in field.aliases:
        yield Spelled(field, alias)
    if field.modern is not None:
        yield Spelled(field, field.modern.name, modern=True)


@lru_cache(maxsize=1)
def _table() -> tuple[tuple[MetricField, ...], dict[str, Spelled]]:
    return ROWS, {spelled.name: spelled for field in ROWS for spelled in _spellings(field)}
