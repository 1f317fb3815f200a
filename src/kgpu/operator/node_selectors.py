"""Which DaemonSets want a node: found by index, since a fleet may have a driver DaemonSet per kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgpu.base.plain import mapping, strings
from kgpu.formats import names


class BySelector:
    """Index of names by node selector. There are few sets of keys, so it is grouped by these."""

    def __init__(self, selectors: Mapping[str, Mapping[str, str]]) -> None:
        self._kinds: dict[tuple[str, ...], dict[tuple[str, ...], list[str]]] = {}
        for name, selector in selectors.items():
            keys = tuple(sorted(selector))
            values = tuple(selector[key] for key in keys)
            self._kinds.setdefault(keys, {}).setdefault(values, []).append(name)

    def of(self, labels: Mapping[str, str]) -> list[str]:
        """Return the names whose selectors match these labels, sorted."""
        names: list[str] = []
        for keys, by_values in self._kinds.items():
            values = tuple(labels[key] for key in keys if key in labels)
            if len(values) == len(keys):
                names += by_values.get(values, ())
        return sorted(names)


def is_driver(daemon_set: Mapping[str, Any]) -> bool:
    """True for a DaemonSet of drivers."""
    template = mapping(mapping(mapping(daemon_set.get("spec")).get("template")).get("metadata"))
    return strings(template.get("labels")).get(names.COMPONENT_LABEL) == "nvidia-driver"


def node_selector(daemon_set: Mapping[str, Any]) -> dict[str, str]:
    """The node labels that a DaemonSet's pods need."""
    template = mapping(mapping(daemon_set.get("spec")).get("template"))
    return strings(mapping(template.get("spec")).get("nodeSelector"))
