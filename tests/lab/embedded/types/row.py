"""A row of the tables of manifests, and how what it says is laid over its base."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Row:
    id: str
    manifest: Object
    patch: Object | None = None
    subresource: str = ""
    namespace: str = "plain"
    first: Object | None = None
    ignored: tuple[str, ...] = field(default=())


def laid(base: Any, over: Any) -> Any:
    """Like a merge patch, but a dictionary with only ``=`` replaces."""
    if not isinstance(over, dict):
        return copy.deepcopy(over)
    if set(over) == {"="}:
        return copy.deepcopy(over["="])
    result = copy.deepcopy(base) if isinstance(base, dict) else {}
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = laid(result.get(key), value)
    return result
