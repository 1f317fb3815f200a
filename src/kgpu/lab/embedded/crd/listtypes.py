"""Lists of type set and map: no duplicate item or key."""

from __future__ import annotations

from typing import Any

from kgpu.lab.embedded.core.model import encode
from kgpu.lab.embedded.crd.shape import StructuralSchema
from kgpu.lab.embedded.status import FieldError, bad_value


def duplicates(value: Any, shape: StructuralSchema, path: str = "") -> list[FieldError]:
    """A FieldValueDuplicate error for the second of each duplicate, with the item or its keys."""
    errors: list[FieldError] = []
    _walk(value, shape, path, errors)
    return errors


def _walk(value: Any, shape: StructuralSchema, path: str, errors: list[FieldError]) -> None:
    if isinstance(value, list):
        if shape.list_type == "set":
            errors += (FieldError("FieldValueDuplicate", f"{path}[{at}]", value[at]) for at in _repeated(value))
        elif shape.list_type == "map":
            errors += _map_list(value, shape, path)
        if shape.items is not None:
            for index, item in enumerate(value):
                _walk(item, shape.items, f"{path}[{index}]", errors)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if (below := shape.properties.get(key)) is not None:
                _walk(inner, below, f"{path}.{key}" if path else key, errors)
            elif shape.additional is not None:
                _walk(inner, shape.additional, f"{path}[{key}]", errors)


def _map_list(value: list[Any], shape: StructuralSchema, path: str) -> list[FieldError]:
    for index, item in enumerate(value):
        if item is not None and not isinstance(item, dict):
            return [bad_value(f"{path}[{index}]", item, "must be an object for an array of list-type map")]
    keys = [{key: item[key] for key in shape.map_keys if key in item} if item else {} for item in value]
    return [FieldError("FieldValueDuplicate", f"{path}[{at}]", keys[at]) for at in _repeated(keys)]


def _repeated(values: list[Any]) -> list[int]:
    """The index of the second occurrence of each repeated value."""
    times: dict[bytes, int] = {}
    repeated = []
    for index, value in enumerate(values):
        key = encode(_sorted(value))
        times[key] = times.get(key, 0) + 1
        if times[key] == 2:
            repeated.append(index)
    return repeated


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
