"""What DRA's kinds have in common: drivers, pools, attributes, selectors, opaque parameters, taints, conditions.

Source of rules, limits and words: pkg/apis/resource/validation of Kubernetes 1.35.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from kgpu.lab.embedded.status import Object, bad_value, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import Errors, duplicate, not_supported, syntax, too_long, too_many
from kgpu.lab.embedded.types.validate.device_selectors import complaint

LONGEST_DATA: Final = 10 * 1024  # bytes, of opaque parameters and of a driver's data
_EFFECTS: Final = ("NoExecute", "NoSchedule", "None")
_MOST_SELECTORS: Final = 32
_LONGEST_EXPRESSION: Final = 10 * 1024
_LONGEST_ID: Final = 32
_MOST_BINDING_CONDITIONS: Final = 4
_STATUSES: Final = ("False", "True", "Unknown")
_REASON: Final = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
_REASON_WORDS: Final = texts.explained(
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
    "characters or '_,:', and must end with an alphanumeric character or '_'",
    _REASON, "my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB",
)  # fmt: skip

Item = Callable[[Errors, str, Any], None]


def each(errors: Errors, path: str, items: Sequence[Any] | None, check: Item, *, most: int = -1) -> None:
    """Check every item; more than ``most`` are one error and not looked at (negative: no limit)."""
    items = items or ()
    if 0 <= most < len(items):
        errors.append(too_many(path, len(items), most))
        return
    for index, item in enumerate(items):
        check(errors, f"{path}[{index}]", item)


def unique(
    errors: Errors, path: str, items: Sequence[Any] | None, check: Item, *, most: int = -1,
    key: Callable[[Any], Any] = str,
) -> None:  # fmt: skip
    """As ``each``, and no two may have the same key; the key is what the message shows."""
    items = items or ()
    each(errors, path, items, check, most=most)
    if 0 <= most < len(items):
        return
    seen: set[Any] = set()
    for index, item in enumerate(items):
        found = key(item)
        if found in seen:
            errors.append(duplicate(f"{path}[{index}]", found))
        seen.add(found)


def by_key(
    errors: Errors, path: str, items: Mapping[str, Any] | None, check: Item, *, keys: Item, longest: int,
    most: int = -1,
) -> None:  # fmt: skip
    """Check a map's items, and its keys with ``keys``; those longer than ``longest`` are shortened in paths."""
    items = items or {}
    if 0 <= most < len(items):
        errors.append(too_many(path, len(items), most))
        return
    for name, item in items.items():
        at = f"{path}[{_shortened(name, longest)}]"
        keys(errors, at, name)
        check(errors, at, item)


def _shortened(text: str, longest: int) -> str:
    longest = max(longest, 16)
    if len(text) <= longest:
        return text
    rest = longest - len("...")
    return f"{text[: (rest + 1) // 2]}...{text[len(text) - rest // 2 :]}"


def driver_name(errors: Errors, path: str, name: str | None) -> None:
    if not name:
        errors.append(required(path))
        return
    if len(name) > 63:
        errors.append(too_long(path, 63))
    errors.extend(bad_value(path, name, message) for message in texts.subdomain(name.lower()))


def pool_name(errors: Errors, path: str, name: str | None) -> None:
    if not name:
        errors.append(required(path))
        return
    if len(name) > 253:
        errors.append(too_long(path, 253))
    for part in name.split("/"):
        syntax(errors, path, part, texts.subdomain)


def device_name(errors: Errors, path: str, name: str | None) -> None:
    syntax(errors, path, name or "", texts.label)


def identifier(errors: Errors, path: str, text: str) -> None:
    if len(text) > _LONGEST_ID:
        errors.append(too_long(path, _LONGEST_ID))
    syntax(errors, path, text, texts.c_identifier)


def qualified_name(errors: Errors, path: str, name: str) -> None:
    """Check a name of an attribute or capacity: an identifier, with or without a domain."""
    domain, slash, own = name.partition("/")
    if not slash:
        identifier(errors, path, name)
    elif "/" not in own:
        if domain:
            driver_name(errors, path, domain)
        else:
            errors.append(bad_value(path, "", "the domain must not be empty"))
        if own:
            identifier(errors, path, own)
        else:
            errors.append(bad_value(path, "", "the name must not be empty"))


def fully_qualified_name(errors: Errors, path: str, name: str) -> None:
    qualified_name(errors, path, name)
    if "/" not in name:
        words = "a fully qualified name must be a domain and a name separated by a slash"
        errors.append(bad_value(path, name, words))


_HEX: Final = re.compile("[0-9a-fA-F]{32}").fullmatch


def share_id(errors: Errors, path: str, uid: str) -> None:
    wrong = _uuid_error(uid)
    if wrong:
        errors.append(bad_value(path, uid, f"error validating uid: {wrong}"))
    elif len(uid) != 36 or uid != uid.lower():
        words = (
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase "
            "hexadecimal characters"
        )
        errors.append(bad_value(path, uid, words))


def _uuid_error(text: str) -> str:
    if len(text) == 32:
        return "" if _HEX(text) else "invalid UUID format"
    if len(text) == 45:
        if text[:9].lower() != "urn:uuid:":
            return f'invalid urn prefix: "{text[:9]}"'
        text = text[9:]
    elif len(text) == 38:
        if text[0] != "{" or text[-1] != "}":
            return "invalid bracketed UUID format"
        text = text[1:-1]
    elif len(text) != 36:
        return f"invalid UUID length: {len(text)}"
    dashed = all(text[at] == "-" for at in (8, 13, 18, 23))
    return "" if dashed and _HEX(text.replace("-", "")) else "invalid UUID format"


