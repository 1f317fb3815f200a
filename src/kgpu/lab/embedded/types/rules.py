"""``BuiltinRules``: how objects of built-in kinds are decoded, defaulted, prepared and validated.

Decoding makes an object as Go would decode and print it (``shape``), defaults come from ``defaults``, what the
strategies set and keep from ``prepare``, errors in the real server's words from ``validate``. Pure: looks up no other
objects.
"""

from __future__ import annotations

import functools

from kgpu.lab.embedded.core.model import Call, copied
from kgpu.lab.embedded.duplicate_fields import StrictError, warnings, words
from kgpu.lab.embedded.kinds import ApiKind, schema_data
from kgpu.lab.embedded.schema import ANYTHING, SchemaNode
from kgpu.lab.embedded.status import FieldError, Object, bad_request
from kgpu.lab.embedded.strict import check, refusal
from kgpu.lab.embedded.types import prepare, validate
from kgpu.lab.embedded.types.shape import DecodeError, shape


class BuiltinRules:
    """TypeRules of every kind that is not a CRD's. One instance serves all; it keeps no state."""

    def schema(self, kind: ApiKind) -> SchemaNode:
        """The kind's type tree."""
        return _schema(kind.schema)

    def decode(self, kind: ApiKind, obj: Object, call: Call) -> Object:
        """A copy with the type's fields. Raises ApiError 400 for wrong JSON types and, under Strict, unknown fields."""
        cleaned, unknown, wrong = check(obj, self.schema(kind))
        if wrong:
            raise bad_request(refusal(kind, wrong))
        settle(kind, call, call.repeated.typed(self.schema(kind), unknown) if call.repeated else unknown)
        decoded: Object = cleaned
        try:
            shape(kind.schema).settle(decoded)
        except DecodeError as error:
            raise bad_request(refusal(kind, [str(error)])) from error
        return decoded

    def default(self, kind: ApiKind, obj: Object) -> None:
        """Fill in the real server's defaults, in place."""
        shape(kind.schema).default(obj)

    def prepare(self, kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> None:
        """Set, keep and clear fields as the kind's strategy does, and make the object as storage returns it."""
        prepare.prepare(kind, obj, old, subresource)
        shape(kind.schema).store(obj)

    def validate(self, kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> list[FieldError]:
        """Every error, in the real server's order."""
        return validate.validate(kind, obj, old, subresource)


def settle(kind: ApiKind, call: Call, complaints: list[str]) -> None:
    """Warn of the errors of strict decoding, or raise StrictError for them, as the call wants it."""
    if complaints and call.validation == "Strict":
        raise StrictError(refusal(kind, [words(complaints)]), complaints)
    if call.validation == "Warn":
        call.warnings.extend(warnings(complaints))


@functools.cache
def _schema(name: str) -> SchemaNode:
    return SchemaNode({"$ref": name}, schema_data()) if name else ANYTHING


__all__ = ["BuiltinRules", "copied", "settle"]
