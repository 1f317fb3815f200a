"""Built-in types compiled for walking: how Go prints unset fields, where quantities, times and defaults are.

``TypeShape.settle`` makes an object look as if a Go server had decoded and printed it: nulls and empty ``omitempty``
fields go, structs and required fields appear, quantities and times get their canonical text. ``TypeShape.default``
applies a table of functions by type, parents first, and the schemas' own defaults; ``TypeShape.store`` makes an object
look as the real storage returns it. All change the object in place. Types are compiled once.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any, Final

import msgspec

from kgpu.base.quantity import Quantity, QuantityError
from kgpu.base.typed import decode
from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.status import Object

API: Final = "io.k8s.api."
META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1."
_EMPTY: Final[tuple[Any, ...]] = ("", 0, False, [], {})
_STAMP: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)


class DecodeError(Exception):
    """A value that Go could not have decoded; the text is Go's."""


class _TypeRow(msgspec.Struct):
    drop: frozenset[str] = frozenset()
    zero: dict[str, Any] = {}
    struct: frozenset[str] = frozenset()


@functools.cache
def _rows() -> dict[str, _TypeRow]:
    data = resources.files(__package__).joinpath("data", "fields.json").read_bytes()
    return decode(data, dict[str, _TypeRow])


def _quantity(value: Any) -> Any:
    try:
        return str(Quantity.parse(value))
    except QuantityError as error:
        raise DecodeError(error.reason) from error


def _moment(value: Any, *, micro: bool) -> str:
    """RFC 3339 in UTC: a Time loses its fraction, a MicroTime must have exactly six digits."""
    layout = f"2006-01-02T15:04:05{'.000000' if micro else ''}Z07:00"
    match = _STAMP.fullmatch(value) if isinstance(value, str) else None
    try:
        if match is None:
            raise ValueError
        moment = dt.datetime.fromisoformat(f"{value[:19]}{match[8].replace('Z', '+00:00')}").astimezone(dt.UTC)
    except (ValueError, OverflowError) as error:
        words = f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "2006"'
        raise DecodeError(words) from error
    fraction = match[7] or ""
    if micro and len(fraction) != 6:
        words = f'parsing time "{value}" as "{layout}": cannot parse "{value[19:]}" as ".000000"'
        raise DecodeError(words)
    # The C library leaves out the zeros of a year before 1000.
    return f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + (f".{fraction}" if micro else "") + "Z"


_LEAVES: Final[dict[str, Callable[[Any], Any]]] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": _quantity,
    f"{META}Time": functools.partial(_moment, micro=False),
    f"{META}MicroTime": functools.partial(_moment, micro=True),
}
Defaulter = Callable[[Object], None]


class TypeShape:
    """One type. Types that are one value, such as a quantity, have a function ``leaf``; others their fields' shapes."""

    __slots__ = ("_defaults", "_fields", "_lists", "_maps", "_row", "_stored", "_structs", "leaf", "name", "texts")

    def __init__(self, name: str) -> None:
        self.name = name
        self.leaf = _LEAVES.get(name)
        self._row = _rows().get(name, _TypeRow())
        self._fields: dict[str, TypeShape] = {}
        self._lists: dict[str, TypeShape] = {}
        self._maps: dict[str, TypeShape] = {}
        self.texts: frozenset[str] = frozenset()
        self._structs: tuple[tuple[str, TypeShape], ...] = ()
        self._defaults: _DefaultedParts | None = None
        self._stored: _NullableParts | None = None

    def _compile(self) -> None:
        properties: Mapping[str, Any] = schema_data().get(self.name, {}).get("properties", {})
        texts = set()
        for field, raw in properties.items():
            reference = raw.get("$ref")
            items, values = raw.get("items"), raw.get("additionalProperties")
            if reference is not None:
                self._fields[field] = shape(reference)
            elif isinstance(items, Mapping) and "$ref" in items:
                self._lists[field] = shape(items["$ref"])
            elif isinstance(values, Mapping) and "$ref" in values:
                self._maps[field] = shape(values["$ref"])
            elif isinstance(values, Mapping) and values.get("type") == "string":
                texts.add(field)
        self.texts = frozenset(texts)
        self._structs = tuple((field, self._fields[field]) for field in self._row.struct if field in self._fields)

    def settle(self, obj: Object) -> None:
        """Make the object as Go would print it. Raises DecodeError."""
        row = self._row
        fields, lists, maps = self._fields, self._lists, self._maps
        for key, value in tuple(obj.items()):
            if value is None or (key in row.drop and value in _EMPTY):
                del obj[key]
            elif key in fields:
                child = fields[key]
                if child.leaf is not None:
                    obj[key] = child.leaf(value)
                elif isinstance(value, dict):
                    child.settle(value)
            elif key in lists and isinstance(value, list):
                child = lists[key]
                for index, item in enumerate(value):
                    if child.leaf is not None:
                        value[index] = child.leaf(item)
                    elif isinstance(item, dict):
                        child.settle(item)
            elif key in maps and isinstance(value, dict):
                child = maps[key]
                for name, member in value.items():
                    if child.leaf is not None:
                        value[name] = child.leaf(member) if member is not None else "0"
                    elif isinstance(member, dict):
                        child.settle(member)
            elif key in self.texts and isinstance(value, dict) and None in value.values():
                obj[key] = {name: "" if text is None else text for name, text in value.items()}
        for key, zero in row.zero.items():
            if obj.get(key) is None:
                obj[key] = zero
        for key, child in self._structs:
            if key not in obj:
                empty: Object = {}
                obj[key] = empty
                child.settle(empty)

    def store(self, obj: Object) -> None:
        """Make the object as the real server's storage returns it: empty lists that are always printed become null."""
        if self._stored is None:
            self._stored = _NullableParts(self)
        self._stored.run(obj)

    def settle_field(self, obj: Object, name: str) -> None:
        """Settle one struct field, which is added when it is missing."""
        child = self._fields.get(name)
        if child is not None:
            child.settle(obj.setdefault(name, {}))

    def default(self, obj: Object) -> None:
        """Fill in the defaults."""
        if self._defaults is None:
            self._defaults = _DefaultedParts(self)
        self._defaults.run(obj)


