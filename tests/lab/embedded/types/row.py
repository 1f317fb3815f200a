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


Overlays = dict[str, tuple[Object, dict[str, Object]]]
"""By name a manifest, and what is laid over it by name."""


def rows_of(creates: Overlays, updates: Overlays) -> list[Row]:
    """Each manifest with each of its overlays, and each patch of an object that is there."""
    found = [
        Row(f"{base}/{name}", laid(manifest, over))
        for base, (manifest, overs) in creates.items()
        for name, over in overs.items()
    ]
    for base, (manifest, patches) in updates.items():
        named = laid(manifest, {"metadata": {"name": f"u-{base}"}})
        found += [Row(f"{base}/{name}", named, patch=patch) for name, patch in patches.items()]
    return found
