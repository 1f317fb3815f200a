"""Which DaemonSets want a node: found by index, since a fleet may have a driver DaemonSet per kernel.

A driver's DaemonSet finds its nodes by the label of their NVIDIADriver. A node that is about to change the object of
its driver still has the label of before; what is asked for there is what the DaemonSets of the next one say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgpu.base.plain import mapping, strings
from kgpu.formats import names
from kgpu.operator.model import ClusterNode


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


class DriverSets:
    """Index of drivers' DaemonSets by the nodes that they are to install a driver on."""

    def __init__(self, daemon_sets: Mapping[str, Mapping[str, Any]]) -> None:
        selectors = {name: node_selector(each) for name, each in daemon_sets.items() if is_driver(each)}
        self._owners = {name: selector.get(names.LABEL_DRIVER_OWNER, "") for name, selector in selectors.items()}
        self._fitting = BySelector(selectors)

    def of(self, node: ClusterNode) -> list[str]:
        """Return the names of those for the object that the node is to belong to, sorted."""
        owner, labels = node.driver_owner, node.labels
        if node.next_owner is not None:
            rest = {key: value for key, value in labels.items() if key != names.LABEL_DRIVER_OWNER}
            labels = {**rest, names.LABEL_DRIVER_OWNER: owner} if owner else rest
        fitting = self._fitting.of(labels)
        own = [name for name in fitting if self._owners[name] == owner]
        # A label that names no NVIDIADriver's DaemonSet keeps no node from the ClusterPolicy's.
        return own if own or node.next_owner is not None else fitting


def is_driver(daemon_set: Mapping[str, Any]) -> bool:
    """True for a DaemonSet of drivers."""
    template = mapping(mapping(mapping(daemon_set.get("spec")).get("template")).get("metadata"))
    return strings(template.get("labels")).get(names.COMPONENT_LABEL) == "nvidia-driver"


def node_selector(daemon_set: Mapping[str, Any]) -> dict[str, str]:
    """The node labels that a DaemonSet's pods need."""
    template = mapping(mapping(daemon_set.get("spec")).get("template"))
    return strings(mapping(template.get("spec")).get("nodeSelector"))
