"""Decoding of the parts of a CRD's schema that are one thing or another: a schema, a list of schemas, or a boolean.

The types of built-in kinds leave them open. As in the real server nothing in them is strict: unknown fields are dropped
without a word, wrong types are errors.
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
    """Decode what is open in a schema and in all below it, in place. Raises SchemaTypeError."""
    if isinstance(raw.get("items"), list):
        raw["items"] = [_schema(one) for one in raw["items"]]
    elif isinstance(raw.get("items"), dict):
        raw["items"] = _schema(raw["items"])
    else:
        raw.pop("items", None)
    for name in _BOOLEANS:
        one = raw.get(name)
        if isinstance(one, dict):
            raw[name] = _schema(one)
        elif one is not None and not isinstance(one, bool):
            raise SchemaTypeError("json: cannot unmarshal: boolean or JSON schema expected")
    dependencies = raw.get("dependencies")
    if isinstance(dependencies, dict):
        raw["dependencies"] = {name: one if isinstance(one, list) else {} for name, one in dependencies.items()}
    for one in _below(raw):
        decode(one)


def _schema(raw: Any) -> Schema:
    found, _, wrong = check(raw if raw is not None else {}, _node())
    if wrong:
        raise SchemaTypeError(wrong[0])
    return found if isinstance(found, dict) else {}


def _below(raw: Schema) -> list[Schema]:
    found = [one for name in _MAPS for one in (raw.get(name) or {}).values()]
    found += (one for name in _LISTS for one in raw.get(name) or ())
    items = raw.get("items")
    found += items if isinstance(items, list) else [items]
    found += (raw.get(name) for name in (*_BOOLEANS, "not"))
    return [one for one in found if isinstance(one, dict)]
