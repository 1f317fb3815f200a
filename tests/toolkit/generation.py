"""Generating over trees and inventories that a test makes: one call, and looks at what came of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kgpu.formats.cdi import ContainerEdits, Spec
from kgpu.host.root import DriverRoot, Tree
from kgpu.hw.fake_reader import sample_inventory
from kgpu.hw.port import Inventory
from kgpu.toolkit.cdi_support import EngineSupport
from kgpu.toolkit.config import generate_config
from kgpu.toolkit.model import Generated
from kgpu.toolkit.run import generate


class Never:
    """Stands for hardware that must not be asked."""

    def __call__(self) -> Inventory:
        raise AssertionError("the hardware was asked")


def make(
    root: Path,
    *,
    inventory: Inventory | None = None,
    read: Any = None,
    engines: tuple[EngineSupport, ...] = (),
    host: Path | None = None,
    **options: Any,
) -> Generated:
    """What ``kgpu cdi generate`` makes of this root; mode nvml over the inventory unless told otherwise."""
    known = inventory or sample_inventory(1)
    config = generate_config(**{"strategies": ["index"], **options})
    config = replace(config, search=replace(config.search, sys=root / "sys"))
    tree = Tree.at(host or root, "/")
    return generate(read or (lambda: known), DriverRoot.at(root, dev=root), config, engines=engines, host=tree)


def names(spec: Spec) -> list[str]:
    return [device.name for device in spec.devices]


def edits(spec: Spec, name: str) -> ContainerEdits:
    (found,) = [device.container_edits for device in spec.devices if device.name == name]
    return found


def node_paths(found: ContainerEdits) -> list[str]:
    return [node.path for node in found.device_nodes]


def targets(found: ContainerEdits) -> dict[str, str]:
    """Container path to host path of every mount."""
    return {mount.container_path: mount.host_path for mount in found.mounts}


def hooks(found: ContainerEdits) -> list[list[str]]:
    """Arguments of every hook, without the program's name."""
    return [list(hook.args[1:]) for hook in found.hooks]
