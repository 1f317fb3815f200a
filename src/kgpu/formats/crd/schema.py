"""Structural OpenAPI v3 schemas of the custom resources, made from the structs.

Unknown fields are pruned by the API server; no object may have any shape it likes, so `kubectl explain` knows all.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kgpu.formats.crd.fields import SchemaField, Type, rows

SCALARS: Final = {bool: "boolean", int: "integer", str: "string"}
INT_OR_STRING: Final = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def schema(struct: type[msgspec.Struct], *, rules: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    """The schema of a mapping. ``rules`` are CEL rules about all of it, each with the message of its refusal."""
    fields = rows(struct)
    required = [row.name for row in fields if row.required]
    return {
        "type": "object",
        "description": (struct.__doc__ or "").strip(),
        **({"required": required} if required else {}),
        **rules_of(rules),
        "properties": {row.name: _field(row) for row in fields},
    }


def _field(row: SchemaField) -> dict[str, Any]:
    fragment = {**of_type(row.type), "description": row.doc, **rules_of(row.rules)}
    if row.default is not None:
        fragment["default"] = row.default
    return fragment


def of_type(kind: Type) -> dict[str, Any]:
    """The schema of one value."""
    if kind.int_or_string:
        fragment: dict[str, Any] = dict(INT_OR_STRING)
    elif kind.struct:
        fragment = schema(kind.struct)
    elif kind.items:
        fragment = {"type": "array", "items": of_type(kind.items)}
    elif kind.values:
        fragment = {"type": "object", "additionalProperties": of_type(kind.values)}
    else:
        fragment = {"type": SCALARS[kind.scalar or str]}
    if kind.enum:
        fragment["enum"] = list(kind.enum)
    fragment.update(kind.checks)
    if kind.doc:
        fragment["description"] = kind.doc
    return fragment


def rules_of(rules: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """CEL rules, each with the message of its refusal, as a part of a schema; {} without any."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": text} for rule, text in rules]} if rules else {}
