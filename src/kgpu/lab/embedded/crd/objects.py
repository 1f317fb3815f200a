"""TypeRules of custom objects: decoding, pruning, defaults, status updates and validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kgpu.lab.embedded.core.model import Call, copied
from kgpu.lab.embedded.crd import defaulting, embedded_resource, listtypes, pruning
from kgpu.lab.embedded.crd.depth import refuse_deep
from kgpu.lab.embedded.crd.shape import MISSING
from kgpu.lab.embedded.crd.values import NOWHERE
from kgpu.lab.embedded.crd.version import OBJECT_META, Version
from kgpu.lab.embedded.kinds import ApiKind, schema_data
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import ApiError, FieldError, Object, bad_request, bad_value
from kgpu.lab.embedded.strict import check, refusal
from kgpu.lab.embedded.types.prepare import keep, keep_owned
from kgpu.lab.embedded.types.rules import settle
from kgpu.lab.embedded.types.shape import DecodeError
from kgpu.lab.embedded.types.shape import shape as builtin_shape
from kgpu.lab.embedded.types.validate import base, texts

_META_NODE: Final = SchemaNode({"$ref": OBJECT_META}, schema_data())
_MOST_REPLICAS: Final = 2**31 - 1
# Errors that keep rules from being evaluated: these could fail on values of the wrong type or size.
_BLOCKING: Final = frozenset(
    {"FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid"}
)
_UNCHECKED: Final = (
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)


class CustomRules:
    """TypeRules of every custom kind. ``version_of`` returns a kind's served version."""

    def __init__(self, version_of: Callable[[ApiKind], Version]) -> None:
        self._version = version_of

    def schema(self, kind: ApiKind) -> SchemaNode:
        """The kind's type tree, metadata included."""
        return self._version(kind).node

    def decode(self, kind: ApiKind, obj: Object, call: Call) -> Object:
        """A pruned copy; ApiError 400 for metadata of the wrong type, and for unknown fields under Strict."""
        version = self._version(kind)
        refuse_deep(kind, obj)
        if version.deprecation:
            call.warnings.append(version.deprecation)
        decoded = copied(obj)
        meta, unknown, wrong = check(obj.get("metadata") or {}, _META_NODE, path="metadata")
        if wrong:
            raise bad_request(refusal(kind, wrong))
        try:
            builtin_shape(OBJECT_META).settle(meta)
        except DecodeError as error:
            raise bad_request(refusal(kind, [str(error)])) from error
        unknown += (f'unknown field "{path}"' for path in pruning.prune(decoded, version.shape))
        defaulting.drop_nulls(decoded, version.shape)
        decoded["metadata"] = meta
        refused, lost = embedded_resource.coerce(decoded, version.shape)
        if refused is not None:
            raise bad_request(refusal(kind, [str(refused)]))
        unknown += (f'unknown field "{path}"' for path in lost)
        settle(kind, call, [*(call.repeated.untyped() if call.repeated else ()), *unknown])
        return decoded

    def default(self, kind: ApiKind, obj: Object) -> None:
        """The schema's defaults, in place."""
        defaulting.fill(obj, self._version(kind).shape)

    def prepare(self, kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> None:
        """With the status subresource a main write keeps the status, and a status write everything else."""
        version = self._version(kind)
        meta = obj["metadata"]
        if old is None:
            if version.definition["metadata"].get("deletionTimestamp"):
                raise ApiError(
                    405, "MethodNotAllowed", "create not allowed while custom resource definition is terminating"
                )  # fmt: skip
            if version.has_status:
                obj.pop("status", None)
            meta["generation"] = 1
            return
        if subresource == "status":
            managed, status = meta.get("managedFields"), obj.get("status")
            version_before = meta.get("resourceVersion")
            obj.clear()
            obj.update(copied(old))
            for name, value in (("managedFields", managed), ("resourceVersion", version_before)):
                if value is not None:
                    obj["metadata"][name] = value
                else:
                    obj["metadata"].pop(name, None)
            obj.pop("status", None)
            if status is not None:
                obj["status"] = status
            return
        keep_owned(obj, old)
        if version.has_status:
            keep(obj, old, "status")
        # Shown as another version it is still the same.
        skipped = {"metadata", "apiVersion"}
        if {k: v for k, v in obj.items() if k not in skipped} != {k: v for k, v in old.items() if k not in skipped}:
            meta["generation"] = int(old["metadata"].get("generation", 0)) + 1

    def validate(self, kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> list[FieldError]:
        """All errors, in the real server's order."""
        version = self._version(kind)
        errors = _types(kind, obj)
        if errors:
            return errors
        if old is None:
            base.metadata(errors, obj["metadata"], namespaced=kind.namespaced, rule=texts.subdomain)
            errors += version.values.validate(obj)
        else:
            # The real server checks metadata three times, and reports each error as often.
            base.metadata(errors, obj["metadata"], namespaced=kind.namespaced, rule=lambda _: ())
            base.metadata_update(errors, obj["metadata"], old["metadata"])
            base.metadata_update(errors, obj["metadata"], old["metadata"])
            if subresource == "status":
                checks = version.status_values
                if checks is not None and "status" in obj:
                    errors += checks.validate(obj["status"], old.get("status"))
            else:
                errors += version.values.validate(obj, old)
        if version.scale is not None:
            errors += _scale(version.scale, obj, with_spec=subresource != "status")
        shape = version.shape
        if subresource != "status":
            errors += embedded_resource.complaints(obj, shape)
        twice = listtypes.duplicates(obj, shape)
        if twice and (old is None or not listtypes.duplicates(old, shape)):
            errors += twice
        if version.rules is not None:
            if any(error.type in _BLOCKING for error in errors):
                errors.append(bad_value(NOWHERE, None, _UNCHECKED))
            else:
                errors += version.rules.validate(obj, MISSING if old is None else old)
        return errors


def _types(kind: ApiKind, obj: Object) -> list[FieldError]:
    errors = []
    for name, wanted in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        if obj.get(name) != wanted:
            errors.append(bad_value(name, obj.get(name, ""), f"must be {wanted}"))
    return errors


def at_path(obj: Any, path: str) -> Any:
    """The value at a simple path such as ``.spec.replicas``, None when there is none."""
    for name in path.removeprefix(".").split("."):
        obj = obj.get(name) if isinstance(obj, dict) else None
    return obj


def _scale(scale: Object, obj: Object, *, with_spec: bool) -> list[FieldError]:
    errors = []
    for key in ("specReplicasPath", "statusReplicasPath") if with_spec else ("statusReplicasPath",):
        path = scale[key]
        count = at_path(obj, path)
        if count is None:
            continue
        if not isinstance(count, int) or isinstance(count, bool):
            words = f"{path} accessor error: {_go(count)} is of the type {_go_type(count)}, expected int64"
            errors.append(bad_value(path, 0, words))
        elif count < 0:
            errors.append(bad_value(path, count, "should be a non-negative integer"))
        elif count > _MOST_REPLICAS:
            errors.append(bad_value(path, count, f"should be less than or equal to {_MOST_REPLICAS}"))
    path = scale.get("labelSelectorPath")
    if path:
        text = at_path(obj, path)
        if text is not None and not isinstance(text, str):
            words = f"{path} accessor error: {_go(text)} is of the type {_go_type(text)}, expected string"
            errors.append(bad_value(path, "", words))
    return errors


def _go_type(value: Any) -> str:
    names = {bool: "bool", int: "int64", float: "float64", str: "string", list: "[]interface {}"}
    return names.get(type(value), "map[string]interface {}")


def _go(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
