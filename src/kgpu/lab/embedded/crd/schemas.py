"""JSONSchemaProps as Go encodes them: the fields, and which of them are omitted when empty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from kgpu.lab.embedded.crd.shape import Schema
from kgpu.lab.embedded.status import Verbatim, shown

_ONE: Final = ("items", "additionalProperties", "not", "additionalItems")
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_MAPS: Final = ("properties", "patternProperties", "definitions", "dependencies")
# Left out when they have Go's zero value. Pointers (limits, x-kubernetes-preserve-unknown-fields) are kept.
_EMPTY: Final = frozenset(
    {
        "id", "$schema", "description", "type", "format", "title", "pattern", "exclusiveMaximum", "exclusiveMinimum",
        "uniqueItems", "required", "enum", "nullable", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys", "x-kubernetes-validations", *_LISTS, *_MAPS,
    }
)  # fmt: skip
_KEPT: Final = frozenset(
    {
        "$ref", "default", "example", "externalDocs", "maximum", "minimum", "maxLength", "minLength", "maxItems",
        "minItems", "multipleOf", "maxProperties", "minProperties", "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-list-type", "x-kubernetes-map-type", *_ONE,
    }
)  # fmt: skip
_RULE: Final = ("message", "messageExpression", "fieldPath")


def clean(raw: Schema) -> Schema:
    """A copy as Go would encode it, nested schemas included."""
    cleaned: Schema = {}
    for key, value in raw.items():
        if value is None or (key in _EMPTY and not value) or (key not in _EMPTY and key not in _KEPT):
            continue
        if key in _MAPS and isinstance(value, dict):
            cleaned[key] = {
                name: clean(schema) if isinstance(schema, dict) else schema for name, schema in value.items()
            }
        elif key in _LISTS and isinstance(value, list):
            cleaned[key] = [clean(schema) if isinstance(schema, dict) else schema for schema in value]
        elif key in _ONE and isinstance(value, dict):
            cleaned[key] = clean(value)
        elif key in _ONE and isinstance(value, list):
            cleaned[key] = [clean(schema) if isinstance(schema, dict) else schema for schema in value]
        elif key == "x-kubernetes-validations":
            cleaned[key] = [{"rule": "", **{k: v for k, v in rule.items() if k not in _RULE or v}} for rule in value]
        else:
            cleaned[key] = value
    return cleaned


def children(raw: Schema) -> Iterator[Any]:
    """The schemas directly below this one."""
    for key in _MAPS:
        yield from (schema for schema in (raw.get(key) or {}).values() if isinstance(schema, dict))
    for key in _LISTS:
        yield from raw.get(key) or ()
    for key in _ONE:
        value = raw.get(key)
        if isinstance(value, dict):
            yield value
        elif isinstance(value, list):
            yield from value


def each(raw: Schema) -> Iterator[Schema]:
    """A schema and all below it."""
    yield raw
    for child in children(raw):
        yield from each(child)


# JSONSchemaProps as the real server's internal type prints it in messages: Go's field, ours, its zero value.
_GO_FIELDS: Final = (
    ("ID", "id", '""'), ("Schema", "$schema", '""'), ("Ref", "$ref", "null"), ("Description", "description", '""'),
    ("Type", "type", '""'), ("Nullable", "nullable", "false"), ("Format", "format", '""'), ("Title", "title", '""'),
    ("Default", "default", "null"), ("Maximum", "maximum", "null"), ("ExclusiveMaximum", "exclusiveMaximum", "false"),
    ("Minimum", "minimum", "null"), ("ExclusiveMinimum", "exclusiveMinimum", "false"),
    ("MaxLength", "maxLength", "null"),
    ("MinLength", "minLength", "null"), ("Pattern", "pattern", '""'), ("MaxItems", "maxItems", "null"),
    ("MinItems", "minItems", "null"), ("UniqueItems", "uniqueItems", "false"), ("MultipleOf", "multipleOf", "null"),
    ("Enum", "enum", "null"), ("MaxProperties", "maxProperties", "null"), ("MinProperties", "minProperties", "null"),
    ("Required", "required", "null"), ("Items", "items", "null"), ("AllOf", "allOf", "null"),
    ("OneOf", "oneOf", "null"),
    ("AnyOf", "anyOf", "null"), ("Not", "not", "null"), ("Properties", "properties", "null"),
    ("AdditionalProperties", "additionalProperties", "null"), ("PatternProperties", "patternProperties", "null"),
    ("Dependencies", "dependencies", "null"), ("AdditionalItems", "additionalItems", "null"),
    ("Definitions", "definitions", "null"), ("ExternalDocs", "externalDocs", "null"), ("Example", "example", "null"),
    ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields", "null"),
    ("XEmbeddedResource", "x-kubernetes-embedded-resource", "false"),
    ("XIntOrString", "x-kubernetes-int-or-string", "false"), ("XListMapKeys", "x-kubernetes-list-map-keys", "null"),
    ("XListType", "x-kubernetes-list-type", "null"), ("XMapType", "x-kubernetes-map-type", "null"),
    ("XValidations", "x-kubernetes-validations", "null"),
)  # fmt: skip
_GO_RULE: Final = (
    ("Rule", "rule", ""), ("Message", "message", ""), ("MessageExpression", "messageExpression", ""),
    ("Reason", "reason", None), ("FieldPath", "fieldPath", ""), ("OptionalOldSelf", "optionalOldSelf", None),
)  # fmt: skip
ROOT_FIELDS: Final = (
    "Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum", "ExclusiveMinimum", "MaxLength",
    "MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf", "Required", "Items", "Properties",
    "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations",
)  # fmt: skip


def not_for_roots(raw: Schema) -> bool:
    """Whether it has a field that the root of a schema may not have if status is a subresource."""
    return any(ours in raw for go, ours, _ in _GO_FIELDS if go not in ROOT_FIELDS)


def go_rule(raw: Schema) -> Verbatim:
    """A validation rule as messages print it."""
    return go_struct(_GO_RULE, raw)


def go_struct(fields: Iterable[tuple[str, str, Any]], raw: Schema) -> Verbatim:
    """A value as Go prints a struct of ``fields``: Go's name, ours, the value when it is absent."""
    return Verbatim("{" + ",".join(f'"{go}":{_json(raw.get(ours, zero))}' for go, ours, zero in fields) + "}")


def go_schema(raw: Schema) -> Verbatim:
    """A schema as messages print it."""
    return Verbatim(
        "{"
        + ",".join(f'"{go}":{_go_value(ours, raw[ours]) if ours in raw else zero}' for go, ours, zero in _GO_FIELDS)
        + "}"
    )


def _go_value(field: str, value: Any) -> str:
    if field in _LISTS:
        return "[" + ",".join(go_schema(branch) for branch in value) + "]"
    if field in {"properties", "patternProperties", "definitions"}:
        return "{" + ",".join(f"{_json(name)}:{go_schema(value[name])}" for name in sorted(value)) + "}"
    if field in {"additionalProperties", "additionalItems"}:
        schema = go_schema(value) if isinstance(value, dict) else "null"
        return f'{{"Allows":{"true" if value is not False else "false"},"Schema":{schema}}}'
    if field == "items":
        return f'{{"Schema":{go_schema(value)},"JSONSchemas":null}}'
    if field == "not":
        return go_schema(value)
    if field == "x-kubernetes-validations":
        return "[" + ",".join(go_rule(rule) for rule in value) + "]"
    return _json(value)


def _json(value: Any) -> str:
    # Structured, so that it is escaped as Go escapes texts inside of JSON.
    return shown([value])[1:-1]
