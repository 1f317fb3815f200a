"""Validation of the defaults in a CRD's schema: they must have no unknown fields, and satisfy the schema."""

from __future__ import annotations

from kgpu.lab.embedded.core.model import decode, encode
from kgpu.lab.embedded.crd import embedded_resource, pruning
from kgpu.lab.embedded.crd.rules import rules_of
from kgpu.lab.embedded.crd.shape import META, Schema, StructuralSchema
from kgpu.lab.embedded.crd.values import SchemaChecks
from kgpu.lab.embedded.status import FieldError, bad_value


def defaults(raw: Schema, path: str) -> list[FieldError]:
    """The errors in the defaults of a whole schema; the root's own fields can't have defaults."""
    errors: list[FieldError] = []
    _walk(raw, path, errors, resource=True, in_meta=False)
    return errors


def _walk(raw: Schema, path: str, errors: list[FieldError], *, resource: bool, in_meta: bool) -> None:
    if raw.get("default") is not None:
        errors += _check(raw, f"{path}.default", in_meta=in_meta)
    items = raw.get("items")
    if isinstance(items, dict):
        nested = bool(items.get("x-kubernetes-embedded-resource"))
        _walk(items, f"{path}.items", errors, resource=nested, in_meta=in_meta and not nested)
    for name, prop in (raw.get("properties") or {}).items():
        nested = bool(prop.get("x-kubernetes-embedded-resource"))
        meta = (in_meta or (resource and name in META)) and not nested
        _walk(prop, f"{path}.properties[{name}]", errors, resource=nested, in_meta=meta)


def _check(raw: Schema, path: str, *, in_meta: bool) -> list[FieldError]:
    value = raw["default"]
    errors: list[FieldError] = []
    shape = StructuralSchema(raw)
    copy = decode(encode(value))
    if not in_meta:
        pruning.prune(copy, shape)
        if copy != value:
            errors.append(bad_value(path, value, "must not have unknown fields"))
    error, _ = embedded_resource.coerce(copy, shape)
    if error is not None:
        return [*errors, FieldError(error.type, f"{path}{error.field}", error.value, error.detail)]
    wrong = embedded_resource.complaints(copy, shape)
    if wrong:
        return errors + wrong
    wrong = SchemaChecks(raw, path).validate(value)
    if wrong:
        return errors + wrong
    rules = rules_of(raw)
    if rules is not None:
        errors += rules.validate(value, value, path=path, ratchet=False)
    return errors
