"""x-kubernetes-validations: compiles the rules of a schema and validates objects, and their changes, by them.

Rules that use ``oldSelf`` (transition rules) are evaluated only where there is an old value to compare with: fields,
map values and items of lists of type map. Costs are not counted.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kgpu.lab.embedded.cel import program as cel
from kgpu.lab.embedded.core.model import decode, encode
from kgpu.lab.embedded.crd.cel_types import Declaration, Typed, declare
from kgpu.lab.embedded.crd.fieldpaths import PathError, resolve
from kgpu.lab.embedded.crd.shape import MISSING, Schema
from kgpu.lab.embedded.crd.values import NOWHERE, by_key, key_of
from kgpu.lab.embedded.status import OMIT, FieldError

_LITERAL: Final = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
_OLD: Final = re.compile(r"(?<![\w.])oldSelf\b")
_REASONS: Final = {
    "FieldValueRequired": "FieldValueRequired",
    "FieldValueForbidden": "FieldValueForbidden",
    "FieldValueDuplicate": "FieldValueDuplicate",
}
_LONGEST_MESSAGE: Final = 5 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRule:
    """One compiled rule. ``error`` and ``message_error`` are reported when the CRD is created."""

    raw: Schema
    program: cel.CompiledExpression | None = None
    error: str = ""
    message_program: cel.CompiledExpression | None = None
    message_error: str = ""
    uses_old: bool = False
    optional_old: bool = False
    field: str = ""

    @property
    def shown(self) -> str:
        return str(self.raw.get("message") or self.raw.get("rule") or "").strip()

    def default_message(self) -> str:
        message = self.raw.get("message")
        return str(message).strip() if message else f"failed rule: {self.shown}"


def names_old(text: str) -> bool:
    """Whether an expression uses oldSelf, outside of string literals."""
    return "oldSelf" in text and _OLD.search(_LITERAL.sub("''", text)) is not None


def compiled(raw: Schema, *, resource: bool) -> tuple[tuple[ValidationRule, ...], Declaration | None]:
    """The rules of one schema, not of what is below it, and the type of its values."""
    return _compiled(encode(_without_prose(raw)), resource)


def _without_prose(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {
            key: _without_prose(inner)
            for key, inner in raw.items()
            if key != "description" or not isinstance(inner, str)
        }
    return [_without_prose(inner) for inner in raw] if isinstance(raw, list) else raw


@functools.lru_cache(maxsize=256)
def _compiled(encoded: bytes, resource: bool) -> tuple[tuple[ValidationRule, ...], Declaration | None]:
    raw: Schema = decode(encoded)
    declaration = declare(raw, resource=resource)
    if declaration is None:
        return (), None
    typed = Typed(declaration)
    variables = {"self": typed.type, "oldSelf": typed.type}

    @functools.cache
    def environment(optional: bool) -> cel.Environment:
        optionals = frozenset({"oldSelf"} if optional else ())
        return cel.Environment(variables, optionals=optionals, pool=typed.pool, names=typed.names)

    return tuple(_rule(rule, raw, environment) for rule in raw.get("x-kubernetes-validations") or ()), declaration


def _rule(raw: Schema, schema: Schema, environment: Callable[[bool], cel.Environment]) -> ValidationRule:
    text, message = str(raw.get("rule") or ""), str(raw.get("messageExpression") or "")
    optional = bool(raw.get("optionalOldSelf"))
    if not text.strip():
        return ValidationRule(raw=raw)
    compiler = environment(optional)
    program = compiler.compile(text)
    if isinstance(program, cel.CelError):
        return ValidationRule(raw=raw, error=f"compilation failed: {program}")
    if program.result != "bool":
        return ValidationRule(raw=raw, error="cel expression must evaluate to a bool")
    words: cel.CompiledExpression | cel.CelError | None = None
    complaint = ""
    if message:
        words = compiler.compile(message)
        if isinstance(words, cel.CelError):
            complaint = f"messageExpression compilation failed: {words}"
        elif words.result != "string":
            complaint = "messageExpression must evaluate to a string"
    try:
        field = resolve(raw["fieldPath"], schema)[0] if raw.get("fieldPath") else ""
    except PathError:
        field = ""
    return ValidationRule(
        raw=raw,
        program=program,
        message_program=words if isinstance(words, cel.CompiledExpression) and not complaint else None,
        message_error=complaint,
        uses_old=names_old(text),
        optional_old=optional,
        field=field,
    )


class SchemaRules:
    """The rules of a schema and of all schemas below it."""

    __slots__ = ("_additional", "_compiled", "_items", "_keys", "_kind", "_properties", "_raw", "_resource")

    def __init__(self, raw: Schema, *, resource: bool = False) -> None:
        self._raw = raw
        self._resource = resource
        self._compiled: tuple[tuple[ValidationRule, ...], Declaration | None] | None = None
        self._kind = raw.get("type")
        self._properties = {
            name: inner
            for name, schema in (raw.get("properties") or {}).items()
            if (inner := rules_of(schema)) is not None
        }
        items, extra = raw.get("items"), raw.get("additionalProperties")
        self._items = rules_of(items) if isinstance(items, dict) else None
        self._additional = rules_of(extra) if isinstance(extra, dict) else None
        self._keys = (
            tuple(raw.get("x-kubernetes-list-map-keys") or ()) if raw.get("x-kubernetes-list-type") == "map" else ()
        )

    def validate(
        self, value: Any, old: Any = MISSING, *, path: str = "", parent_same: bool = False, ratchet: bool = True
    ) -> list[FieldError]:  # fmt: skip
        """All errors. With ``ratchet`` unchanged values are accepted, except by transition rules."""
        if value is None:
            return []
        same = ratchet and (parent_same if old is MISSING else old == value)
        errors = self._own(value, old, path, same) if self._raw.get("x-kubernetes-validations") else []
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for key, inner in value.items():
                below = self._properties.get(key)
                where = f"{path}.{key}" if path else key
                if below is None:
                    below, where = self._additional, f"{path}[{key}]"
                if below is not None:
                    last = before.get(key, MISSING)
                    errors += below.validate(inner, last, path=where, parent_same=same, ratchet=ratchet)
        elif isinstance(value, list) and self._items is not None:
            known = by_key(old, self._keys) if self._keys and isinstance(old, list) else {}
            for index, item in enumerate(value):
                last = known.get(key_of(item, self._keys), MISSING) if known else MISSING
                errors += self._items.validate(item, last, path=f"{path}[{index}]", parent_same=same, ratchet=ratchet)
        return errors

    def _own(self, value: Any, old: Any, path: str, same: bool) -> list[FieldError]:
        if self._compiled is None:
            self._compiled = compiled(self._raw, resource=self._resource)
        rules, declaration = self._compiled
        if declaration is None:
            return []
        bindings = {"self": declaration.value(value)}
        if old is not MISSING and old is not None:
            bindings["oldSelf"] = declaration.value(old)
        errors: list[FieldError] = []
        for rule in rules:
            if rule.program is None:
                if rule.error:
                    errors.append(self._plain(path, f"rule compile error: {rule.error}"))
                continue
            if rule.uses_old and "oldSelf" not in bindings and not rule.optional_old:
                continue
            outcome = rule.program.evaluate(bindings)
            if outcome is True:
                continue
            if isinstance(outcome, cel.CelError):
                errors.append(self._plain(path, _failure(outcome.message, rule)))
                continue
            if rule.uses_old or not same:
                errors.append(self._failed(rule, value, path, bindings))
        return errors

    def _plain(self, path: str, detail: str) -> FieldError:
        return FieldError("FieldValueInvalid", path or NOWHERE, self._kind or "", detail)

    def _failed(self, rule: ValidationRule, value: Any, path: str, bindings: dict[str, Any]) -> FieldError:
        detail = rule.default_message()
        if rule.message_program is not None:
            words = rule.message_program.evaluate(bindings)
            if isinstance(words, str):
                words = words.strip()
                if words and "\n" not in words and len(words.encode()) <= _LONGEST_MESSAGE:
                    detail = words
        where = (f"{path}.{rule.field}" if path else rule.field) if rule.field else path or NOWHERE
        kind = _REASONS.get(str(rule.raw.get("reason")), "FieldValueInvalid")
        shown = OMIT if self._kind in {"object", "array"} else value
        return FieldError(kind, where, shown, "" if kind == "FieldValueDuplicate" else detail)


def _failure(words: str, rule: ValidationRule) -> str:
    if words.startswith("no such overload"):
        sentence = "call arguments did not match a supported operator, function or macro signature for rule"
        return f"'{words}': {sentence}: {rule.shown}"
    return f"{words} evaluating rule: {rule.shown}"


def rules_of(raw: Schema, *, resource: bool = False) -> SchemaRules | None:
    """None when the schema has no rules anywhere that apply to objects."""
    resource = resource or bool(raw.get("x-kubernetes-embedded-resource"))
    return SchemaRules(raw, resource=resource) if _has_rules(raw) else None


def _has_rules(raw: Schema) -> bool:
    if raw.get("x-kubernetes-validations"):
        return True
    below = [*(raw.get("properties") or {}).values(), raw.get("items"), raw.get("additionalProperties")]
    return any(isinstance(schema, dict) and _has_rules(schema) for schema in below)
