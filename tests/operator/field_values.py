"""Values for every field of a custom resource: each that its schema names, and plain and unusual ones of its type."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from kgpu.formats.crd.fields import SchemaField, Type, rows

Path = tuple[str, ...]
Spec = dict[str, Any]

QUANTITIES: Final = ({"cpu": "1"}, {"example.org/thing": 3, "memory": "2Gi"})
DURATIONS: Final = ("7s", "1h30m")
# Texts of a form of their own, by the field's name.
FORMED: Final[dict[str, tuple[Any, ...]]] = {
    "image": ("example.org/kgpu:3", "text", "/absolute/path", "7", ""),
    "limits": QUANTITIES, "requests": QUANTITIES, "interval": DURATIONS, "scrapeTimeout": DURATIONS,
}  # fmt: skip
TEXTS: Final = ("text", "/absolute/path", "7", 'ünusual "text" $(x)', "")
LISTS: Final = (["x"], ["y", "--z=1 2"], [])
NUMBERS: Final = (0, 1, 7, 2**31 - 1)
NUMBERS_OR_TEXTS: Final = (0, 7, "7%", "7")


@functools.cache
def leaves(struct: type[msgspec.Struct], above: Path = ()) -> dict[str, tuple[Path, SchemaField]]:
    """Every field without fields of its own, by its dotted path."""
    found: dict[str, tuple[Path, SchemaField]] = {}
    for row in rows(struct):
        path = (*above, row.name)
        found |= leaves(row.type.struct, path) if row.type.struct else {".".join(path): (path, row)}
    return found


def values(row: SchemaField) -> tuple[Any, ...]:
    """Values that its schema takes."""
    return tuple(FORMED.get(row.name) or _of(row.type))


def _of(kind: Type) -> Iterator[Any]:
    if kind.enum:
        yield from kind.enum
    elif kind.items:
        yield from map(list, _elements(kind.items.struct)) if kind.items.struct else _lists(kind.items)
    elif kind.values:
        yield from ({"a": "b"}, {"example.org/a": "", "c": "7"}, {})
    elif kind.int_or_string:
        yield from NUMBERS_OR_TEXTS
    elif kind.scalar is bool:
        yield from (True, False)
    elif kind.scalar is int:
        yield from (number for number in NUMBERS if number >= kind.checks.get("minimum", 0))
    else:
        yield from TEXTS


def _lists(items: Type) -> Iterator[Any]:
    yield from ([7], [8, 9], []) if items.scalar is int else LISTS


def _elements(struct: type[msgspec.Struct]) -> Iterator[tuple[Any]]:
    """A list of one element for each value of each of its fields."""
    for path, row in leaves(struct).values():
        for value in values(row):
            yield (with_value({}, path, value, struct),)


def with_value(base: Spec, path: Path, value: Any, struct: type[msgspec.Struct]) -> Spec:
    """``base`` with one more value, and whatever its sections can't be without."""
    spec = place = copy.deepcopy(base)
    inside: type[msgspec.Struct] | None = struct
    for depth, name in enumerate(path, 1):
        assert inside is not None
        fields = {row.name: row for row in rows(inside)}
        for row in fields.values():
            if row.required and row.name != name:
                place.setdefault(row.name, needed(row))
        if depth < len(path):
            place = place.setdefault(name, {})
        inside = fields[name].type.struct
    place[path[-1]] = value
    return spec


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to a schema, where true is no 1 and 0 no false."""
    return type(one) is type(other) and bool(one == other)


def needed(row: SchemaField) -> Any:
    """A value of a field that has to be there."""
    if row.type.struct:
        return {inner.name: needed(inner) for inner in rows(row.type.struct) if inner.required}
    return values(row)[0]
