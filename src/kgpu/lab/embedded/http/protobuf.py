"""Kubernetes' protobuf bodies as JSON data: Go clients send built-in kinds so.

Only decoding; the answers are JSON, which those clients take as well. The fields are data (``data/protobuf.json``); what
Go leaves out of JSON although it is in the message (empty strings, zeros) goes when the object is decoded as its type.
"""  # noqa: E501

from __future__ import annotations

import datetime as dt
import functools
import struct
from importlib import resources
from typing import Any, Final

import msgspec

from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.status import Object

MEDIA: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_MAX_DEPTH: Final = 100
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1."
_TYPE_META: Final = {1: ("apiVersion", "s"), 2: ("kind", "s")}

Fields = dict[int, tuple[str, str]]


class BadMessageError(Exception):
    """Bytes that are no such message; the text is Go's where there is one."""


@functools.cache
def _messages() -> dict[str, dict[str, tuple[str, str]]]:
    raw = resources.files("kgpu.lab.embedded").joinpath("data", "protobuf.json").read_bytes()
    return msgspec.json.decode(raw, type=dict[str, dict[str, tuple[str, str]]])


@functools.cache
def _fields(message: str) -> Fields:
    return {int(number): field for number, field in _messages().get(message, {}).items()}


@functools.cache
def _inlined(message: str) -> frozenset[str]:
    """Message fields that JSON does not have: what is in them stands in the parent."""
    known = schema_data().get(message, {}).get("properties", {})
    if not known:
        return frozenset()
    return frozenset(name for name, kind in _fields(message).values() if "." in kind and name not in known)


@functools.cache
def _types() -> dict[tuple[str, str], str]:
    found = {}
    for name, schema in schema_data().items():
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            api_version = f"{gvk['group']}/{gvk['version']}" if gvk["group"] else gvk["version"]
            found[api_version, gvk["kind"]] = name
    return found


def decode(data: bytes) -> Object:
    """The object in an enveloped message. Raises BadMessageError."""
    if not data.startswith(_MAGIC):
        expected = " ".join(map(str, _MAGIC))
        raise BadMessageError(f"provided data does not appear to be a protobuf message, expected prefix [{expected}]")
    envelope = dict(_split(memoryview(data)[4:]))
    head = _message(_bytes(envelope.get(1, b"")), "", 0, _TYPE_META)
    api_version, kind = head.get("apiVersion", ""), head.get("kind", "")
    name = f"{_META}DeleteOptions" if kind == "DeleteOptions" else _types().get((api_version, kind), "")
    if not _fields(name):
        raise BadMessageError(f'no kind "{kind}" is registered for version "{api_version}"')
    body = _message(_bytes(envelope.get(2, b"")), name, 0)
    return {"apiVersion": api_version, "kind": kind, **body}


def _bytes(value: Any) -> memoryview:
    if isinstance(value, int):
        raise BadMessageError("proto: wrong wireType")
    return memoryview(value)


def _split(data: memoryview) -> list[tuple[int, Any]]:
    """(field number, value): an int for numbers, a memoryview for the rest."""
    found: list[tuple[int, Any]] = []
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: Any
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            raise BadMessageError(f"proto: illegal wireType {wire}")
        if at > end or number == 0:
            raise BadMessageError("unexpected EOF")
        found.append((number, value))
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise BadMessageError("unexpected EOF" if shift <= 63 else "proto: integer overflow")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
        shift += 7


def _message(data: memoryview, name: str, depth: int, fields: Fields | None = None) -> Object:
    if depth > _MAX_DEPTH:
        raise BadMessageError("exceeded max depth")
    known = fields if fields is not None else _fields(name)
    inlined = _inlined(name) if name else frozenset()
    made: Object = {}
    for number, raw in _split(data):
        field = known.get(number)
        if field is None:
            continue  # newer than we are
        key, kind = field
        if kind[0] == "*":
            made.setdefault(key, []).append(_value(raw, kind[1:], depth))
        elif kind[0] == "%":
            entry = dict(_split(_bytes(raw)))
            one = _value(entry[2], kind[1:], depth) if 2 in entry else _empty(kind[1:], depth)
            made.setdefault(key, {})[_value(entry.get(1, b""), "s", depth)] = one
        elif key in inlined:
            made.update(_value(raw, kind, depth))
        else:
            made[key] = _value(raw, kind, depth)
    return made


def _empty(kind: str, depth: int) -> Any:
    return {"s": "", "b": False, "i": 0, "y": "", "d": 0.0}[kind] if len(kind) == 1 else _value(b"", kind, depth)


def _value(raw: Any, kind: str, depth: int) -> Any:
    if kind in ("i", "b"):
        if not isinstance(raw, int):
            raise BadMessageError("proto: wrong wireType")
        return bool(raw) if kind == "b" else raw - (1 << 64) if raw >= 1 << 63 else raw
    data = _bytes(raw)
    if kind == "s":
        return bytes(data).decode("utf-8", "replace")
    if kind == "y":
        import base64

        return base64.b64encode(data).decode()
    if kind == "d":
        if len(data) != 8:
            raise BadMessageError("unexpected EOF")
        return struct.unpack("<d", data)[0]
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(dict(_split(data)), depth)
    found = _message(data, kind, depth + 1)
    # A named list, as ExtraValue.
    return found.get("items", []) if schema_data().get(kind, {}).get("type") == "array" or _only_items(kind) else found


@functools.cache
def _only_items(kind: str) -> bool:
    return kind not in schema_data() and _fields(kind) == {1: ("items", "*s")}


def _moment(parts: dict[int, Any], depth: int, *, digits: int = 0) -> str | None:
    del depth
    seconds, nanos = _signed(parts.get(1, 0)), _signed(parts.get(2, 0))
    if not parts or (seconds == -62135596800 and not nanos):
        return None  # Go's zero time
    try:
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)
    except OverflowError:
        raise BadMessageError("a time that is out of range") from None
    fraction = f".{nanos // 1000:06d}" if digits else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _signed(value: Any) -> int:
    if not isinstance(value, int):
        raise BadMessageError("proto: wrong wireType")
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(parts: dict[int, Any], depth: int) -> str:
    del depth
    return bytes(_bytes(parts.get(1, b""))).decode("utf-8", "replace")


def _int_or_string(parts: dict[int, Any], depth: int) -> Any:
    del depth
    if _signed(parts.get(1, 0)):
        return bytes(_bytes(parts.get(3, b""))).decode("utf-8", "replace")
    return _signed(parts.get(2, 0))


def _json(parts: dict[int, Any], depth: int) -> Any:
    del depth
    data = bytes(_bytes(parts.get(1, b"")))
    try:
        return msgspec.json.decode(data) if data else None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadMessageError(f"the JSON in it can't be read: {error}") from None


def _duration(parts: dict[int, Any], depth: int) -> str:
    del depth
    seconds, rest = divmod(_signed(parts.get(1, 0)), 10**9)
    return f"{seconds}.{rest:09d}".rstrip("0").rstrip(".") + "s"


_SPECIAL: Final[dict[str, Any]] = {
    f"{_META}Time": _moment,
    f"{_META}MicroTime": functools.partial(_moment, digits=6),
    f"{_META}Duration": _duration,
    f"{_META}FieldsV1": _json,
    "io.k8s.apimachinery.pkg.runtime.RawExtension": _json,
    "io.k8s.apimachinery.pkg.api.resource.Quantity": _text,
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _int_or_string,
}
