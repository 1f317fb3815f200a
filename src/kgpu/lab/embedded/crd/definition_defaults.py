"""Complaints about the defaults in a CRD's schema: they must be pruned, and hold what the schema asks of values."""

from __future__ import annotations

from kgpu.lab.embedded.core.model import decode, encode
from kgpu.lab.embedded.crd import embedded, pruning
from kgpu.lab.embedded.crd.rules import rules_of
from kgpu.lab.embedded.crd.shape import META, Schema, StructuralSchema
from kgpu.lab.embedded.crd.values import SchemaChecks
from kgpu.lab.embedded.status import FieldError, bad_value


def defaults(raw: Schema, path: str) -> list[FieldError]:
    """Of a whole schema; the root's own fields are not checked as defaults can't be there."""
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
    for name, one in (raw.get("properties") or {}).items():
        nested = bool(one.get("x-kubernetes-embedded-resource"))
        meta = (in_meta or (resource and name in META)) and not nested
        _walk(one, f"{path}.properties[{name}]", errors, resource=nested, in_meta=meta)


def _check(raw: Schema, path: str, *, in_meta: bool) -> list[FieldError]:
    value = raw["default"]
    found: list[FieldError] = []
    shape = StructuralSchema(raw)
    copy = decode(encode(value))
    if not in_meta:
        pruning.prune(copy, shape)
        if copy != value:
            found.append(bad_value(path, value, "must not have unknown fields"))
    error, _ = embedded.coerce(copy, shape)
    if error is not None:
        return [*found, FieldError(error.type, f"{path}{error.field}", error.value, error.detail)]
    wrong = embedded.complaints(copy, shape)
    if wrong:
        return found + wrong
    wrong = SchemaChecks(raw, path).validate(value)
    if wrong:
        return found + wrong
    rules = rules_of(raw)
    if rules is not None:
        found += rules.validate(value, value, path=path, ratchet=False)
    return found
