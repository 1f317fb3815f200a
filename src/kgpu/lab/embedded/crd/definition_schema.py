"""Validation of one schema of a CRD: OpenAPI, structural schema, defaults, CEL rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from kgpu.lab.embedded.crd import structural
from kgpu.lab.embedded.crd.definition_defaults import defaults
from kgpu.lab.embedded.crd.fieldpaths import PathError, resolve
from kgpu.lab.embedded.crd.rules import compiled
from kgpu.lab.embedded.crd.schemas import ROOT_FIELDS, go_rule, go_schema, not_for_roots
from kgpu.lab.embedded.crd.shape import META, Schema
from kgpu.lab.embedded.status import FieldError, Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate.base import not_supported

_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_REASONS: Final = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_UNSUPPORTED: Final = ("additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
_RULES: Final = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SchemaPlace:
    """A place in the schema, and the constraints that hold there."""

    no_defaults: str | None = None  # why defaults are not allowed here, None when they are
    in_meta: bool = False
    uncorrelated: str = ""  # the path above which old and new values can't be matched
    rules: bool = True  # rules may stand here
    resource: bool = False


@dataclass(slots=True)
class _Complaints:
    schema: list[FieldError] = field(default_factory=list)
    rules: list[FieldError] = field(default_factory=list)


def schema(validation: Object | None, path: str, *, status: bool) -> list[FieldError]:
    """All errors in ``validation.openAPIV3Schema``. ``status``: a version with it has the status subresource.

    Rules that an update keeps are compiled again, like new ones: the environment is the same.
    """
    raw = (validation or {}).get("openAPIV3Schema")
    if raw is None:
        return []
    at = f"{path}.openAPIV3Schema"
    errors: list[FieldError] = []
    if status:
        if raw.get("type") and raw["type"] != "object":
            words = (
                'only "object" is allowed as the type at the root of the schema if the status subresource is enabled'
            )
            errors.append(bad_value(f"{at}.type", raw["type"], words))
        elif not_for_roots(raw):
            allowed = f"[{' '.join(ROOT_FIELDS)}]"
            words = f"only {allowed} fields are allowed at the root of the schema if the status subresource is enabled"
            errors.append(bad_value(at, go_schema(raw), words))
    if raw.get("nullable"):
        errors.append(forbidden_field(f"{at}.nullable", "nullable cannot be true at the root"))
    broken = structural.unsupported(raw)
    shaped: list[FieldError] = []
    if not broken:
        shaped = structural.complaints(raw, at) or defaults(raw, at)
        errors += shaped
    complaints = _Complaints()
    _check(raw, at, _SchemaPlace(resource=True, rules=not broken and not shaped), complaints, root=True)
    errors += complaints.schema + complaints.rules
    if not errors and broken:
        errors.append(bad_value(at, "", broken))
    return errors


def _check(raw: Schema, path: str, place: _SchemaPlace, complaints: _Complaints, *, root: bool = False) -> None:
    errors = complaints.schema
    count = len(errors)
    _standard(raw, path, place, errors)
    if raw.get("uniqueItems"):
        words = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        errors.append(forbidden_field(f"{path}.uniqueItems", words))
    _maps(raw, path, place, complaints, root=root)
    nested = replace(place, rules=False, resource=False)
    if isinstance(raw.get("not"), dict):
        _check(raw["not"], f"{path}.not", nested, complaints)
    for key in ("allOf", "oneOf", "anyOf"):
        for index, branch in enumerate(raw.get(key) or ()):
            _check(branch, f"{path}.{key}[{index}]", nested, complaints)
    items = raw.get("items")
    if items is not None:
        below = replace(place, resource=False)
        if raw.get("x-kubernetes-list-type") != "map" and not place.uncorrelated:
            below = replace(below, uncorrelated=path)
        if isinstance(items, dict):
            _check(
                items,
                f"{path}.items",
                replace(below, resource=bool(items.get("x-kubernetes-embedded-resource"))),
                complaints,
            )
        elif isinstance(items, list):
            for index, branch in enumerate(items):
                _check(branch, f"{path}.items[{index}]", below, complaints)
    _extensions(raw, path, errors)
    if raw.get(_RULES):
        _rules(raw, path, errors)
        if len(errors) == count and place.rules:
            _compile(raw, path, place, complaints.rules)


def _maps(raw: Schema, path: str, place: _SchemaPlace, complaints: _Complaints, *, root: bool) -> None:
    properties, extra = raw.get("properties") or {}, raw.get("additionalProperties")
    if extra is not None:
        if properties and extra is not True:
            words = "additionalProperties and properties are mutual exclusive"
            complaints.schema.append(forbidden_field(f"{path}.additionalProperties", words))
        below = replace(place, resource=False)
        if place.in_meta:
            below = replace(below, no_defaults="inside additionalProperties applying to object metadata")
        if isinstance(extra, dict):
            resource = bool(extra.get("x-kubernetes-embedded-resource"))
            _check(extra, f"{path}.additionalProperties", replace(below, resource=resource), complaints)
    for name, prop in properties.items():
        below = replace(place, resource=bool(prop.get("x-kubernetes-embedded-resource")))
        if (root or raw.get("x-kubernetes-embedded-resource")) and name in META:
            below = replace(below, in_meta=True)
            if root:
                below = replace(below, no_defaults=f"in top-level {name}")
        _check(prop, f"{path}.properties[{name}]", below, complaints)


def _standard(raw: Schema, path: str, place: _SchemaPlace, errors: list[FieldError]) -> None:
    kind = raw.get("type")
    if kind and kind not in _TYPES:
        errors.append(not_supported(f"{path}.type", kind, _TYPES))
    if raw.get("default") is not None and place.no_defaults is not None:
        errors.append(forbidden_field(f"{path}.default", f"must not be set {place.no_defaults}"))
    if raw.get("id"):
        errors.append(forbidden_field(f"{path}.id", "id is not supported"))
    present = (key for key in _UNSUPPORTED if raw.get(key) is not None)
    errors += (forbidden_field(f"{path}.{key}", f"{key} is not supported") for key in present)
    if kind == "null":
        errors.append(forbidden_field(f"{path}.type", "type cannot be set to null, use nullable as an alternative"))
    if isinstance(raw.get("items"), list):
        errors.append(forbidden_field(f"{path}.items", "items must be a schema object and not an array"))
    if place.in_meta and raw.get("x-kubernetes-embedded-resource"):
        words = "must not be used inside of resource meta"
        errors.append(forbidden_field(f"{path}.x-kubernetes-embedded-resource", words))


def _typed(raw: Schema, path: str, extension: str, wanted: str, errors: list[FieldError]) -> bool:
    kind = raw.get("type") or ""
    if kind == wanted:
        return True
    words = f"must be {wanted} if {extension} is specified"
    errors.append(bad_value(f"{path}.type", kind, words) if kind else required(f"{path}.type", words))
    return False


def _extensions(raw: Schema, path: str, errors: list[FieldError]) -> None:
    if raw.get("x-kubernetes-preserve-unknown-fields") is False:
        errors.append(bad_value(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined"))
    map_type, list_type, items = raw.get("x-kubernetes-map-type"), raw.get("x-kubernetes-list-type"), raw.get("items")
    if map_type is not None:
        _typed(raw, path, "x-kubernetes-map-type", "object", errors)
        if map_type not in {"atomic", "granular"}:
            errors.append(not_supported(f"{path}.x-kubernetes-map-type", map_type, ("atomic", "granular")))
    if list_type is not None:
        if (
            _typed(raw, path, "x-kubernetes-list-type", "array", errors)
            and list_type == "set"
            and isinstance(items, dict)
        ):
            _set_items(items, path, errors)
        if list_type not in {"atomic", "set", "map"}:
            errors.append(not_supported(f"{path}.x-kubernetes-list-type", list_type, ("atomic", "set", "map")))
    keys = raw.get("x-kubernetes-list-map-keys")
    if keys and list_type != "map":
        at, words = f"{path}.x-kubernetes-list-type", "must be map if x-kubernetes-list-map-keys is non-empty"
        errors.append(required(at, words) if list_type is None else bad_value(at, list_type, words))
    if list_type == "map":
        _map_items(raw, path, errors)
    if list_type in {"set", "map"} and isinstance(items, dict):
        _keyed(items, list_type, keys or [], path, errors)


def _set_items(items: Schema, path: str, errors: list[FieldError]) -> None:
    inner, words = (
        items.get("x-kubernetes-list-type"),
        "must be atomic as item of a list with x-kubernetes-list-type=set",
    )
    if items.get("type") == "array" and inner not in {None, "atomic"}:
        errors.append(bad_value(f"{path}.items.x-kubernetes-list-type", inner, words))
    if items.get("type") == "object" and items.get("x-kubernetes-map-type") != "atomic":
        errors.append(bad_value(f"{path}.items.x-kubernetes-map-type", inner, words))


def _map_items(raw: Schema, path: str, errors: list[FieldError]) -> None:
    items, keys = raw.get("items"), raw.get("x-kubernetes-list-map-keys") or []
    at = f"{path}.x-kubernetes-list-map-keys"
    if not keys:
        errors.append(required(at, "must not be empty if x-kubernetes-list-type is map"))
    if items is None:
        errors.append(required(f"{path}.items", "must have a schema if x-kubernetes-list-type is map"))
    if not isinstance(items, dict):
        return
    if items.get("type") != "object":
        words = "must be object if parent array's x-kubernetes-list-type is map"
        errors.append(bad_value(f"{path}.items.type", items.get("type") or "", words))
        return
    for index, key in enumerate(keys):
        known = (items.get("properties") or {}).get(key)
        if known is None:
            errors.append(bad_value(at, keys, "entries must all be names of item properties"))
        elif known.get("type") in {"array", "object"}:
            words = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            errors.append(bad_value(f"{path}.items.properties[{key}].type", items["type"], words))
        if key in keys[:index]:
            errors.append(bad_value(at, keys, "must not contain duplicate entries"))


def _keyed(items: Schema, list_type: str, keys: list[str], path: str, errors: list[FieldError]) -> None:
    if items.get("nullable"):
        words = f"cannot be nullable when x-kubernetes-list-type is {list_type}"
        errors.append(forbidden_field(f"{path}.items.nullable", words))
    if list_type != "map":
        return
    for key in keys:
        known = (items.get("properties") or {}).get(key)
        if known is None:
            continue
        at = f"{path}.items.properties[{key}]"
        if key not in (items.get("required") or ()) and known.get("default") is None:
            words = (
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            )
            errors.append(required(f"{at}.default", words))
        if known.get("nullable"):
            words = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable"
            errors.append(forbidden_field(f"{at}.nullable", words))


def _breaks(text: str) -> bool:
    return "\n" in text or "\r" in text


def _rules(raw: Schema, path: str, errors: list[FieldError]) -> None:
    """Check the fields of rules; compiling comes later."""
    for index, rule in enumerate(raw[_RULES]):
        at = f"{path}.{_RULES}[{index}]"
        text, message = str(rule.get("rule") or "").strip(), rule.get("message") or ""
        if not text:
            errors.append(required(f"{at}.rule", "rule is not specified"))
        elif message and not message.strip():
            errors.append(bad_value(f"{at}.message", message, "must be non-empty if specified"))
        elif _breaks(message.strip()):
            errors.append(bad_value(f"{at}.message", message, "must not contain line breaks"))
        elif _breaks(text) and not message.strip():
            errors.append(required(f"{at}.message", "message must be specified if rule contains line breaks"))
        words = rule.get("messageExpression") or ""
        if words and not words.strip():
            errors.append(required(f"{at}.messageExpression", "messageExpression must be non-empty if specified"))
        reason = rule.get("reason")
        if reason is not None and reason not in _REASONS:
            errors.append(not_supported(f"{at}.reason", reason, _REASONS))
        where = rule.get("fieldPath") or ""
        if where:
            _field_path(raw, f"{at}.fieldPath", where, errors)


def _field_path(raw: Schema, at: str, where: str, errors: list[FieldError]) -> None:
    if not where.strip():
        errors.append(bad_value(at, where, "must be non-empty if specified"))
    if _breaks(where):
        errors.append(bad_value(at, where, "must not contain line breaks"))
    try:
        resolve(where, raw)
    except PathError:
        errors.append(bad_value(at, where, "must be a valid path"))


def _compile(raw: Schema, path: str, place: _SchemaPlace, errors: list[FieldError]) -> None:
    rules, declaration = compiled(raw, resource=place.resource)
    if declaration is None:
        words = (
            "internal error: failed to construct type information for x-kubernetes-validations rules: "
            "unable to convert structural schema to CEL declarations"
        )
        errors.append(FieldError("InternalError", f"{path}.{_RULES}", None, words))
    for index, rule in enumerate(rules):
        at = f"{path}.{_RULES}[{index}]"
        if rule.error:
            errors.append(bad_value(f"{at}.rule", go_rule(rule.raw), rule.error))
        if rule.message_error:
            errors.append(bad_value(f"{at}.messageExpression", go_rule(rule.raw), rule.message_error))
        if rule.uses_old:
            if place.uncorrelated:
                words = (
                    f"oldSelf cannot be used on the uncorrelatable portion of the schema within {place.uncorrelated}"
                )
                errors.append(bad_value(f"{at}.rule", rule.raw["rule"], words))
        elif rule.raw.get("optionalOldSelf") is not None:
            words = "may not be set if oldSelf is not used in rule"
            errors.append(bad_value(f"{at}.optionalOldSelf", rule.raw["optionalOldSelf"], words))
