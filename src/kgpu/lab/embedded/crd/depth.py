"""How deeply CRDs and custom objects may be nested: functions that walk them recurse for each level."""

from __future__ import annotations

from typing import Any, Final

from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import Object, bad_request

DEEPEST: Final = 200
"""Levels of nested objects and lists. The real server's limit is 10,000."""


def refuse_deep(kind: ApiKind, obj: Object) -> None:
    """Raises ApiError 400 for an object nested deeper than ``DEEPEST``."""
    level: list[Any] = [obj]
    for _ in range(DEEPEST):
        level = [below for value in level for below in (value.values() if isinstance(value, dict) else value)]
        level = [value for value in level if isinstance(value, dict | list)]
        if not level:
            return
    words = f"{kind.kind} is nested more than {DEEPEST} levels deep"
    raise bad_request(f"{words}, which the embedded cluster does not take")
