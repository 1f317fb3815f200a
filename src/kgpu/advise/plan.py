"""What each kind of GPU in a cluster can do: for every way to share, whether it is possible, and why or why not. Pure.

Isolation comes first, then what the hardware can, then how it is used (checklist row C24): a need has its ways in that
order (``kgpu.advise.ways``), and the first is chosen that this hardware and this cluster have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from kgpu.advise.model import DraService, GpuKind, ModelOnNode, SharingWay, WayChoice, WayHere
from kgpu.advise.stands import STANDS
from kgpu.advise.ways import SharingNeed
from kgpu.formats.mig_geometry import geometry_of

_EXTRAS: Final = ("+", "-")
"""Signs of profiles that differ from another one in their engines alone."""
INVALID: Final = "INVALID"
"""What labels have for the profile where the slices do not fit strategy single."""


def kinds(gpus: Iterable[ModelOnNode], dra: DraService) -> tuple[GpuKind, ...]:
    """The GPUs by what counts here, those on most nodes first; each with how every way stands there."""
    alike: dict[tuple[ModelOnNode, tuple[WayHere, ...]], list[str]] = {}
    for one in gpus:
        alike.setdefault((dataclasses.replace(one, node=""), ways_on(one, dra)), []).append(one.node)
    found = [
        GpuKind(nodes=tuple(sorted(nodes)), gpus=kind, ways=ways, profiles=profiles(kind.product))
        for (kind, ways), nodes in alike.items()
    ]
    return tuple(sorted(found, key=lambda kind: (-len(kind.nodes), kind.gpus.product, kind.nodes)))


def ways_on(gpus: ModelOnNode, dra: DraService) -> tuple[WayHere, ...]:
    """How every way stands on these GPUs."""
    found = ((way, STANDS[way](gpus, dra)) for way in SharingWay)
    return tuple(WayHere(way=way, state=state, why=why) for way, (state, why) in found)


def profiles(product: str) -> tuple[tuple[str, int], ...]:
    """The MIG profiles of a model, without those that differ in engines alone, each with the most on one GPU."""
    geometry = geometry_of(product)
    if geometry is None:
        return ()
    return tuple((row.name, row.count) for row in geometry.rows if not any(sign in row.name for sign in _EXTRAS))


def choices(need: SharingNeed, found: Sequence[GpuKind]) -> tuple[WayChoice, ...]:
    """Which way answers the need on each kind."""
    return tuple(_choice(need, kind) for kind in found)


def _choice(need: SharingNeed, kind: GpuKind) -> WayChoice:
    passed: list[WayHere] = []
    for way in need.ways:
        here = kind.of(way)
        if here.state.usable:
            return WayChoice(kind=kind, way=here, passed=tuple(passed))
        passed.append(here)
    return WayChoice(kind=kind, way=None, passed=tuple(passed))


def configured(gpus: ModelOnNode) -> str:
    """What is set up on these GPUs now, in one line; "" where nothing is known."""
    parts = [
        f"{row.resource} is shared by {row.way.words}" + (f", {row.replicas} each" if row.replicas else "")
        for row in gpus.shares
    ]
    if gpus.mig_strategy:
        parts.append(f"MIG strategy {gpus.mig_strategy}")
    if gpus.slices:
        parts.append("a MIG layout that does not fit" if gpus.slices == INVALID else f"slices of {gpus.slices}")
    if gpus.offered:
        parts.append("offers " + ", ".join(f"{count} {name}" for name, count in gpus.offered))
    return "; ".join(parts)
