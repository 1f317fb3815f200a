"""Config files whose keys are rows of settings: the table for ``kgpu.formats.strict``, and the values by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kgpu.formats.settings import Setting, put


def table_of(rows: Iterable[Setting]) -> dict[str, Any]:
    """The file's sections and keys, with each row's reader."""
    table: dict[str, Any] = {}
    for row in rows:
        put(table, row.key, row.read_file)
    return table


def values_of(rows: Iterable[Setting], tree: Mapping[str, Any]) -> dict[str, Any]:
    """What the file gives, by the rows' keys, for ``settings.resolve``. ``tree`` is what the table has read."""
    values: dict[str, Any] = {}
    for row in rows:
        value: Any = tree
        for part in row.key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            values[row.key] = value
    return values
