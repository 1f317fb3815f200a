"""Whether a schema is structural: every field has a type of its own, and schemas below allOf, anyOf, oneOf and not only
restrict values. Rules and messages: apiextensions' structural schemas.
"""

from __future__ import annotations

from typing import Any, Final

from kgpu.lab.embedded.cel.patterns import go_pattern
from kgpu.lab.embedded.crd.shape import Schema
from kgpu.lab.embedded.status import FieldError, bad_value, forbidden_field, required

_ROOT: Final = "at the root"
_EMPTY_TYPE: Final = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
_INT_OR_STRING: Final = [{"type": "integer"}, {"type": "string"}]
# Fields that a schema below a junctor may not have, and the message.
_NESTED: Final = (
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
    ("x-kubernetes-validations", "must be empty to be structural"),
)
_UNSUPPORTED: Final = ("id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions")
_UNSUPPORTED_NAMES: Final = {"$schema": "schema"}


def unsupported(raw: Any) -> str:
    """Why a schema can't be checked at all, "" when it can."""
    for key in _UNSUPPORTED:
        if raw.get(key):
            return f"OpenAPIV3Schema '{_UNSUPPORTED_NAMES.get(key, key)}' is not supported"
    if raw.get("x-kubernetes-preserve-unknown-fields") is False:
        return "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined"
    if isinstance(raw.get("items"), list):
        return "OpenAPIV3Schema 'items' must be a schema, but is an array"
    below = [*(raw.get("properties") or {}).values(), raw.get("items"), raw.get("additionalProperties"), raw.get("not")]
    below += [branch for key in ("allOf", "anyOf", "oneOf") for branch in raw.get(key) or ()]
    return next((words for schema in below if isinstance(schema, dict) and (words := unsupported(schema))), "")


def complaints(raw: Schema, path: str) -> list[FieldError]:
    """All errors, sorted by their text, as the real server sorts them."""
    errors: list[FieldError] = []
    _invariants(raw, "root", path, errors)
    _complete(raw, raw, path, path, errors)
    return sorted(errors, key=str)


def _invariants(raw: Schema, level: str, path: str, errors: list[FieldError]) -> None:
    kind, items, extra = raw.get("type") or "", raw.get("items"), raw.get("additionalProperties")
    if kind == "array" and items is None:
        errors.append(required(f"{path}.items", "must be specified"))
    if isinstance(items, dict):
        _invariants(items, "item", f"{path}.items", errors)
    properties = raw.get("properties") or {}
    for name, prop in properties.items():
        _invariants(prop, "field", f"{path}.properties[{name}]", errors)
    if extra is not None:
        if level == "root":
            errors.append(forbidden_field(f"{path}.additionalProperties", "must not be used at the root"))
        if isinstance(extra, dict):
            _invariants(extra, "field", f"{path}.additionalProperties", errors)
    either, preserves = (
        bool(raw.get("x-kubernetes-int-or-string")),
        bool(raw.get("x-kubernetes-preserve-unknown-fields")),
    )
    embedded = bool(raw.get("x-kubernetes-embedded-resource"))
    for name, wrong in (("preserve-unknown-fields", preserves), ("embedded-resource", embedded)):
        if either and wrong:
            at = f"{path}.x-kubernetes-{name}"
            errors.append(bad_value(at, True, "must be false if x-kubernetes-int-or-string is true"))
    first = (raw.get("allOf") or [{}])[0]
    skip_any, skip_first = raw.get("anyOf") == _INT_OR_STRING, first.get("anyOf") == _INT_OR_STRING
    _restrictions(raw, level, path, errors, skip_any=skip_any, skip_first=skip_first)
    if embedded and kind != "object":
        words = "must be object if x-kubernetes-embedded-resource is true"
        errors.append(bad_value(f"{path}.type", kind, words) if kind else required(f"{path}.type", words))
    elif not kind and not either and not preserves:
        errors.append(required(f"{path}.type", _EMPTY_TYPE[level]))
    if embedded and extra is not None:
        words = "must not be used if x-kubernetes-embedded-resource is set"
        errors.append(forbidden_field(f"{path}.additionalProperties", words))
    if level == "root" and kind and kind != "object":
        errors.append(bad_value(f"{path}.type", kind, "must be object at the root"))
    _own_fields(properties, level, path, errors, resource=level == "root" or embedded)
    if embedded and not preserves and not properties:
        words = (
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"
        )
        errors.append(required(f"{path}.properties", words))


