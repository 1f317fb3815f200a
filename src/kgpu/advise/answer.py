"""What is answered to one question about sharing, and the same as JSON data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.advise.model import DraService, GpuKind, ModelOnNode, SharingWay, WayChoice, WayHere
from kgpu.advise.plan import choices, kinds
from kgpu.advise.ways import FACTS, NEEDS, SharingNeed
from kgpu.formats.support import dotted

JSON_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingAnswer:
    """``found`` are the kinds of GPUs, None where no cluster was looked at: ``why`` says so then. ``others`` is the
    number of nodes that are not known to have NVIDIA GPUs. ``table``: whether the question is about the ways at all.
    """

    need: SharingNeed | None = None
    found: tuple[GpuKind, ...] | None = None
    kubernetes: str = ""
    others: int = 0
    why: str = ""
    table: bool = True

    @property
    def choices(self) -> tuple[WayChoice, ...]:
        """What to take for the need on each kind; () where there is no need or no cluster."""
        return choices(self.need, self.found) if self.need is not None and self.found is not None else ()


def answer(
    gpus: Iterable[ModelOnNode], dra: DraService, *, nodes: Iterable[str], need: SharingNeed | None = None,
    table: bool = True,
) -> SharingAnswer:  # fmt: skip
    """What the cluster with these GPUs and ``nodes``, all of them, can do."""
    found = kinds(gpus, dra)
    known = {node for kind in found for node in kind.nodes}
    return SharingAnswer(
        need=need, found=found, kubernetes=dotted(dra.kubernetes), others=len(set(nodes) - known), table=table
    )


def as_data(one: SharingAnswer) -> dict[str, Any]:
    """All of it, the table too; ``cluster`` is null where none was looked at."""
    cluster = None
    if one.found is not None:
        cluster = {
            "kubernetes": one.kubernetes,
            "otherNodes": one.others,
            "kinds": [_kind(kind) for kind in one.found],
        }
    return {
        "version": JSON_VERSION,
        "ways": [{"way": str(way), "title": way.words} for way in SharingWay],
        "facts": [
            {"key": row.key, "title": row.title, **{str(way): row.of(way) for way in SharingWay},
             "sources": list(row.sources)}
            for row in FACTS
        ],
        "needs": [
            {"key": row.key, "title": row.title, "ways": list(map(str, row.ways)), "sources": list(row.sources)}
            for row in NEEDS
        ],
        "cluster": cluster,
        "notLookedAt": one.why or None,
        "advice": None if one.need is None else _advice(one.need, one.choices),
    }  # fmt: skip


def _kind(kind: GpuKind) -> dict[str, Any]:
    gpus = kind.gpus
    return {
        "product": gpus.product or None,
        "nodes": list(kind.nodes),
        # Under strategy single the label counts slices.
        "gpusPerNode": gpus.count or None if not gpus.slices else None,
        "computeCapability": dotted(gpus.compute) or None,
        "migCapable": gpus.mig_capable,
        "migStrategy": gpus.mig_strategy or None,
        "migProfiles": [{"profile": name, "most": most} for name, most in kind.profiles],
        "offered": dict(gpus.offered),
        "shared": [
            {"resource": row.resource, "way": str(row.way), "replicas": row.replicas or None} for row in gpus.shares
        ],
        "ways": [_way(row) for row in kind.ways],
    }


def _way(row: WayHere) -> dict[str, str]:
    return {"way": str(row.way), "state": str(row.state), "why": row.why}


def _advice(need: SharingNeed, chosen: Sequence[WayChoice]) -> dict[str, Any]:
    return {
        "need": need.key,
        "kinds": [
            {
                "product": one.kind.gpus.product or None,
                "nodes": list(one.kind.nodes),
                "take": None if one.way is None else _way(one.way),
                "passed": [_way(row) for row in one.passed],
            }
            for one in chosen
        ],
    }
