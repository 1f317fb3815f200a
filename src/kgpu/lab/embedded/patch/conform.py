"""Checks an applied configuration against its type; errors are those of the real server's typed patches."""

from __future__ import annotations

from typing import Any

from kgpu.lab.embedded.patch.fieldset import path_text
from kgpu.lab.embedded.patch.gotext import go_text, go_type
from kgpu.lab.embedded.patch.shape import MergeRule, MergeShape, ShapeError


def problems(shape: MergeShape, value: Any, path: str = "", *, duplicates: bool = False) -> list[str]:
    """``PATH: MESSAGE`` for each value that the type does not allow. ``duplicates``: list items may repeat."""
    if value is None:
        return []
    if shape.map is not MergeRule.NO and (
        isinstance(value, dict) or not (shape.scalar or shape.list is not MergeRule.NO)
    ):
        if not isinstance(value, dict):
            return [f"{path}: expected map, got &{{{go_text(value)}}}"]
        return _in_map(shape, value, path, duplicates)
    if shape.list is not MergeRule.NO and (isinstance(value, list) or not shape.scalar):
        if not isinstance(value, list):
            return [f"{path}: expected list, got &{{{go_text(value)}}}"]
        return _in_list(shape, value, path, duplicates)
    complaint = _scalar_complaint(shape.scalar, value)
    return [f"{path}: {complaint}"] if complaint else []


def _in_map(shape: MergeShape, value: dict[str, Any], path: str, duplicates: bool) -> list[str]:
    complaints: list[str] = []
    for name, member in value.items():
        child = shape.fields.get(name) or shape.values
        if child is None:
            return [*complaints, f"{path}.{name}: field not declared in schema"]
        complaints += problems(child, member, f"{path}.{name}", duplicates=duplicates)
    return complaints


def _in_list(shape: MergeShape, value: list[Any], path: str, duplicates: bool) -> list[str]:
    complaints: list[str] = []
    elements: set[str] = set()
    for index, item in enumerate(value):
        where = f"[{index}]"
        if shape.list is MergeRule.EACH:
            try:
                element = shape.element(item)
            except ShapeError as error:
                return [*complaints, f"{path}: element {index}: {error}"]
            where = path_text((element,))
            if element in elements and not duplicates:
                complaints.append(f"{path}: duplicate entries for key {where}")
            elements.add(element)
        complaints += problems(shape.item, item, path + where, duplicates=duplicates)
    return complaints


def _scalar_complaint(scalar: str, value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match scalar:
        case "numeric" if not number:
            return f"expected numeric (int or float), got {go_type(value)}"
        case "string" if not isinstance(value, str):
            return f"expected string, got &value.valueUnstructured{{Value:{_sharp(value)}}}"
        case "boolean" if not isinstance(value, bool):
            return f"expected boolean, got &{{{go_text(value)}}}"
        case "untyped" if isinstance(value, dict | list):
            return f"expected any scalar, got &{{{go_text(value)}}}"
    return ""


def _sharp(value: Any) -> str:
    """Go's ``%#v``."""
    if isinstance(value, dict):
        inner = ", ".join(f'"{key}":{_sharp(value[key])}' for key in sorted(value))
        return f"map[string]interface {{}}{{{inner}}}"
    if isinstance(value, list):
        return f"[]interface {{}}{{{', '.join(map(_sharp, value))}}}"
    return f'"{value}"' if isinstance(value, str) else go_text(value)
