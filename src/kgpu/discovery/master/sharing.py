"""Keeps equal features of many nodes once: a fleet's nodes have the same kernel configuration, with all its lines."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from kgpu.discovery.features.model import FeatureSet

RECENT: Final = 8
"""Different values of a feature that are remembered."""


class FeatureShare:
    """Hands out the value that it has where it is equal. What it hands out must not be changed."""

    def __init__(self) -> None:
        self._known: dict[str, deque[Any]] = {}

    def shared(self, features: FeatureSet) -> FeatureSet:
        """The same features, equal parts of them being those that were given before."""
        return FeatureSet(
            flags={name: self._one(f"flags {name}", found) for name, found in features.flags.items()},
            attributes={name: self._one(f"attributes {name}", found) for name, found in features.attributes.items()},
            instances={name: self._one(f"instances {name}", found) for name, found in features.instances.items()},
        )

    def _one(self, name: str, found: Any) -> Any:
        recent = self._known.setdefault(name, deque(maxlen=RECENT))
        for known in recent:
            if known == found:
                return known
        recent.append(found)
        return found