class _DefaultedParts:
    """The parts of a type that have defaults."""

    __slots__ = ("functions", "nested", "own")

    def __init__(self, of: TypeShape) -> None:
        from kgpu.lab.embedded.types.defaults import DEFAULTS

        raw = schema_data().get(of.name, {}).get("properties", {})
        function: Defaulter | None = DEFAULTS.get(of.name)
        self.functions: tuple[Defaulter, ...] = () if function is None else (function,)
        self.own = tuple((name, field["default"]) for name, field in raw.items() if _plain_default(field))
        self.nested = tuple(
            (name, child, how)
            for how, table in enumerate((of._fields, of._lists, of._maps))
            for name, child in table.items()
            if child.leaf is None and has_defaults(child.name)
        )

    def run(self, obj: Object) -> None:
        for function in self.functions:
            function(obj)
        for name, value in self.own:
            if obj.get(name) in (None, ""):
                obj[name] = value
        for name, child, how in self.nested:
            value = obj.get(name)
            if not value:
                if value == {} and how == 0:
                    child.default(value)
            elif how == 0:
                child.default(value)
            else:
                for item in value if how == 1 else value.values():
                    child.default(item)


class _NullableParts:
    """The parts of a type with lists that are null in storage when they are empty."""

    __slots__ = ("nested", "own")

    def __init__(self, of: TypeShape) -> None:
        self.own = _nullable(of)
        self.nested = tuple(
            (name, child, how)
            for how, table in enumerate((of._fields, of._lists, of._maps))
            for name, child in table.items()
            if child.leaf is None and has_nullable(child.name)
        )

    def run(self, obj: Object) -> None:
        for name in self.own:
            if obj.get(name) == []:
                obj[name] = None
        for name, child, how in self.nested:
            value = obj.get(name)
            if value:
                for item in (value,) if how == 0 else value if how == 1 else value.values():
                    child.store(item)


def _nullable(of: TypeShape) -> tuple[str, ...]:
    raw = schema_data().get(of.name, {}).get("properties", {})
    return tuple(
        name for name, zero in of._row.zero.items() if zero is None and raw.get(name, {}).get("type") == "array"
    )


@functools.cache
def has_nullable(name: str) -> bool:
    """Whether the type or one below it has a list that is stored as null when it is empty."""
    return any(_nullable(type_shape) for type_shape in _below(name))


@functools.cache
def has_defaults(name: str) -> bool:
    """Whether the type or one below it has a default."""
    from kgpu.lab.embedded.types.defaults import DEFAULTS

    for type_shape in _below(name):
        raw = schema_data().get(type_shape.name, {}).get("properties", {})
        if type_shape.name in DEFAULTS or any(_plain_default(field) for field in raw.values()):
            return True
    return False


def _plain_default(raw: Mapping[str, Any]) -> bool:
    return isinstance(raw.get("default"), str | int) and bool(raw["default"])


def _below(name: str) -> Iterator[TypeShape]:
    """The type and every type below it, each once."""
    visited: set[str] = set()
    todo = [name]
    while todo:
        current = todo.pop()
        if current not in visited:
            visited.add(current)
            known = shape(current)
            yield known
            todo += [child.name for table in (known._fields, known._lists, known._maps) for child in table.values()]


_shapes: dict[str, TypeShape] = {}
_making: dict[str, TypeShape] = {}  # types may contain themselves; other threads don't see them half compiled
_compiling: Final = threading.RLock()


def shape(name: str) -> TypeShape:
    """The type with that schema name; every call, from any thread, returns the same object."""
    compiled = _shapes.get(name)
    return _compile_shape(name) if compiled is None else compiled


def _compile_shape(name: str) -> TypeShape:
    with _compiling:
        compiled = _shapes.get(name) or _making.get(name)
        if compiled is None:
            first = not _making
            compiled = _making[name] = TypeShape(name)
            compiled._compile()
            if first:
                _shapes.update(_making)
                _making.clear()
        return compiled
