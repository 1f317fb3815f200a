"""Validates values by their schema, with the real server's messages. A schema is compiled once; checking is then quick.

The rules are kube-openapi's, which differ from JSON Schema in places: ``nullable``, formats that stand in for the type,
lengths in characters, and of the branches of an anyOf or oneOf the one that matched most is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kgpu.lab.embedded.cel.patterns import go_pattern
from kgpu.lab.embedded.crd.formats import FORMATS, normalized
from kgpu.lab.embedded.crd.shape import MISSING, Schema
from kgpu.lab.embedded.status import FieldError, float_text, shown

NOWHERE: Final = "<nil>"
_TYPES: Final = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object"}
_GO_FORMATS: Final = {int: "int64", float: "float64"}


class ValidationResult:
    """The errors of a check. ``matches`` counts the checks that held, to tell which of several branches was meant."""

    __slots__ = ("errors", "matches")

    def __init__(self, errors: list[FieldError] | None = None, matches: int = 0) -> None:
        self.errors = errors if errors is not None else []
        self.matches = matches

    def add(self, error: FieldError) -> None:
        if not any(
            error.field == known.field and error.detail == known.detail and error.type == known.type
            for known in self.errors
        ):
            self.errors.append(error)

    def merge(self, other: ValidationResult) -> None:
        self.matches += other.matches
        for error in other.errors:
            self.add(error)


Check = Callable[[Any, str, Any, ValidationResult], None]


class SchemaChecks:
    """One schema's checks. ``prefix`` goes before fields (not before the paths inside messages), as for /status."""

    __slots__ = ("_checks", "_common", "_type")

    def __init__(self, raw: Schema, prefix: str = "") -> None:
        self._type = _type_check(raw, prefix)
        self._common = _enum_check(raw, prefix)
        junctors = _junctors(raw, prefix)
        self._checks: dict[type, list[Check]] = {
            str: [check for check in (junctors, _string_check(raw, prefix), _format_check(raw, prefix)) if check],
            list: [check for check in (junctors, _list_check(raw, prefix)) if check],
            dict: [check for check in (junctors, _object_check(raw, prefix)) if check],
        }
        number = [check for check in (junctors, _number_check(raw, prefix)) if check]
        self._checks |= {int: number, float: number, bool: [junctors] if junctors else []}

    def validate(self, value: Any, old: Any = MISSING) -> list[FieldError]:
        """All errors in a whole value. Errors in parts that are unchanged since ``old`` are left out."""
        result = ValidationResult()
        self.check(value, "", old, result)
        return result.errors

    def check(self, value: Any, path: str, old: Any, result: ValidationResult) -> None:
        if self._type is not None:
            self._type(value, path, old, result)
            result.matches += 2
        if value is not None:
            for typed_check in self._checks[type(value)]:
                typed_check(value, path, old, result)
            # As the real one counts: the checks that don't count themselves, and the value as a whole.
            result.matches += 4
        if self._common is not None:
            self._common(value, path, old, result)


def _field(path: str, prefix: str) -> str:
    name = path.removeprefix(".")
    return (f"{prefix}.{name}" if name else prefix) if prefix else (name or NOWHERE)


def _invalid(path: str, prefix: str, value: Any, words: str) -> FieldError:
    return FieldError("FieldValueInvalid", _field(path, prefix), value, f"{path} in body {words}")


def _type_check(raw: Schema, prefix: str) -> Check | None:
    types: tuple[str, ...] = (raw["type"],) if raw.get("type") else ()
    if raw.get("x-kubernetes-int-or-string"):
        types = ("integer", "string")
    form = normalized(raw.get("format") or "")
    if not types and not form:
        return None
    wanted, nullable = ",".join(types), bool(raw.get("nullable"))
    numeric = "number" in types or "integer" in types
    accepted = frozenset(_python_types(types))

    def wrong(path: str, expected: str, shown_value: str) -> FieldError:
        detail = f"{path} in body must be of type {expected}: {shown(shown_value)}"
        return FieldError("FieldValueTypeInvalid", _field(path, prefix), shown_value, detail)

    def check(value: Any, path: str, _old: Any, result: ValidationResult) -> None:
        kind = type(value)
        if kind in accepted:
            return
        if value is None:
            if types and not nullable:
                result.add(wrong(path, wanted, "null"))
            return
        whole = kind is float and "integer" in types and value.is_integer()
        if form and kind not in {str, list} and not whole:
            result.add(wrong(path, raw["format"], _GO_FORMATS.get(kind, "")))
        elif form and not numeric and kind in {str, list}:
            return
        elif not whole:
            result.add(wrong(path, wanted, _TYPES[kind]))

    return check


def _python_types(types: tuple[str, ...]) -> list[type]:
    kinds: list[type] = [kind for kind, name in _TYPES.items() if name in types]
    return [*kinds, int] if "number" in types else kinds


