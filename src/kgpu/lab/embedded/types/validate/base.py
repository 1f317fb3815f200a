"""What every kind's validation is made of: errors, metadata, labels and selectors, immutable fields.

A check appends to its caller's list of errors. Paths are texts (``spec.containers[0].image``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kgpu.base.quantity import Quantity
from kgpu.lab.embedded.status import (
    FieldError,
    Object,
    bad_value,
    forbidden_field,
    required,
    shown,
)
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.texts import NameRule

Errors = list[FieldError]
NOT_NEGATIVE: Final = "must be greater than or equal to 0"
IMMUTABLE: Final = "field is immutable"
ANNOTATION_BYTES: Final = 256 * 1024


def not_supported(path: str, value: Any, supported: Iterable[str]) -> FieldError:
    """An error that lists the supported values in the given order."""
    known = ", ".join(shown(choice) for choice in supported)
    return FieldError("FieldValueNotSupported", path, value, f"supported values: {known}")


def duplicate(path: str, value: Any) -> FieldError:
    return FieldError("FieldValueDuplicate", path, value)


def not_found(path: str, value: Any, detail: str = "") -> FieldError:
    return FieldError("FieldValueNotFound", path, value, detail)


def too_long(path: str, limit: int) -> FieldError:
    return FieldError(
        "FieldValueTooLong", path or "[]", "", f"may not be more than {limit} byte{'s' if limit != 1 else ''}"
    )


def too_many(path: str, count: int, limit: int) -> FieldError:
    detail = f"must have at most {limit} item{'s' if limit != 1 else ''}"
    return FieldError("FieldValueTooMany", path, count, detail)


def syntax(errors: Errors, path: str, text: str, rule: NameRule) -> None:
    """Append every error that the rule finds."""
    for message in rule(text):
        errors.append(bad_value(path, text, message))


def needed(errors: Errors, path: str, text: str | None, rule: NameRule | None = None) -> None:
    """Check that the text is there and follows the rule."""
    if not text:
        errors.append(required(path))
    elif rule is not None:
        syntax(errors, path, text, rule)


def one_of(errors: Errors, path: str, value: str, supported: Sequence[str], *, order: bool = False) -> None:
    """Check that the value is there and supported; ``order`` keeps the order of ``supported`` in the message."""
    if not value:
        errors.append(required(path))
    elif value not in supported:
        errors.append(not_supported(path, value, supported if order else sorted(supported)))


def among(errors: Errors, path: str, value: str, supported: Sequence[str]) -> None:
    """Check that the value is supported; an empty one is as wrong as any other."""
    if value not in supported:
        errors.append(not_supported(path, value, sorted(supported)))


def not_negative(errors: Errors, path: str, value: int | None) -> None:
    if value is not None and value < 0:
        errors.append(bad_value(path, value, NOT_NEGATIVE))


def positive(errors: Errors, path: str, value: int) -> None:
    if value <= 0:
        errors.append(bad_value(path, value, "must be greater than zero"))


def in_range(errors: Errors, path: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        errors.append(bad_value(path, value, texts.between(low, high)))


def port_or_name(errors: Errors, path: str, port: int | str) -> None:
    messages = texts.port_number(port) if isinstance(port, int) else texts.port_name(port)
    for message in messages:
        errors.append(bad_value(path, port, message))


def quantity(text: str) -> Quantity:
    """Parse a quantity of a settled object, which is always valid."""
    return Quantity.parse(text)


def amount_not_negative(errors: Errors, path: str, text: str) -> None:
    parsed = quantity(text)
    if parsed.nanos < 0:
        errors.append(bad_value(path, str(parsed), NOT_NEGATIVE))


def immutable(errors: Errors, path: str, new: Any, old: Any) -> None:
    """Check that the field has not changed; null and an empty list or map are the same."""
    if new != old and (new or None) != (old or None):
        errors.append(bad_value(path, new, IMMUTABLE))


def labels(errors: Errors, path: str, label_map: Mapping[str, str] | None) -> None:
    """Check keys and values; errors have the path of the whole map."""
    for key, value in (label_map or {}).items():
        syntax(errors, path, key, texts.qualified)
        syntax(errors, path, value, texts.label_value)


def annotation_map(errors: Errors, path: str, annotations: Mapping[str, str] | None) -> None:
    size = 0
    for key, value in (annotations or {}).items():
        size += len(key.encode()) + len(value.encode())
        for message in texts.qualified(key.lower()):
            errors.append(bad_value(path, key, message))
    if size > ANNOTATION_BYTES:
        errors.append(too_long(path, ANNOTATION_BYTES))


_OPERATORS: Final = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}


def label_selector(errors: Errors, path: str, selector: Object | None) -> None:
    """Check a metav1.LabelSelector."""
    if not selector:
        return
    labels(errors, f"{path}.matchLabels", selector.get("matchLabels"))
    for index, requirement in enumerate(selector.get("matchExpressions") or ()):
        at = f"{path}.matchExpressions[{index}]"
        _operator(errors, at, requirement)
        syntax(errors, f"{at}.key", requirement.get("key", ""), texts.qualified)
        for number, value in enumerate(requirement.get("values") or ()):
            syntax(errors, f"{at}.values[{number}]", value, texts.label_value)


def _operator(errors: Errors, at: str, requirement: Object) -> None:
    operator, values = requirement.get("operator", ""), requirement.get("values")
    takes_values = _OPERATORS.get(operator)
    if takes_values is None:
        errors.append(bad_value(f"{at}.operator", operator, "not a valid selector operator"))
    elif takes_values and not values:
        errors.append(required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif not takes_values and values:
        words = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        errors.append(forbidden_field(f"{at}.values", words))


def selector_matches(selector: Object, label_map: Mapping[str, str]) -> bool:
    """Whether a valid metav1.LabelSelector matches; one without requirements matches everything."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if label_map.get(key) != value:
            return False
    return all(_REQUIREMENTS[row["operator"]](row, label_map) for row in selector.get("matchExpressions") or ())


