"""The errors of a patch whose result can't be decoded or has fields that its type doesn't know.

Sources of the rules: apiserver's endpoints/handlers/patch.go and apimachinery's runtime converter (FromUnstructured),
by which strategic patches are decoded.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from kgpu.lab.embedded.core.model import Call, in_order
from kgpu.lab.embedded.duplicate_fields import Repeated, operations, warnings
from kgpu.lab.embedded.status import ApiError, Object, bad_request, bad_value, invalid, shown

STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON: Final = "application/json-patch+json"
_UNMARSHAL: Final = re.compile(r"json: cannot unmarshal (\w+)(?: (\S+))? into Go struct field \S+ of type (\S+)$")
_SOURCES: Final = {"string": "string", "bool": "bool", "number": "int64", "object": "map", "array": "slice"}
_CONVERTIBLE: Final = frozenset({("number", "string")})  # in Go, where it would make a character of the number
_HANDLED: Final = re.compile(r'^\S+ in version "\S+" cannot be handled as a \S+: ')


class AppliedPatch(NamedTuple):
    """A patch, and the object that it resulted in."""

    content_type: str
    body: Any
    patched: Object

    @classmethod
    def of(cls, content_type: str, body: Any, changed: Object) -> AppliedPatch:
        """JSON and merge patches sort what they go through; complaints come in that order."""
        return cls(content_type, body, changed if content_type == STRATEGIC else in_order(changed))

    def shown(self) -> str:
        """As a refusal quotes it: a strategic patch itself, else the patched object.

        In parts that the patch did not touch, the real server has a built-in type's fields in the order of its Go
        struct.
        """
        return printed(self.body) if self.content_type == STRATEGIC else shown(self.patched)

    def ordered(self, unknown: list[str]) -> list[str]:
        """Complaints about unknown fields in the decoder's order."""
        return sorted(unknown) if self.content_type == STRATEGIC else unknown


def complaints(patch: AppliedPatch, repeated: Repeated | None) -> list[str]:
    """The complaints of strict decoding about the patch itself."""
    if patch.content_type == JSON:
        return [
            f"json patch {complaint}" for complaint in operations(patch.body if repeated is None else repeated.members)
        ]
    return repeated.untyped() if repeated is not None else []


def refused(patch: AppliedPatch, why: str) -> ApiError:
    """ApiError 422 for the patch."""
    return invalid("", "", "", [bad_value("patch", patch.shown(), why)])


def settle_applied(repeated: Repeated, call: Call) -> None:
    """Refuse an applied configuration that has a field twice, or warn of it. Raises ApiError 400."""
    if call.validation == "Strict":
        raise bad_request(f"error strict decoding YAML: {repeated.applied()}")
    if call.validation == "Warn":
        call.warnings.extend(warnings([repeated.applied()]))


def undecoded(patch: AppliedPatch, error: ApiError) -> ApiError:
    """The real server's error in place of ``error``, the refusal to decode the patched object."""
    if error.code != 400:
        return error
    if patch.content_type != STRATEGIC:
        prefix = _HANDLED.match(error.message)
        return refused(patch, error.message[prefix.end() :]) if prefix else error
    unmarshal = _UNMARSHAL.search(error.message)
    return error if unmarshal is None else refused(patch, _conversion(*unmarshal.groups()))


def _conversion(have: str, number: str | None, wanted: str) -> str:
    if wanted.startswith("map["):
        return f"cannot restore map from {_SOURCES.get(have, have)}"
    if wanted.startswith("[]"):
        return f"cannot restore slice from {_SOURCES.get(have, have)}"
    if "." in wanted:
        return f"cannot restore struct from: {_SOURCES.get(have, have)}"
    if number and wanted.startswith(("int", "uint")):
        return f"cannot convert float64 to {wanted}"
    if (have, wanted) in _CONVERTIBLE:
        return f"cannot convert {_SOURCES[have]} to {wanted}"
    return f"unrecognized type: {wanted}"


def printed(value: Any) -> str:
    """As Go prints a value with %+v: ``map[a:1 b:[x y]]``.

    ``patch.gotext.go_text`` prints the same but for whole floats: 1.0 is ``1.0`` here and ``1`` there, and 1e16 is
    ``1e+16`` here. What the real server quotes of a strategic patch with such a number was not compared.
    """
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{printed(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(printed, value))}]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)
