"""Decoding of the parts of a CRD's schema that may have several types: a schema, a list of schemas, or a boolean.

The types of built-in kinds leave them open. As in the real server nothing in them is strict: unknown fields are dropped
silently, wrong types are errors.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from kgpu.lab.embedded.crd.shape import Schema
from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.strict import check

_PROPS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
_MAPS: Final = ("properties", "patternProperties", "definitions")
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_BOOLEANS: Final = ("additionalProperties", "additionalItems")


class SchemaTypeError(ValueError):
    """JSON of the wrong type in a schema, in Go's words."""


@functools.cache
def _node() -> SchemaNode:
    return SchemaNode({"$ref": _PROPS}, schema_data())


def decode(raw: Schema) -> None:
    """Decode these parts of a schema and of all schemas below it, in place. Raises SchemaTypeError."""
    if isinstance(raw.get("items"), list):
        raw["items"] = [_schema(item) for item in raw["items"]]
    elif isinstance(raw.get("items"), dict):
        raw["items"] = _schema(raw["items"])
    else:
        raw.pop("items", None)
    for name in _BOOLEANS:
        nested = raw.get(name)
        if isinstance(nested, dict):
            raw[name] = _schema(nested)
        elif nested is not None and not isinstance(nested, bool):
            raise SchemaTypeError("json: cannot unmarshal: boolean or JSON schema expected")
    dependencies = raw.get("dependencies")
    if isinstance(dependencies, dict):
        raw["dependencies"] = {
            name: nested if isinstance(nested, list) else {} for name, nested in dependencies.items()
        }
    for nested in _below(raw):
        decode(nested)


def _schema(raw: Any) -> Schema:
    decoded, _, wrong = check(raw if raw is not None else {}, _node())
    if wrong:
        raise SchemaTypeError(wrong[0])
    return decoded if isinstance(decoded, dict) else {}


def _below(raw: Schema) -> list[Schema]:
    below = [one for name in _MAPS for one in (raw.get(name) or {}).values()]
    below += (one for name in _LISTS for one in raw.get(name) or ())
    items = raw.get("items")
    below += items if isinstance(items, list) else [items]
    below += (raw.get(name) for name in (*_BOOLEANS, "not"))
    return [one for one in below if isinstance(one, dict)]
