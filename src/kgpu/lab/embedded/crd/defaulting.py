"""Defaulting of custom objects, and removal of nulls where a schema does not allow them. All in place."""

from __future__ import annotations

from typing import Any

from kgpu.lab.embedded.core.model import decode, encode
from kgpu.lab.embedded.crd.shape import MISSING, StructuralSchema


def _copy(value: Any) -> Any:
    return decode(encode(value)) if isinstance(value, dict | list) else value


def drop_nulls(value: Any, shape: StructuralSchema | None) -> None:
    """Remove nulls that are neither nullable nor replaced by a default."""
    if isinstance(value, dict):
        for key, inner in list(value.items()):
            below = shape.field(key) if shape is not None else None
            if inner is None:
                if below is not None and not below.nullable and below.default is MISSING:
                    del value[key]
            else:
                drop_nulls(inner, below)
    elif isinstance(value, list):
        for item in value:
            drop_nulls(item, shape.items if shape is not None else None)


def fill(value: Any, shape: StructuralSchema | None) -> None:
    """Set values that are missing, or null though not nullable, to their default; also inside present values."""
    if shape is None or not shape.defaults:
        return
    if isinstance(value, dict):
        for name, prop in shape.properties.items():
            if not prop.defaults:
                continue
            if prop.default is not MISSING and (name not in value or (value[name] is None and not prop.nullable)):
                value[name] = _copy(prop.default)
            if name in value:
                fill(value[name], prop)
        below = shape.additional
        if below is not None and below.defaults:
            for key in value:
                if key not in shape.properties:
                    if value[key] is None and not below.nullable and below.default is not MISSING:
                        value[key] = _copy(below.default)
                    fill(value[key], below)
    elif isinstance(value, list) and shape.items is not None:
        for index, item in enumerate(value):
            if item is None and not shape.items.nullable and shape.items.default is not MISSING:
                value[index] = _copy(shape.items.default)
            fill(value[index], shape.items)
