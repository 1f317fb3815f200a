"""How deep CRDs and custom objects may be: who walks over them calls itself once or more for each level."""

from __future__ import annotations

from typing import Any, Final

from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import Object, bad_request

DEEPEST: Final = 200
"""Levels of objects and lists in each other. The real server's limit is 10,000, which nobody needs."""


def refuse_deep(kind: ApiKind, obj: Object) -> None:
    """Raises ApiError 400 for what is nested deeper than ``DEEPEST``."""
    level: list[Any] = [obj]
    for _ in range(DEEPEST):
        level = [below for one in level for below in (one.values() if isinstance(one, dict) else one)]
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return
    words = f"{kind.kind} is nested more than {DEEPEST} levels deep"
    raise bad_request(f"{words}, which the embedded cluster does not take")
