"""Reduces a custom kind's schema for OpenAPI v2, where the real server publishes less of it, for kubectl's sake.

Source of the rules: apiextensions' controller/openapi (v2/conversion.go, builder/builder.go).
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_LEFT_OUT: Final = frozenset({"allOf", "anyOf", "oneOf", "not", "nullable", "default"})


def takes_anything(raw: Schema) -> bool:
    """Whether v2 leaves the type open: a client would take the properties, even metadata, for all there can be."""
    return bool(raw.get(_PRESERVE))


def reduced(raw: Schema) -> Schema:
    """A copy of the schema without what v2 can't express, at every level."""
    schema = {name: value for name, value in raw.items() if name not in _LEFT_OUT}
    preserves = takes_anything(raw)
    if raw.get("nullable") or preserves:
        # Clients fail on untyped or open values that have items or properties.
        schema.pop("items", None)
        schema.pop("properties", None)
    kind = raw.get("type")
    untyped = (kind == "array" and "items" not in schema) or (kind == "object" and preserves)
    if raw.get("nullable") or untyped:
        schema.pop("type", None)
    return _below(schema)


def _below(schema: Schema) -> Schema:
    required = schema.get("required")
    properties = schema.get("properties") or {}
    if required:
        schema["required"] = [field for field in required if not (properties.get(field) or {}).get("nullable")]
    for name in ("items", "additionalProperties"):
        child = schema.get(name)
        if isinstance(child, dict):
            schema[name] = reduced(child)
            if name == "additionalProperties" and child.get("nullable"):
                schema.pop("required", None)
    if properties:
        schema["properties"] = {name: reduced(child) for name, child in properties.items()}
    return schema