def _own_fields(properties: Schema, level: str, path: str, errors: list[FieldError], *, resource: bool) -> None:
    if resource:
        for name in ("kind", "apiVersion"):
            if name in properties and properties[name].get("type") != "string":
                kind = properties[name].get("type") or ""
                errors.append(bad_value(f"{path}.properties[{name}].type", kind, "must be string"))
    meta = properties.get("metadata")
    if meta is None:
        return
    at = f"{path}.properties[metadata]"
    if resource and meta.get("type") != "object":
        errors.append(bad_value(f"{at}.type", meta.get("type") or "", "must be object"))
    if level == "root":
        rest = {key: field for key, field in meta.items() if key not in {"type", "default"}}
        if rest.get("properties") and set(rest["properties"]) <= {"name", "generateName"}:
            del rest["properties"]
        if rest:
            words = "must not specify anything other than name and generateName, but metadata is implicitly specified"
            errors.append(forbidden_field(at, words))


def _restrictions(
    raw: Schema, level: str, path: str, errors: list[FieldError], *, skip_any: bool = False, skip_first: bool = False
) -> None:  # fmt: skip
    """Check what restricts values: the junctors and the pattern."""
    if not skip_any:
        for index, branch in enumerate(raw.get("anyOf") or ()):
            _nested(branch, level, f"{path}.anyOf[{index}]", errors)
    for index, branch in enumerate(raw.get("allOf") or ()):
        _nested(branch, level, f"{path}.allOf[{index}]", errors, skip_any=skip_first and index == 0)
    for index, branch in enumerate(raw.get("oneOf") or ()):
        _nested(branch, level, f"{path}.oneOf[{index}]", errors)
    if isinstance(raw.get("not"), dict):
        _nested(raw["not"], level, f"{path}.not", errors)
    if raw.get("pattern"):
        try:
            go_pattern(raw["pattern"])
        except ValueError as error:
            words = f"must be a valid regular expression, but isn't: {error}"
            errors.append(bad_value(f"{path}.pattern", raw["pattern"], words))


def _nested(raw: Schema, level: str, path: str, errors: list[FieldError], *, skip_any: bool = False) -> None:
    _restrictions(raw, level, path, errors, skip_any=skip_any)
    if isinstance(raw.get("items"), dict):
        _nested(raw["items"], level, f"{path}.items", errors)
    for name, prop in (raw.get("properties") or {}).items():
        _nested(prop, "field", f"{path}.properties[{name}]", errors)
    for key, words in _NESTED:
        if raw.get(key) or (key == "additionalProperties" and raw.get(key) == {}) or (key == "default" and key in raw):
            errors.append(forbidden_field(f"{path}.{key}", words))
    if "metadata" in (raw.get("properties") or {}):
        errors.append(forbidden_field(f"{path}.properties[metadata]", "must not be specified in a nested context"))


def _complete(
    value: Schema | None, spine: Schema | None, path: str, at: str, errors: list[FieldError], *, nested: bool = False
) -> None:  # fmt: skip
    """Check that every field in a restriction is in the structure, too.

    ``path`` is in the structure, ``at`` in the restrictions.
    """
    if value is None:
        return
    if spine is None:
        errors.append(required(path, f"because it is defined in {at}"))
        return
    if isinstance(value.get("not"), dict):
        _complete(value["not"], spine, path, f"{at}.not", errors, nested=True)
    for key in ("allOf", "anyOf", "oneOf"):
        for index, branch in enumerate(value.get(key) or ()):
            _complete(branch, spine, path, f"{at}.{key}[{index}]", errors, nested=True)
    if not nested:
        return
    if isinstance(value.get("items"), dict):
        _complete(value["items"], spine.get("items"), f"{path}.items", f"{at}.items", errors, nested=True)
    for name, branch in (value.get("properties") or {}).items():
        below, where = f"{path}.properties[{name}]", f"{at}.properties[{name}]"
        known = (spine.get("properties") or {}).get(name)
        if known is None:
            errors.append(required(below, f"because it is defined in {where}"))
        else:
            _complete(branch, known, below, where, errors, nested=True)
