"""Schemas as CEL types: the fields that an expression may use below ``self``, and JSON values as expressions see them.

An object schema becomes a protobuf message for the checker, so that unknown fields and wrong types are found when an
expression is compiled. Lists of lists and maps of lists are looser than the real server has them: their items are dyn.
"""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import re
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import descriptor_pb2

from kgpu.lab.embedded.cel import values as cel_values
from kgpu.lab.embedded.cel.program import Type
from kgpu.lab.embedded.cel.values import fresh_pool
from kgpu.lab.embedded.crd.shape import Schema

_RESERVED: Final = frozenset(
    {
        "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import",
        "let", "loop", "package", "namespace", "return", "var", "void", "while",
    }
)  # fmt: skip
_ESCAPES: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_STRING: Final[Schema] = {"type": "string"}
_ROOT_FIELDS: Final[Schema] = {
    "apiVersion": _STRING,
    "kind": _STRING,
    "metadata": {"type": "object", "properties": {"name": _STRING, "generateName": _STRING}},
}
_serial: Final = itertools.count(1)


def escaped(name: str) -> str:
    """A property's name in expressions, "" when it can't be named there."""
    if not name or name[0].isdigit() or re.search(r"[^a-zA-Z0-9_./-]", name):
        return ""
    if name in _RESERVED:
        return f"__{name}__"
    return re.sub(r"__|[./-]", lambda found: _ESCAPES[found[0]], name)


def _seconds(text: Any) -> Any:
    units = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    parts = re.findall(r"([0-9.]+)(ns|us|µs|ms|s|m|h)", text) if isinstance(text, str) else []
    if not parts and text != "0":
        return text
    total = sum(float(number) * units[unit] for number, unit in parts)
    return cel_values.duration(-total if text.startswith("-") else total)


def _moment(text: Any) -> Any:
    try:
        moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00").replace("z", "+00:00"))
    except (ValueError, AttributeError):
        return text
    return cel_values.timestamp(moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC))


def _bytes(text: Any) -> Any:
    try:
        return base64.b64decode(text)
    except (ValueError, TypeError):
        return text


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_FORMATS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "byte": ("bytes", _bytes), "duration": ("duration", _seconds), "date": ("timestamp", _moment),
    "date-time": ("timestamp", _moment),
}  # fmt: skip
_SCALARS: Final[dict[str, tuple[str, Callable[[Any], Any] | None]]] = {
    "boolean": ("bool", None), "integer": ("int", None), "number": ("double", _number), "string": ("string", None),
}  # fmt: skip