_REQUIREMENTS: Final[dict[str, Callable[[Object, Mapping[str, str]], bool]]] = {
    "In": lambda row, label_map: row["key"] in label_map and label_map[row["key"]] in (row.get("values") or ()),
    "NotIn": lambda row, label_map: label_map.get(row["key"]) not in (row.get("values") or ()),
    "Exists": lambda row, label_map: row["key"] in label_map,
    "DoesNotExist": lambda row, label_map: row["key"] not in label_map,
}


def metadata(errors: Errors, meta: Object, *, namespaced: bool, rule: NameRule, path: str = "metadata") -> None:
    """Check the ObjectMeta of a create (and of updates of kinds that validate the whole object)."""
    generated = meta.get("generateName")
    if generated:
        syntax(errors, f"{path}.generateName", generated, texts.prefix_of_name(rule))
    name = meta.get("name")
    if not name:
        errors.append(required(f"{path}.name", "name or generateName is required"))
    else:
        syntax(errors, f"{path}.name", name, rule)
    namespace = meta.get("namespace")
    if namespaced:
        needed(errors, f"{path}.namespace", namespace, texts.label)
    elif namespace:
        errors.append(forbidden_field(f"{path}.namespace", "not allowed on this type"))
    not_negative(errors, f"{path}.generation", meta.get("generation"))
    labels(errors, f"{path}.labels", meta.get("labels"))
    annotation_map(errors, f"{path}.annotations", meta.get("annotations"))
    _owners(errors, f"{path}.ownerReferences", meta.get("ownerReferences") or [])
    _finalizers(errors, f"{path}.finalizers", meta.get("finalizers") or [])


def finalizer_names(errors: Errors, meta: Object, path: str = "metadata") -> None:
    """Check finalizers without a domain, which must be standard ones; not all kinds do this."""
    for index, name in enumerate(meta.get("finalizers") or ()):
        finalizer_name(errors, f"{path}.finalizers[{index}]", name)


_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})


def finalizer_name(errors: Errors, path: str, name: str) -> None:
    if "/" not in name and name not in _STANDARD_FINALIZERS:
        errors.append(
            bad_value(path, name, "name is neither a standard finalizer name nor is it fully qualified")
        )  # fmt: skip


def _owners(errors: Errors, path: str, owners: list[Object]) -> None:
    controller = ""
    for owner in owners:
        version = owner.get("apiVersion", "").rpartition("/")[2]
        for field, value, words in (
            ("apiVersion", version, "version must not be empty"),
            ("kind", owner.get("kind"), "must not be empty"),
            ("name", owner.get("name"), "must not be empty"),
            ("uid", owner.get("uid"), "must not be empty"),
        ):
            if not value:
                errors.append(bad_value(f"{path}.{field}", owner.get(field, ""), words))
        if owner.get("apiVersion") == "v1" and owner.get("kind") == "Event":
            errors.append(bad_value(path, owner, "/v1, Kind=Event is disallowed from being an owner"))
        if owner.get("controller"):
            name = f"{owner.get('kind')}/{owner.get('name')}"
            if controller:
                words = (
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{controller} and {name}"
                )
                errors.append(bad_value(path, owners, words))
            else:
                controller = name


def _finalizers(errors: Errors, path: str, names: list[str]) -> None:
    for name in names:
        syntax(errors, path, name, texts.qualified)
    if "orphan" in names and "foregroundDeletion" in names:
        words = "finalizer orphan and foregroundDeletion cannot be both set"
        errors.append(bad_value(path, names, words))


def metadata_update(errors: Errors, meta: Object, old: Object, path: str = "metadata") -> None:
    """Check that an update changes nothing in ObjectMeta that is immutable."""
    if old.get("deletionTimestamp"):
        added = sorted(set(meta.get("finalizers") or ()) - set(old.get("finalizers") or ()))
        if added:
            listed = "[]string{" + ", ".join(shown(name) for name in added) + "}"
            words = f"no new finalizers can be added if the object is being deleted, found new finalizers {listed}"
            errors.append(forbidden_field(f"{path}.finalizers", words))
    if not meta.get("resourceVersion"):
        errors.append(bad_value(f"{path}.resourceVersion", "", "must be specified for an update"))
    if meta.get("generation", 0) < old.get("generation", 0):
        errors.append(bad_value(f"{path}.generation", meta.get("generation", 0), "must not be decremented"))
    for field in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if meta.get(field) != old.get(field):
            errors.append(bad_value(f"{path}.{field}", meta.get(field, _UNSET.get(field)), IMMUTABLE))
    labels(errors, f"{path}.labels", meta.get("labels"))
    annotation_map(errors, f"{path}.annotations", meta.get("annotations"))
    _owners(errors, f"{path}.ownerReferences", meta.get("ownerReferences") or [])


_UNSET: Final = {"name": "", "namespace": "", "uid": ""}