def _enum_check(raw: Schema, prefix: str) -> Check | None:
    allowed = raw.get("enum")
    if not allowed:
        return None
    words = ", ".join(
        shown(allowed_value if isinstance(allowed_value, str) else shown(allowed_value)) for allowed_value in allowed
    )

    def check(value: Any, path: str, _old: Any, result: ValidationResult) -> None:
        if not any(_same(value, allowed_value) for allowed_value in allowed if allowed_value is not None):
            result.add(FieldError("FieldValueNotSupported", _field(path, prefix), value, f"supported values: {words}"))

    return check


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _string_check(raw: Schema, prefix: str) -> Check | None:
    longest, shortest, pattern = raw.get("maxLength"), raw.get("minLength"), raw.get("pattern")
    if longest is None and shortest is None and not pattern:
        return None
    compiled = go_pattern(pattern) if pattern else None

    def check(value: Any, path: str, _old: Any, result: ValidationResult) -> None:
        if longest is not None and len(value) > longest:
            unit = "byte" if longest == 1 else "bytes"
            result.add(
                FieldError("FieldValueTooLong", _field(path, prefix), None, f"may not be more than {longest} {unit}")
            )
        elif shortest is not None and len(value) < shortest:
            result.add(_invalid(path, prefix, value, f"should be at least {shortest} chars long"))
        elif compiled is not None and not compiled.found_in(value):
            result.add(_invalid(path, prefix, value, f"should match '{pattern}'"))

    return check


def _format_check(raw: Schema, prefix: str) -> Check | None:
    name = raw.get("format") or ""
    form = FORMATS.get(normalized(name))
    if form is None:
        return None

    def check(value: Any, path: str, _old: Any, result: ValidationResult) -> None:
        if not form(value):
            detail = f"{path} in body must be of type {name}: {shown(value)}"
            result.add(FieldError("FieldValueTypeInvalid", _field(path, prefix), value, detail))
        result.matches += 1

    return check


def _bound(limit: Any, value: Any) -> str:
    """A limit as the message prints it: whole for an integer value, else as a float."""
    return str(int(limit)) if isinstance(value, int) else float_text(float(limit))


def _number_check(raw: Schema, prefix: str) -> Check | None:
    factor, top, bottom = raw.get("multipleOf"), raw.get("maximum"), raw.get("minimum")
    below, above = bool(raw.get("exclusiveMaximum")), bool(raw.get("exclusiveMinimum"))
    if factor is None and top is None and bottom is None:
        return None

    def check(value: Any, path: str, _old: Any, result: ValidationResult) -> None:
        if factor is not None:
            step = int(factor) if isinstance(value, int) else float(factor)
            if step <= 0:
                detail = f"factor MultipleOf declared for {path} must be positive: {_bound(factor, value)}"
                result.add(FieldError("FieldValueInvalid", _field(path, prefix), step, detail))
            elif value % step if isinstance(value, int) else not (value / step).is_integer():
                result.add(_invalid(path, prefix, value, f"should be a multiple of {_bound(factor, value)}"))
        if top is not None:
            limit = int(top) if isinstance(value, int) else top
            if value > limit or (below and value >= limit):
                words = "should be less than" if below else "should be less than or equal to"
                result.add(_invalid(path, prefix, value, f"{words} {_bound(top, value)}"))
        if bottom is not None:
            limit = int(bottom) if isinstance(value, int) else bottom
            if value < limit or (above and value <= limit):
                words = "should be greater than" if above else "should be greater than or equal to"
                result.add(_invalid(path, prefix, value, f"{words} {_bound(bottom, value)}"))

    return check


def _below(checks: SchemaChecks, value: Any, path: str, old: Any, result: ValidationResult) -> None:
    """Check one field or item; an invalid one is accepted while it doesn't change."""
    if old is MISSING:
        checks.check(value, path, old, result)
        return
    inner = ValidationResult()
    checks.check(value, path, old, inner)
    if inner.errors and old == value:
        inner.errors = []
    result.merge(inner)


def _list_check(raw: Schema, prefix: str) -> Check | None:
    items = SchemaChecks(raw["items"], prefix) if isinstance(raw.get("items"), dict) else None
    fewest, most, unique = raw.get("minItems"), raw.get("maxItems"), bool(raw.get("uniqueItems"))
    keys = tuple(raw.get("x-kubernetes-list-map-keys") or ()) if raw.get("x-kubernetes-list-type") == "map" else ()
    if items is None and fewest is None and most is None and not unique:
        return None

    def check(value: Any, path: str, old: Any, result: ValidationResult) -> None:
        if items is not None:
            before = by_key(old, keys) if keys and isinstance(old, list) else {}
            for index, item in enumerate(value):
                _below(
                    items,
                    item,
                    f"{path}[{index}]",
                    before.get(key_of(item, keys), MISSING) if before else MISSING,
                    result,
                )
        if fewest is not None and len(value) < fewest:
            result.add(_invalid(path, prefix, len(value), f"should have at least {fewest} items"))
        if most is not None and len(value) > most:
            result.add(_too_many(path, prefix, len(value), most))
        if unique and any(item in value[:at] for at, item in enumerate(value)):
            result.add(
                FieldError(
                    "FieldValueInvalid", _field(path, prefix), "", f"{path} in body shouldn't contain duplicates"
                )
            )
        result.matches += 1

    return check