class Declaration:
    """The CEL type of a schema.

    ``kind`` is bool, int, double, string, bytes, duration, timestamp, dyn, list, map or object.
    """

    __slots__ = ("convert", "fields", "inner", "kind", "message", "plain")

    def __init__(
        self, kind: str, *, convert: Callable[[Any], Any] | None = None, inner: Declaration | None = None,
        fields: dict[str, tuple[str, Declaration]] | None = None,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.convert = convert
        self.inner = inner
        self.fields = fields or {}  # by property name: the name in expressions, and its type
        self.message = ""
        # Values need no conversion: nothing below has another form or another name in expressions.
        self.plain: bool = (
            convert is None
            and (inner is None or inner.plain)
            and all(declared.plain and name == visible for name, (visible, declared) in self.fields.items())
        )

    def value(self, value: Any) -> Any:
        """A JSON value as expressions see it."""
        if value is None or self.plain:
            return value
        if self.convert is not None:
            return self.convert(value)
        if isinstance(value, list) and self.inner is not None:
            return [self.inner.value(item) for item in value]
        if isinstance(value, dict):
            if self.inner is not None:
                return {key: self.inner.value(item) for key, item in value.items()}
            converted = dict(value)
            for name, (visible, declared) in self.fields.items():
                if name in value:
                    converted[visible] = declared.value(value[name])
            return converted
        return value


def declare(raw: Schema, *, resource: bool = False) -> Declaration | None:
    """The type of a schema, None when expressions can't see such values.

    ``resource``: a whole object, with metadata.
    """
    if raw.get("x-kubernetes-int-or-string"):
        return Declaration("dyn")
    kind = raw.get("type")
    if resource:
        properties = {**(raw.get("properties") or {}), **_ROOT_FIELDS}
        raw = {**raw, "type": "object", "properties": properties, "additionalProperties": None}
        kind = "object"
    if kind == "array":
        items = raw.get("items")
        inner = _declare(items) if isinstance(items, dict) else None
        return Declaration("list", inner=inner) if inner else None
    if kind == "object":
        extra = raw.get("additionalProperties")
        if isinstance(extra, dict):
            inner = _declare(extra)
            return Declaration("map", inner=inner) if inner else None
        fields = {}
        for name, schema in (raw.get("properties") or {}).items():
            declared = _declare(schema)
            visible = escaped(name)
            if declared is not None and visible:
                fields[name] = (visible, declared)
        return Declaration("object", fields=fields)
    if kind == "string" and raw.get("format") in _FORMATS:
        name, convert = _FORMATS[raw["format"]]
        return Declaration(name, convert=convert)
    if kind in _SCALARS:
        name, scalar = _SCALARS[kind]
        return Declaration(name, convert=scalar)
    return None


def _declare(raw: Schema) -> Declaration | None:
    return declare(raw, resource=bool(raw.get("x-kubernetes-embedded-resource")))


_WELL_KNOWN: Final = {
    "dyn": ".google.protobuf.Value", "timestamp": ".google.protobuf.Timestamp", "duration": ".google.protobuf.Duration",
    "list": ".google.protobuf.ListValue", "map": ".google.protobuf.Struct",
}  # fmt: skip
_PRIMITIVE: Final = {
    "bool": _FIELD.TYPE_BOOL, "int": _FIELD.TYPE_INT64, "double": _FIELD.TYPE_DOUBLE, "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}  # fmt: skip
_TYPES: Final = {
    "bool": Type.BOOL, "int": Type.INT, "double": Type.DOUBLE, "string": Type.STRING, "bytes": Type.BYTES,
    "duration": Type.DURATION, "timestamp": Type.TIMESTAMP, "dyn": Type.DYN,
}  # fmt: skip


_STEPS: Final = {"list": ".@idx", "map": ".@elem"}


def _entry_name(field: str) -> str:
    """The name that protobuf requires for a map field's entry type."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


class Typed:
    """The checker's type of a declaration, with the pool of descriptors that it needs."""

    def __init__(self, declaration: Declaration) -> None:
        package = f"selfType{next(_serial)}"
        self._file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        self._file.dependency.extend(
            f"google/protobuf/{name}.proto" for name in ("struct", "timestamp", "duration")
        )  # fmt: skip
        self._package = package
        # The types' names in error messages: their place in the schema.
        self.names: dict[str, str] = {}
        name = self._type_name(declaration, "")
        self.pool = fresh_pool()
        self.add_to(self.pool)
        self.type = name()

    def add_to(self, pool: Any) -> None:
        """Add the descriptors to another pool (of ``fresh_pool``), so that it knows the type, too."""
        pool.AddSerializedFile(self._file.SerializeToString())

    def _type_name(self, declaration: Declaration, path: str) -> Callable[[], Any]:
        """Messages are added at once; the type itself can be made only once they are in the pool."""
        if declaration.kind == "object":
            message = self._message(declaration, path)
            return lambda: Type(message)
        if declaration.kind in {"list", "map"}:
            assert declaration.inner is not None
            inner = self._type_name(declaration.inner, path + _STEPS[declaration.kind])
            if declaration.kind == "list":
                return lambda: Type.List(inner())
            return lambda: Type.Map(Type.STRING, inner())
        return lambda: _TYPES[declaration.kind]

    def _message(self, declaration: Declaration, path: str) -> str:
        message = self._file.message_type.add(name=f"object{len(self._file.message_type)}")
        self.names[f"{self._package}.{message.name}"] = self._package + path
        for number, (name, (visible, declared)) in enumerate(declaration.fields.items(), start=1):
            below = f"{path}.{name}"
            field = message.field.add(name=visible, number=number, label=_FIELD.LABEL_OPTIONAL)
            field.json_name = f"j{number}"
            if declared.kind == "list" and declared.inner is not None and declared.inner.kind not in {"list", "map"}:
                field.label = _FIELD.LABEL_REPEATED
                self._set(field, declared.inner, below + _STEPS["list"])
            elif self._is_plain_map(declared) and _entry_name(visible) not in {
                each.name for each in message.nested_type
            }:
                assert declared.inner is not None
                entry = message.nested_type.add(name=_entry_name(visible))
                entry.options.map_entry = True
                key = entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL)
                key.type = _FIELD.TYPE_STRING
                value = entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL)
                self._set(value, declared.inner, below + _STEPS["map"])
                field.label = _FIELD.LABEL_REPEATED
                field.type = _FIELD.TYPE_MESSAGE
                field.type_name = f".{self._package}.{message.name}.{entry.name}"
            else:
                self._set(field, declared, below)
        return f"{self._package}.{message.name}"

    @staticmethod
    def _is_plain_map(declaration: Declaration) -> bool:
        inner = declaration.inner
        return declaration.kind == "map" and inner is not None and inner.kind not in {"list", "map"}

    def _set(self, field: descriptor_pb2.FieldDescriptorProto, declaration: Declaration, path: str) -> None:
        if declaration.kind in _PRIMITIVE:
            field.type = _PRIMITIVE[declaration.kind]
        else:
            field.type = _FIELD.TYPE_MESSAGE
            field.type_name = _WELL_KNOWN.get(declaration.kind) or f".{self._message(declaration, path)}"
