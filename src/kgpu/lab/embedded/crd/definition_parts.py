"""Complaints about a CRD's smaller parts: names, printer columns, subresources, selectable fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kgpu.lab.embedded.crd.fieldpaths import PathError, resolve
from kgpu.lab.embedded.crd.shape import Schema
from kgpu.lab.embedded.status import FieldError, Object, bad_value, required
from kgpu.lab.embedded.types.validate import base, texts

_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS: Final = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_MIXED: Final = "may have mixed case, but should otherwise match: "
_MOST_FIELDS: Final = 8
_SELECTABLE: Final = (
    "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."
)


def names(declared: Object, path: str) -> list[FieldError]:
    """Check the syntax of the names; required ones are checked elsewhere."""
    errors: list[FieldError] = []
    for field, mixed in (("plural", False), ("singular", False), ("kind", True), ("listKind", True)):
        text = declared.get(field) or ""
        wrong = texts.label_1035(text.lower() if mixed else text) if text else ()
        if wrong:
            errors.append(bad_value(f"{path}.{field}", text, (_MIXED if mixed else "") + ",".join(wrong)))
    errors += _listed(declared, path, "shortNames")
    if declared.get("kind") and declared["kind"] == declared.get("listKind"):
        errors.append(bad_value(f"{path}.listKind", declared["listKind"], "kind and listKind may not be the same"))
    return errors + _listed(declared, path, "categories")


def _listed(declared: Object, path: str, field: str) -> list[FieldError]:
    wrong = ((index, text, texts.label_1035(text)) for index, text in enumerate(declared.get(field) or ()))
    return [bad_value(f"{path}.{field}[{index}]", text, ",".join(words)) for index, text, words in wrong if words]


def columns(declared: Sequence[Object] | None, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, column in enumerate(declared or ()):
        at = f"{path}[{index}]"
        if not column.get("name"):
            errors.append(required(f"{at}.name"))
        kind, form = column.get("type"), column.get("format")
        words = f"must be one of {','.join(_COLUMN_TYPES)}"
        if not kind:
            errors.append(required(f"{at}.type", words))
        elif kind not in _COLUMN_TYPES:
            errors.append(bad_value(f"{at}.type", kind, words))
        if form and form not in _COLUMN_FORMATS:
            errors.append(bad_value(f"{at}.format", form, f"must be one of {','.join(_COLUMN_FORMATS)}"))
        source = column.get("jsonPath")
        if not source:
            errors.append(required(f"{at}.JSONPath"))
        else:
            errors += _json_path(source, f"{at}.JSONPath")
    return errors


def _json_path(text: str, path: str) -> list[FieldError]:
    return [] if text.startswith(".") else [bad_value(path, text, "must be a simple json path starting with .")]


# Of the scale subresource: field, whether it is required, the prefixes its path may have, and the message.
_SCALE: Final = (
    ("specReplicasPath", True, (".spec.",), "should be a json path under .spec"),
    ("statusReplicasPath", True, (".status.",), "should be a json path under .status"),
    ("labelSelectorPath", False, (".spec.", ".status."), "should be a json path under either .spec or .status"),
)


def subresources(declared: Object | None, path: str) -> list[FieldError]:
    scale = (declared or {}).get("scale")
    if scale is None:
        return []
    errors: list[FieldError] = []
    for field, needed, places, words in _SCALE:
        at, text = f"{path}.scale.{field}", scale.get(field)
        if not text:
            if needed:
                errors.append(required(at))
        elif wrong := _json_path(text, at):
            errors += wrong
        elif not text.startswith(places):
            errors.append(bad_value(at, text, words))
    return errors


def selectable_fields(declared: Sequence[Object], schema: Schema | None, path: str) -> list[FieldError]:
    if schema is None:
        return [bad_value(path, "", "may only be set when validations.schema is included")]
    errors: list[FieldError] = []
    known: set[str] = set()
    for index, field in enumerate(declared):
        at, text = f"{path}[{index}].jsonPath", field.get("jsonPath") or ""
        if not text:
            errors.append(required(at))
            continue
        try:
            shown, target = resolve(text, schema, brackets=False)
        except PathError as error:
            errors.append(bad_value(at, text, f"is an invalid path: {error}"))
            continue
        if shown.split(".")[0] == "metadata":
            errors.append(bad_value(at, text, "must not point to fields in metadata"))
        if target.get("type") not in {"string", "boolean", "integer"}:
            errors.append(bad_value(at, text, _SELECTABLE))
        if shown in known:
            errors.append(FieldError("FieldValueDuplicate", at, text))
        known.add(shown)
    if len(known) > _MOST_FIELDS:
        errors.append(base.too_many(path, len(known), _MOST_FIELDS))
    return errors
