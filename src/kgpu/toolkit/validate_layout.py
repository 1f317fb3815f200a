"""Holds the GPUs and MIG slices that CDI specs name against those that the node has now. Pure.

A spec outlives what it was made for: slices are made anew under the same index with other capability nodes, a GPU is
put in MIG mode or taken away. Only devices with nodes of GPUs are looked at; those of the management kind show every
GPU, whatever its layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.formats.cdi import ALL_DEVICE, Spec, SpecDevice
from kgpu.formats.names import CDI_MANAGEMENT_KIND
from kgpu.host.driver.tegra import is_integrated_gpu
from kgpu.hw.port import Inventory
from kgpu.toolkit.flaws import AGAIN, Flaw, FlawSeverity
from kgpu.toolkit.specs import FoundSpec

_NODE: Final = re.compile(r"/dev/nvidia(?:\d+|-caps/nvidia-cap\d+)", re.ASCII)
_CAP: Final = "/dev/nvidia-caps/"
# Names that only the hardware gives; others may be anybody's.
_NAME: Final = re.compile(r"(?:gpu|mig)?\d+(?::\d+)?|(?:GPU|MIG)-.+", re.ASCII)

Nodes = frozenset[str]


@dataclass(slots=True)
class _Layout:
    """The node's devices: nodes by every name, the names of what containers can use, and GPUs in MIG mode."""

    nodes: dict[str, Nodes] = field(default_factory=dict)
    usable: dict[Nodes, str] = field(default_factory=dict)
    mig: set[Nodes] = field(default_factory=set)


def layout_flaws(specs: Sequence[FoundSpec], inventory: Inventory) -> Iterator[Flaw]:
    """Devices that are no longer what they were, and devices of the node that no spec has."""
    if any(is_integrated_gpu(gpu.name) for gpu in inventory.accelerators):
        return  # a board's own list says which nodes such a GPU has
    now = _layout_of(inventory)
    offered: set[Nodes] = set()
    first = ""
    for file in specs:
        if file.spec is None or file.ignored or file.spec.kind == CDI_MANAGEMENT_KIND:
            continue
        for device in file.spec.devices:
            nodes = _nodes(file.spec, device)
            if not nodes:
                continue
            first = first or file.path
            if device.name != ALL_DEVICE:
                offered.add(nodes)
                for how, what in _changed(device.name, nodes, now):
                    yield Flaw(severity=how, path=file.path, where=f"device {device.name}", what=what, remedy=AGAIN)
    if first:
        for nodes, name in now.usable.items():
            if nodes not in offered:
                yield Flaw(
                    severity=FlawSeverity.WARNING, path=first, where=name,
                    what="this node has it, but no spec does: no container can be given it", remedy=AGAIN,
                )  # fmt: skip


def _layout_of(inventory: Inventory) -> _Layout:
    now = _Layout()
    for gpu in inventory.accelerators:
        whole = frozenset(gpu.device_nodes)
        now.nodes |= dict.fromkeys((str(gpu.index), f"gpu{gpu.index}", gpu.uuid), whole)
        if gpu.mig_enabled:
            now.mig.add(whole)
        elif gpu.usable:
            now.usable[whole] = f"GPU {gpu.index} ({gpu.uuid})"
        for part in gpu.partitions:
            nodes = frozenset(part.device_nodes)
            now.nodes |= dict.fromkeys((part.index, f"mig{part.index}", part.uuid), nodes)
            if gpu.usable:
                now.usable[nodes] = f"MIG slice {part.index} ({part.uuid})"
    return now


def _nodes(spec: Spec, device: SpecDevice) -> Nodes:
    every = (*device.container_edits.device_nodes, *spec.container_edits.device_nodes)
    return frozenset(node.path for node in every if _NODE.fullmatch(node.path))


def _changed(name: str, nodes: Nodes, now: _Layout) -> Iterator[tuple[FlawSeverity, str]]:
    known: Mapping[str, Nodes] = now.nodes
    is_slice = any(path.startswith(_CAP) for path in nodes)
    if name in known and known[name] != nodes:
        is_now = ", ".join(sorted(known[name]))
        yield (
            FlawSeverity.ERROR,
            f"it brings {', '.join(sorted(nodes))}, but {name} is {is_now}: the layout has changed",
        )
    elif name not in known and is_slice and nodes not in known.values():
        yield FlawSeverity.ERROR, f"no MIG slice of this node has {', '.join(sorted(nodes))}: the layout has changed"
    elif name not in known and _NAME.fullmatch(name):
        yield FlawSeverity.ERROR, "this node has no such GPU or MIG slice any more"
    elif nodes in now.mig:
        yield FlawSeverity.WARNING, "the GPU is in MIG mode: programs that are given it whole can't compute on it"