def key_of(item: Any, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The key of an item of a list of type map; () for an item that is no object."""
    if not isinstance(item, dict):
        return ()
    return tuple(shown(item.get(key)) for key in keys)


def by_key(items: list[Any], keys: tuple[str, ...]) -> dict[tuple[str, ...], Any]:
    """The items of a list of type map by key."""
    return {key_of(item, keys): item for item in items}


def _too_many(path: str, prefix: str, count: int, most: int) -> FieldError:
    unit = "item" if most == 1 else "items"
    return FieldError("FieldValueTooMany", _field(path, prefix), count, f"must have at most {most} {unit}")


def _object_check(raw: Schema, prefix: str) -> Check | None:
    properties = {name: SchemaChecks(prop, prefix) for name, prop in (raw.get("properties") or {}).items()}
    extra = raw.get("additionalProperties")
    additional = SchemaChecks(extra, prefix) if isinstance(extra, dict) else None
    needed, fewest, most = tuple(raw.get("required") or ()), raw.get("minProperties"), raw.get("maxProperties")
    anything = extra is None or extra is True
    if anything and not properties and not needed and fewest is None and most is None:
        return None

    def check(value: Any, path: str, old: Any, result: ValidationResult) -> None:
        before = old if isinstance(old, dict) else {}
        if fewest is not None and len(value) < fewest:
            result.add(_invalid(path, prefix, len(value), f"should have at least {fewest} properties"))
        if most is not None and len(value) > most:
            result.add(_too_many(path, prefix, len(value), most))
        for key, inner in value.items():
            known = properties.get(key)
            if known is not None:
                # apiVersion and kind are converted, so they never count as unchanged.
                last = MISSING if not path and key in {"apiVersion", "kind"} else before.get(key, MISSING)
                _below(known, inner, f"{path}.{key}" if path else key, last, result)
            elif additional is not None:
                _below(additional, inner, f"{path}.{key}", before.get(key, MISSING), result)
            elif extra is False:
                words = f"{path}.{key} in body is a forbidden property"
                result.add(FieldError("FieldValueInvalid", _field(path, prefix), key, words))
        for key in needed:
            if key not in value:
                result.add(FieldError("FieldValueRequired", _field(f"{path}.{key}", prefix), ""))

    return check


def _plain(prefix: str, words: str) -> FieldError:
    return FieldError("FieldValueInvalid", prefix or NOWHERE, "", words)


def _junctors(raw: Schema, prefix: str) -> Check | None:
    """allOf, anyOf, oneOf and not."""
    some, every, only = (
        [SchemaChecks(schema, prefix) for schema in raw.get(name) or ()] for name in ("anyOf", "allOf", "oneOf")
    )
    never = SchemaChecks(raw["not"], prefix) if isinstance(raw.get("not"), dict) else None
    if not some and not every and not only and never is None:
        return None

    def tried(checks: SchemaChecks, value: Any, path: str, old: Any) -> ValidationResult:
        branch_result = ValidationResult()
        checks.check(value, path, old, branch_result)
        return branch_result

    def check(value: Any, path: str, old: Any, result: ValidationResult) -> None:
        name = shown(path)
        if some:
            good, best = _branches([tried(branch, value, path, old) for branch in some])
            if not good:
                result.add(_plain(prefix, f"{name} must validate at least one schema (anyOf)"))
            result.merge(good[0] if good else best)
        if only:
            good, best = _branches([tried(branch, value, path, old) for branch in only])
            if len(good) != 1:
                how = f"Found {len(good)} valid alternatives" if good else "Found none valid"
                result.add(_plain(prefix, f"{name} must validate one and only one schema (oneOf). {how}"))
            if len(good) == 1 or not good:
                result.merge(good[0] if good else best)
        if every:
            results = [tried(branch, value, path, old) for branch in every]
            for branch_result in results:
                result.merge(branch_result)
            held = sum(not branch_result.errors for branch_result in results)
            if held != len(results):
                more = "" if held else ". None validated"
                result.add(_plain(prefix, f"{name} must validate all the schemas (allOf){more}"))
        if never is not None and not tried(never, value, path, old).errors:
            result.add(_plain(prefix, f"{name} must not validate the schema (not)"))
        result.matches += 1

    return check


def _branches(results: list[ValidationResult]) -> tuple[list[ValidationResult], ValidationResult]:
    """The branches without errors, and of the others the first with most matches."""
    good = [branch for branch in results if not branch.errors]
    failed = [branch for branch in results if branch.errors]
    return good, max(failed, key=lambda branch: branch.matches, default=ValidationResult())