def selectors(errors: Errors, path: str, rows: Sequence[Object] | None) -> None:
    each(errors, path, rows, _selector, most=_MOST_SELECTORS)


def _selector(errors: Errors, path: str, selector: Object) -> None:
    rule = selector.get("cel")
    if rule is None:
        errors.append(required(f"{path}.cel"))
        return
    text = rule.get("expression") or ""
    at = f"{path}.cel.expression"
    if len(text.encode()) > _LONGEST_EXPRESSION:
        errors.append(too_long(at, _LONGEST_EXPRESSION))
    elif wrong := complaint(text):
        errors.append(bad_value(at, text, wrong))


def configuration(errors: Errors, path: str, config: Object) -> None:
    """Check the part of a configuration that all kinds share."""
    opaque = config.get("opaque")
    if opaque is None:
        errors.append(required(f"{path}.opaque"))
        return
    driver_name(errors, f"{path}.opaque.driver", opaque.get("driver"))
    raw_object(errors, f"{path}.opaque.parameters", opaque.get("parameters"))


def raw_object(errors: Errors, path: str, value: Any) -> None:
    """Check a JSON value that must be an object, of limited size."""
    if value is None:
        errors.append(required(path))
    elif len(msgspec.json.encode(value)) > LONGEST_DATA:
        errors.append(too_long(path, LONGEST_DATA))
    elif not isinstance(value, dict):
        errors.append(bad_value(path, "<value omitted>", "must be a valid JSON object"))


def toleration(errors: Errors, path: str, row: Object) -> None:
    key, operator, value = row.get("key") or "", row.get("operator") or "", row.get("value") or ""
    if key:
        syntax(errors, f"{path}.key", key, texts.qualified)
    if operator == "Exists":
        if value:
            errors.append(bad_value(f"{path}.value", value, "must be empty for operator `Exists`"))
    elif operator == "Equal":
        syntax(errors, f"{path}.value", value, texts.label_value)
    elif not operator:
        errors.append(required(f"{path}.operator"))
    else:
        errors.append(not_supported(f"{path}.operator", operator, ("Equal", "Exists")))
    effect = row.get("effect") or ""
    if effect and effect not in _EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, _EFFECTS))


def taint(errors: Errors, path: str, row: Object) -> None:
    syntax(errors, f"{path}.key", row.get("key") or "", texts.qualified)
    if row.get("value"):
        syntax(errors, f"{path}.value", row["value"], texts.label_value)
    effect = row.get("effect") or ""
    if not effect:
        errors.append(required(f"{path}.effect"))
    elif effect not in _EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, _EFFECTS))


def binding_conditions(errors: Errors, path: str, row: Object) -> None:
    """Check the conditions that a device's binding waits for, and those that end the wait."""
    wanted, failures = row.get("bindingConditions") or [], row.get("bindingFailureConditions") or []
    wanted_at, failures_at = f"{path}.bindingConditions", f"{path}.bindingFailureConditions"
    for at, names in ((wanted_at, wanted), (failures_at, failures)):
        each(errors, at, names, _condition_name, most=_MOST_BINDING_CONDITIONS)
    _no_duplicates(errors, wanted_at, wanted, ())
    _no_duplicates(errors, failures_at, failures, wanted)
    if failures and not wanted:
        words = "bindingConditions are required to use bindingFailureConditions"
        errors.append(bad_value(wanted_at, None, words))
    if wanted and not failures:
        words = "bindingFailureConditions are required to use bindingConditions"
        errors.append(bad_value(failures_at, None, words))


def _condition_name(errors: Errors, path: str, name: str) -> None:
    syntax(errors, path, name, texts.qualified)


def _no_duplicates(errors: Errors, path: str, names: Sequence[str], others: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            errors.append(duplicate(f"{path}[{index}]", name))
        if name in others:
            words = "bindingFailureConditions must not overlap with bindingConditions"
            errors.append(bad_value(f"{path}[{index}]", name, words))


def conditions(errors: Errors, path: str, rows: Sequence[Object] | None) -> None:
    """Check a list of metav1.Condition."""
    seen: set[str] = set()
    for index, row in enumerate(rows or ()):
        at, kind, reason = f"{path}[{index}]", row.get("type") or "", row.get("reason") or ""
        if kind in seen:
            errors.append(duplicate(f"{at}.type", kind))
        seen.add(kind)
        syntax(errors, f"{at}.type", kind, texts.qualified)
        if row.get("status") not in _STATUSES:
            errors.append(not_supported(f"{at}.status", row.get("status") or "", _STATUSES))
        if (row.get("observedGeneration") or 0) < 0:
            words = "must be greater than or equal to zero"
            errors.append(bad_value(f"{at}.observedGeneration", row["observedGeneration"], words))
        if not row.get("lastTransitionTime"):
            errors.append(required(f"{at}.lastTransitionTime"))
        if not reason:
            errors.append(required(f"{at}.reason"))
        else:
            if not re.fullmatch(_REASON, reason, re.ASCII):
                errors.append(bad_value(f"{at}.reason", reason, _REASON_WORDS))
            if len(reason) > 1024:
                errors.append(too_long(f"{at}.reason", 1024))
        if len(row.get("message") or "") > 32768:
            errors.append(too_long(f"{at}.message", 32768))
