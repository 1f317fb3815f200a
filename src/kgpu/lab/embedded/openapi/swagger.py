"""OpenAPI v2 as far as kubectl still needs it: the definitions, by which it checks lists and kinds it doesn't know.

Made from the v3 schemas, as JSON or as the protobuf message that kubectl insists on (gnostic's Document of OpenAPI v2).
It has no paths, which clients find in v3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from kgpu.lab.embedded.crd.version import Version
from kgpu.lab.embedded.openapi import custom, recorded
from kgpu.lab.embedded.openapi.recorded import Pieces

Schema = dict[str, Any]

_V3: Final = "#/components/schemas/"
_V2: Final = "#/definitions/"
_SWAGGER: Final = "2.0"
# Left out: v2 can't express it, or clients must not check objects by it.
_LEFT_OUT: Final = frozenset({"default", "nullable", "anyOf", "oneOf", "allOf", "not", "properties"})
_UNTYPED: Final = ("nullable", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")


def as_json(versions: Iterable[Version]) -> bytes:
    """The document as JSON."""
    own = {name: msgspec.Raw(msgspec.json.encode(schema)) for name, schema in _custom(versions).items()}
    definitions = {**_builtin_pieces(), **own}
    document = {
        "swagger": msgspec.Raw(msgspec.json.encode(_SWAGGER)),
        "info": _info(),
        "paths": msgspec.Raw(b"{}"),
        "definitions": recorded.members(definitions),
    }
    return bytes(recorded.members(document))


def as_protobuf(versions: Iterable[Version]) -> bytes:
    """The document as a protobuf message."""
    info: Mapping[str, str] = msgspec.json.decode(_info())
    own = (_member(1, name, _schema(schema)) for name, schema in _custom(versions).items())
    definitions = b"".join((_builtin_messages(), *own))
    about = _text(1, info["title"]) + _text(2, info["version"])
    return _text(1, _SWAGGER) + _bytes(2, about) + _bytes(8, b"") + _bytes(9, definitions)


def _info() -> msgspec.Raw:
    return recorded.parts("api/v1").info


def _builtin() -> Mapping[str, Schema]:
    schemas = recorded.recording().schemas
    return {name: _converted(msgspec.json.decode(piece)) for name, piece in schemas.items()}


@functools.cache
def _builtin_pieces() -> Pieces:
    return {name: msgspec.Raw(msgspec.json.encode(schema)) for name, schema in _builtin().items()}


@functools.cache
def _builtin_messages() -> bytes:
    return b"".join(_member(1, name, _schema(schema)) for name, schema in _builtin().items())


def _custom(versions: Iterable[Version]) -> dict[str, Schema]:
    return {
        name: _rewritten(msgspec.json.decode(piece))
        for version in versions
        for name, piece in custom.schemas(version, for_v2=True).items()
    }


def _rewritten(schema: Any) -> Any:
    """The schema with v2 references; ``reduced`` has done the rest."""
    if isinstance(schema, list):
        return [_rewritten(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    only = schema.get("allOf")
    if isinstance(only, list) and "$ref" in only[0]:
        schema = {**{name: child for name, child in schema.items() if name not in ("allOf", "default")}, **only[0]}
    rewritten = {name: _rewritten(child) for name, child in schema.items()}
    if isinstance(rewritten.get("$ref"), str):
        rewritten["$ref"] = rewritten["$ref"].replace(_V3, _V2)
    return rewritten


def _converted(schema: Schema) -> Schema:
    """A v3 schema in the form of v2; what v2 can't express is left open."""
    only = schema.get("allOf", ())
    if len(only) == 1 and "$ref" in only[0]:
        schema = {**schema, **only[0]}
    kinds = "x-kubernetes-group-version-kind"
    if any(schema.get(name) for name in _UNTYPED) and kinds not in schema:
        return {"description": schema["description"]} if "description" in schema else {}
    converted = {name: value for name, value in schema.items() if name not in _LEFT_OUT}
    if "$ref" in converted:
        converted["$ref"] = converted["$ref"].replace(_V3, _V2)
    if "oneOf" in schema and "type" not in schema and "x-kubernetes-group-version-kind" not in schema:
        converted["type"] = "string"
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        # A client takes the properties for all there can be.
        return converted
    if "properties" in schema:
        converted["properties"] = {name: _converted(child) for name, child in schema["properties"].items()}
    for name in ("items", "additionalProperties"):
        if isinstance(converted.get(name), dict):
            converted[name] = _converted(converted[name])
    return converted


# --- protobuf ------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _member(field: int, name: str, value: bytes) -> bytes:
    """An entry of a map: a name and its value."""
    return _bytes(field, _text(1, name) + _bytes(2, value))


def _any(value: Any) -> bytes:
    """A value as YAML, of which JSON is a part."""
    return _text(2, msgspec.json.encode(value).decode())


def _properties(value: Mapping[str, Schema]) -> bytes:
    return b"".join(_member(1, name, _schema(schema)) for name, schema in value.items())


def _additional(value: Schema | bool) -> bytes:
    return _bytes(1, _schema(value)) if isinstance(value, dict) else bytes((2 << 3, int(value)))


# Fields of the message ``Schema`` that a client checks or shows, with how each is written.
_FIELDS: Final[Mapping[str, tuple[int, Callable[[Any], bytes]]]] = {
    "$ref": (1, str.encode),
    "format": (2, str.encode),
    "title": (3, str.encode),
    "description": (4, str.encode),
    "additionalProperties": (21, _additional),
    "type": (22, lambda value: _text(1, value)),
    "items": (23, lambda value: _bytes(1, _schema(value))),
    "properties": (25, _properties),
}


def _schema(schema: Schema) -> bytes:
    fields = [_bytes(field, write(schema[name])) for name, (field, write) in _FIELDS.items() if name in schema]
    fields += (_text(19, name) for name in schema.get("required", ()))
    fields += (_member(31, name, _any(value)) for name, value in schema.items() if name.startswith("x-"))
    return b"".join(fields)
