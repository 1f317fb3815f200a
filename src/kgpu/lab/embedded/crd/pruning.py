"""Pruning: drops fields that are not in the structural schema, unless it preserves unknown fields."""

from __future__ import annotations

from typing import Any

from kgpu.lab.embedded.crd.shape import META, StructuralSchema


def prune(value: Any, shape: StructuralSchema | None) -> list[str]:
    """Drop unknown fields in place; their paths as ``spec.containers[0].foo``, sorted."""
    unknown: list[str] = []
    _prune(value, shape, "", unknown)
    unknown.sort()
    return unknown


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _prune(value: Any, shape: StructuralSchema | None, path: str, unknown: list[str]) -> None:
    if shape is not None and shape.preserve:
        _keep(value, shape, path, unknown)
    elif isinstance(value, dict):
        for key in list(value):
            if shape is None:
                unknown.append(_at(path, key))
                del value[key]
            elif shape.embedded and key in META:
                continue
            elif (below := shape.properties.get(key)) is not None:
                _prune(value[key], below, _at(path, key), unknown)
            elif shape.open:
                _prune(value[key], shape.additional, _at(path, key), unknown)
            else:
                if path or key not in META:
                    unknown.append(_at(path, key))
                del value[key]
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _prune(item, shape.items if shape is not None else None, f"{path}[{index}]", unknown)


def _keep(value: Any, shape: StructuralSchema | None, path: str, unknown: list[str]) -> None:
    """Below x-kubernetes-preserve-unknown-fields only inside specified fields is pruned again."""
    if shape is None:
        return
    if isinstance(value, dict):
        for key in value:
            if shape.embedded and key in META:
                continue
            if (below := shape.properties.get(key)) is not None:
                _prune(value[key], below, _at(path, key), unknown)
            elif shape.open:
                _prune(value[key], shape.additional, _at(path, key), unknown)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _keep(item, shape.items, f"{path}[{index}]", unknown)
