"""A GPU's display nodes (/dev/dri/cardN, renderDN) and their names by PCI address (/dev/dri/by-path/...).

A by-path name is a link on the host. Without a hook no link can be made in a container, but a CDI device node can have
any path: the name becomes another node with the same numbers. Programs can open it as usual, but can't read it as a
link.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kgpu.formats.cdi import CdiDeviceNode
from kgpu.host.driver.model import Search
from kgpu.host.driver.programs import sys_of
from kgpu.host.root import DriverRoot, Tree

_BY_PATH: Final = "/dev/dri/by-path"
# Kernel name of the node -> ending of its by-path name (udev's rule).
_KINDS: Final = ((re.compile(r"card\d{1,5}", re.ASCII), "card"), (re.compile(r"renderD\d{1,5}", re.ASCII), "render"))
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


@dataclass(frozen=True, slots=True)
class DrmNodes:
    """``nodes`` are the existing /dev paths. ``links`` are by-path names (/dev paths, never the dev
    root's) and nodes.
    """

    nodes: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


def drm_nodes(root: DriverRoot, pci_bus_id: str, *, sys: Path | None = None) -> DrmNodes:
    """The DRM nodes of the GPU at a PCI address such as ``0000:07:00.0``; empty if none are known."""
    bus_id = pci_bus_id.lower()
    if not _BUS_ID.fullmatch(bus_id):
        return DrmNodes()
    tree = Tree.at(sys_of(root, Search(sys=sys)))
    found = [(f"/dev/dri/{name}", ending) for name, ending in _named(tree.names(f"/bus/pci/devices/{bus_id}/drm"))]
    there = [(path, ending) for path, ending in found if root.has_node(path)]
    links = tuple((f"{_BY_PATH}/pci-{bus_id}-{ending}", path) for path, ending in there)
    return DrmNodes(tuple(path for path, _ in there), links)


def drm_edits(root: DriverRoot, drm: DrmNodes) -> tuple[CdiDeviceNode, ...]:
    """The nodes for a hook-free spec, with each by-path name as another node with the same numbers."""
    named = (_as_node(root.device_node(path), link) for link, path in drm.links)
    return (*(root.device_node(path) for path in drm.nodes), *named)


def drm_links(drm: DrmNodes) -> tuple[str, ...]:
    """``TARGET::LINK`` pairs for the create-symlinks hook: ``../card1::/dev/dri/by-path/pci-0000:07:00.0-card``."""
    return tuple(f"{posixpath.relpath(path, posixpath.dirname(link))}::{link}" for link, path in drm.links)


def _as_node(node: CdiDeviceNode, name: str) -> CdiDeviceNode:
    return msgspec.structs.replace(node, path=name, host_path=node.host_path or node.path)


def _named(names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in names:
        for pattern, ending in _KINDS:
            if pattern.fullmatch(name):
                yield name, ending
