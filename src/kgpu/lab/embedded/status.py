"""The API's errors: Status objects with code, reason, message and causes, worded as the real server's.

``ApiError`` is raised anywhere below the HTTP layer, which turns it into the response. ``FieldError`` is an error in
one field; ``invalid`` makes the 422 of several.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

Object = dict[str, Any]


class ApiError(Exception):
    """An error response. ``details`` is the Status object's ``details``."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.token = ""
        """With 410 for a continue token: one to go on with."""

    def to_status(self) -> Object:
        """The Status object."""
        metadata = {"continue": self.token} if self.token else {}
        status: Object = {
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure", "message": self.message,
        }  # fmt: skip
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        return {**status, "code": self.code}


# The beginning of a field error's message, by type.
_SENTENCES: Final = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueRequired": "Required value",
    "FieldValueNotSupported": "Unsupported value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueNotFound": "Not found",
    "FieldValueTooLong": "Too long",
    "FieldValueTooMany": "Too many",
    "FieldValueTypeInvalid": "Invalid value",
    "InternalError": "Internal error",
}
_WITHOUT_VALUE: Final = frozenset({"FieldValueRequired", "FieldValueForbidden", "FieldValueTooLong", "InternalError"})
OMIT: Final[Any] = object()
"""As a FieldError's value: the message has no value, as for whole objects and lists."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One error: its type (a CauseType), the field's path as ``spec.containers[0].image``, the value, the detail."""

    type: str
    field: str
    value: Any = None
    detail: str = ""

    @property
    def message(self) -> str:
        """The message without the field, as in a cause."""
        text = _SENTENCES[self.type]
        if self.type not in _WITHOUT_VALUE and self.value is not OMIT:
            text += f": {shown(self.value)}"
        return f"{text}: {self.detail}" if self.detail else text

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class Verbatim(str):
    """A value in the form that messages print, such as a Go struct with its fields in their own order."""

    __slots__ = ()


def shown(value: Any) -> str:
    """A value as the API's messages print it: JSON for what has structure, quoted strings, bare numbers."""
    if isinstance(value, Verbatim):
        return str(value)
    if isinstance(value, float):
        return float_text(value)
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    if isinstance(value, dict | list):
        # Go's JSON encoder escapes these for HTML.
        text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return text


def float_text(value: float) -> str:
    """A float as Go's %v prints it: 1.5, 2, 1e+06."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int):
        return ("-Inf" if sign else "+Inf") if exponent == "F" else "NaN"
    power = len(digits) + exponent - 1
    minus = "-" if sign else ""
    if -4 <= power < 6:
        return f"{minus}{abs(Decimal(repr(value)).normalize()):f}"
    text = "".join(map(str, digits))
    rest = f".{text[1:]}" if len(text) > 1 else ""
    return f"{minus}{text[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02d}"


def required(field: str, detail: str = "") -> FieldError:
    return FieldError("FieldValueRequired", field, "", detail)


def bad_value(field: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", field, value, detail)


def forbidden_field(field: str, detail: str) -> FieldError:
    return FieldError("FieldValueForbidden", field, None, detail)


def unsupported(field: str, value: Any, supported: Sequence[str]) -> FieldError:
    known = ", ".join(shown(name) for name in sorted(supported))
    return FieldError("FieldValueNotSupported", field, value, f"supported values: {known}")


def invalid(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> ApiError:
    """422: ``Pod "x" is invalid: spec.y: ...``, several in brackets."""
    qualified = f"{kind}.{group}" if group else kind
    texts = list(dict.fromkeys(str(error) for error in errors))
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    causes = [{"reason": error.type, "message": error.message, "field": error.field} for error in errors]
    details = {"name": name, "group": group, "kind": kind, "causes": causes}
    message = f'{qualified} "{name}" is invalid: {joined}'
    return ApiError(422, "Invalid", message, {key: value for key, value in details.items() if value})


def _about(group: str, plural: str, name: str) -> tuple[str, Object]:
    qualified = f"{plural}.{group}" if group else plural
    details = {"name": name, "group": group, "kind": plural}
    return f'{qualified} "{name}"', {key: value for key, value in details.items() if value}


def not_found(group: str, plural: str, name: str) -> ApiError:
    words, details = _about(group, plural, name)
    return ApiError(404, "NotFound", f"{words} not found", details)


def already_exists(group: str, plural: str, name: str) -> ApiError:
    words, details = _about(group, plural, name)
    return ApiError(409, "AlreadyExists", f"{words} already exists", details)


def conflict(group: str, plural: str, name: str, why: str) -> ApiError:
    """409: ``Operation cannot be fulfilled on ...``."""
    words, details = _about(group, plural, name)
    return ApiError(409, "Conflict", f"Operation cannot be fulfilled on {words}: {why}", details)


MODIFIED: Final = "the object has been modified; please apply your changes to the latest version and try again"


def forbidden(group: str, plural: str, name: str, why: str) -> ApiError:
    """403: ``pods "x" is forbidden: ...``, without quotes when there is no name."""
    words, details = _about(group, plural, name)
    words = words if name else words.removesuffix(' ""')
    return ApiError(403, "Forbidden", f"{words} is forbidden: {why}", details)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def expired(message: str) -> ApiError:
    """410: a resourceVersion or continue token that is too old."""
    return ApiError(410, "Expired", message)
