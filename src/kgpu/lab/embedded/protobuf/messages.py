"""Decodes messages by the table of fields to the JSON data that Go would print for the same object.

It does not use the protobuf library, so that errors have the words of the real server and texts need not be UTF-8; the
tests compare it with that library.
"""

from __future__ import annotations

import base64
import functools
import struct
from collections.abc import Callable
from importlib import resources
from typing import Any, Final

from kgpu.base.typed import decode
from kgpu.lab.embedded.protobuf.special import GO_FIELDS, GO_MESSAGES, SPECIAL
from kgpu.lab.embedded.protobuf.wire import BYTES, FIXED64, VARINT, BadMessageError, length, signed, skip, tag, varint

MAX_DEPTH: Final = 100
_DOUBLE: Final = struct.Struct("<d")
_NUMBERS: Final[dict[str, Callable[[int], Any]]] = {
    "i": lambda value: signed(value, 32),
    "l": lambda value: signed(value, 64),
    "b": bool,
}
_ZEROS: Final[dict[str, Any]] = {"i": 0, "l": 0, "b": False, "s": "", "y": "", "d": 0.0}

# Decodes JSON text; raises BadMessageError.
JsonReader = Callable[[bytes], Any]


class MessageField:
    """One field of a message. ``many``: "*" for lists, "%" for maps; ``letter``: its scalar type, "" for messages."""

    __slots__ = ("droppable", "go", "json", "letter", "many", "message", "wire")

    def __init__(self, owner: str, row: list[str]) -> None:
        self.json, kind = row[0], row[1]
        self.go = row[2] if len(row) > 2 else self.json[:1].upper() + self.json[1:]
        self.go = GO_FIELDS.get((owner, self.json), self.go)
        self.droppable = kind.endswith("?")
        self.many = kind[0] if kind[0] in "*%" else ""
        bare = kind.strip("*%?")
        self.letter = bare if len(bare) == 1 else ""
        self.message = "" if self.letter else bare
        number = {"d": FIXED64} | dict.fromkeys(_NUMBERS, VARINT)
        self.wire = BYTES if self.many == "%" else number.get(self.letter, BYTES)


class MessageType:
    """A compiled row of the table."""

    __slots__ = ("fields", "go", "is_list", "special")

    def __init__(self, name: str, rows: dict[str, list[str]]) -> None:
        self.go = GO_MESSAGES.get(name, name.rpartition(".")[2])
        self.fields = {int(number): MessageField(name, row) for number, row in rows.items()}
        self.special = SPECIAL.get(name)
        self.is_list = any(not field.json and field.many for field in self.fields.values())

    def result(self, fields: dict[str, Any]) -> Any:
        """The JSON of the message's fields."""
        if self.special is not None:
            return self.special(fields)
        return fields.get("", []) if self.is_list else fields


@functools.cache
def _table() -> dict[str, dict[str, list[str]]]:
    raw = resources.files(__package__).joinpath("data", "fields.json").read_bytes()
    return decode(raw, dict[str, dict[str, list[str]]])


@functools.cache
def message(name: str) -> MessageType:
    """The message by its name in the OpenAPI schemas. Raises KeyError."""
    return MessageType(name, _table()[name])


def known(name: str) -> bool:
    """Whether clients may send this type as protobuf."""
    return name in _table()


def read(data: bytes, name: str, json: JsonReader) -> Any:
    """The JSON data of one message. Raises BadMessageError."""
    return _Reader(data, json).value(message(name), 0, len(data), 0)


class _Reader:
    __slots__ = ("_data", "_json")

    def __init__(self, data: bytes, json: JsonReader) -> None:
        self._data, self._json = data, json

    def value(self, of: MessageType, at: int, end: int, depth: int) -> Any:
        fields: dict[str, Any] = {}
        self._fill(fields, of, at, end, depth)
        return of.result(fields)

    def _fill(self, into: dict[str, Any], of: MessageType, at: int, end: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BadMessageError("exceeded max depth")
        data, fields = self._data, of.fields
        while at < end:
            begin = at
            number, wire, at = tag(data, at, end, of.go)
            field = fields.get(number)
            if field is None:
                at = skip(data, begin, end)
            elif wire == field.wire:
                at = self._field(into, field, at, end, depth)
            elif field.many and field.wire == VARINT and wire == BYTES:
                at = self._packed(into, field, at, end)
            else:
                raise BadMessageError(f"proto: wrong wireType = {wire} for field {field.go}")

    def _field(self, into: dict[str, Any], field: MessageField, at: int, end: int, depth: int) -> int:
        if field.wire == BYTES:
            begin, stop = length(self._data, at, end)
        else:
            begin, stop = at, varint(self._data, at, end)[1] if field.wire == VARINT else at + _DOUBLE.size
        if stop > end:
            raise BadMessageError("unexpected EOF")
        if field.many == "%":
            key, value = self._entry(field, begin, stop, depth)
            into.setdefault(field.json, {})[key] = value
        elif field.many:
            into.setdefault(field.json, []).append(self._one(field, begin, stop, depth))
        elif field.letter:
            _put(into, field, self._one(field, begin, stop, depth))
        else:
            self._message(into, field, begin, stop, depth)
        return stop

    def _message(self, into: dict[str, Any], field: MessageField, at: int, end: int, depth: int) -> None:
        """Read a message; one that comes in several parts is merged, as Go does."""
        of = message(field.message)
        if not field.json:
            self._fill(into, of, at, end, depth)
        elif of.special is None and not of.is_list:
            self._fill(into.setdefault(field.json, {}), of, at, end, depth + 1)
        else:
            _put(into, field, self.value(of, at, end, depth + 1))

    def _packed(self, into: dict[str, Any], field: MessageField, at: int, end: int) -> int:
        at, stop = length(self._data, at, end)
        values = into.setdefault(field.json, [])
        while at < stop:
            value, at = varint(self._data, at, stop)
            values.append(_NUMBERS[field.letter](value))
        return stop

    def _entry(self, field: MessageField, at: int, end: int, depth: int) -> tuple[str, Any]:
        key = ""
        value = _ZEROS[field.letter] if field.letter else message(field.message).result({})
        while at < end:
            begin = at
            number, wire, at = tag(self._data, at, end, "")
            if number not in (1, 2):
                at = skip(self._data, begin, end)
                continue
            if wire != BYTES:
                raise BadMessageError("unexpected EOF")
            at, stop = length(self._data, at, end)
            if number == 1:
                key = self._text(at, stop)
            else:
                value = self._one(field, at, stop, depth)
            at = stop
        return key, value

    def _one(self, field: MessageField, at: int, end: int, depth: int) -> Any:
        """A single value in ``data[at:end]``."""
        letter = field.letter
        if not letter:
            return self.value(message(field.message), at, end, depth + 1)
        if letter == "s":
            return self._text(at, end)
        if letter in _NUMBERS:
            return _NUMBERS[letter](varint(self._data, at, end)[0])
        if letter == "y":
            return base64.b64encode(self._data[at:end]).decode()
        if letter == "d":
            return _DOUBLE.unpack_from(self._data, at)[0]
        return self._json(self._data[at:end]) if end > at else None

    def _text(self, at: int, end: int) -> str:
        return self._data[at:end].decode("utf-8", "replace")


def _put(into: dict[str, Any], field: MessageField, value: Any) -> None:
    if value is None or (field.droppable and not value):
        into.pop(field.json, None)
    else:
        into[field.json] = value
