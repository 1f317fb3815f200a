"""x-kubernetes-embedded-resource: checks apiVersion, kind and metadata of whole objects inside custom ones."""

from __future__ import annotations

from typing import Any

from kgpu.lab.embedded.crd.shape import StructuralSchema
from kgpu.lab.embedded.crd.version import OBJECT_META
from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import FieldError, bad_value, required
from kgpu.lab.embedded.strict import check
from kgpu.lab.embedded.types.shape import DecodeError
from kgpu.lab.embedded.types.shape import shape as builtin_shape
from kgpu.lab.embedded.types.validate import base, texts

_META_NODE = SchemaNode({"$ref": OBJECT_META}, schema_data())


def has_embedded(shape: StructuralSchema) -> bool:
    """Whether there is an embedded resource below the root."""
    below = [*shape.properties.values(), shape.items, shape.additional]
    return any(child is not None and (child.embedded or has_embedded(child)) for child in below)


def coerce(value: Any, shape: StructuralSchema) -> tuple[FieldError | None, list[str]]:
    """Clean the metadata of embedded objects in place; returns the first type error and the fields dropped."""
    if not has_embedded(shape):
        return None, []
    lost: list[str] = []
    return _coerce(value, shape, "", lost, root=True), sorted(lost)


def _coerce(
    value: Any, shape: StructuralSchema | None, path: str, lost: list[str], *, root: bool = False
) -> FieldError | None:
    if shape is None:
        return None
    if isinstance(value, dict):
        if shape.embedded and not root:
            for name in ("apiVersion", "kind"):
                if name in value and not isinstance(value[name], str):
                    return bad_value(f"{path}.{name}", value[name], "must be a string")
            if "metadata" in value:
                at = f"{path}.metadata"
                cleaned, unknown, wrong = check(value["metadata"], _META_NODE, path=at)
                if wrong:
                    return bad_value(at, value["metadata"], wrong[0])
                try:
                    builtin_shape(OBJECT_META).settle(cleaned)
                except DecodeError as error:
                    return bad_value(at, value["metadata"], str(error))
                lost += (complaint.split('"')[1] for complaint in unknown)
                value["metadata"] = cleaned
        for key, inner in value.items():
            where = f"{path}.{key}" if path else key
            refused = _coerce(inner, shape.field(key), where, lost)
            if refused is not None:
                return refused
    elif isinstance(value, list):
        for index, item in enumerate(value):
            refused = _coerce(item, shape.items, f"{path}[{index}]", lost)
            if refused is not None:
                return refused
    return None


def complaints(value: Any, shape: StructuralSchema) -> list[FieldError]:
    """Errors in apiVersion, kind and metadata of embedded objects; the root's own are checked elsewhere."""
    errors: list[FieldError] = []
    if has_embedded(shape):
        _complain(value, shape, "", errors, root=True)
    return errors


def _complain(
    value: Any, shape: StructuralSchema | None, path: str, errors: list[FieldError], *, root: bool = False
) -> None:
    if shape is None:
        return
    if isinstance(value, dict):
        if shape.embedded and not root:
            _resource(value, path, errors)
        for key, inner in value.items():
            _complain(inner, shape.field(key), _below(shape, path, key), errors)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _complain(item, shape.items, f"{path}[{index}]", errors)


def _below(shape: StructuralSchema, path: str, key: str) -> str:
    if key not in shape.properties:
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _resource(value: dict[str, Any], path: str, errors: list[FieldError]) -> None:
    for name in ("apiVersion", "kind"):
        if name not in value:
            errors.append(required(f"{path}.{name}"))
        elif not value[name]:
            errors.append(bad_value(f"{path}.{name}", value[name], "must not be empty"))
    version = value.get("apiVersion", "")
    if isinstance(version, str) and version.count("/") > 1:
        errors.append(bad_value(f"{path}.apiVersion", version, f"unexpected GroupVersion string: {version}"))
    kind = value.get("kind")
    wrong = texts.label_1035(kind.lower()) if isinstance(kind, str) and kind else ()
    if wrong:
        words = f"may have mixed case, but should otherwise match: {','.join(wrong)}"
        errors.append(bad_value(f"{path}.kind", kind, words))
    meta = value.get("metadata")
    if isinstance(meta, dict):
        named = {**meta, "name": meta.get("name") or "fakename"}
        base.metadata(
            errors, named, namespaced=bool(meta.get("namespace")), rule=texts.path_segment, path=f"{path}.metadata"
        )
