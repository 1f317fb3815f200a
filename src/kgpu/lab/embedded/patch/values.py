"""Decoded JSON as values: copies, and an equality that distinguishes true from 1."""

from __future__ import annotations

from typing import Any


def copied(value: Any) -> Any:
    """A copy that shares no dictionary or list."""
    if isinstance(value, dict):
        return {key: copied(child) for key, child in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def same(left: Any, right: Any) -> bool:
    """Equality of JSON: numbers by value, true is not 1."""
    if left is right:
        return True
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
