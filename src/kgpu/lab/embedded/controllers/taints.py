"""Taints and tolerations of plain objects, for the controllers; the rules are ``kgpu.fit``'s. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kgpu.fit.selectors import PodToleration, Taint
from kgpu.formats import names
from kgpu.kube.port import Object

NOT_READY: Final = names.TAINT_NOT_READY
UNREACHABLE: Final = names.TAINT_UNREACHABLE
UNSCHEDULABLE: Final = names.TAINT_UNSCHEDULABLE
MEMORY_PRESSURE: Final = names.TAINT_MEMORY_PRESSURE
DISK_PRESSURE: Final = names.TAINT_DISK_PRESSURE
PID_PRESSURE: Final = names.TAINT_PID_PRESSURE
NETWORK_UNAVAILABLE: Final = names.TAINT_NETWORK_UNAVAILABLE
OUT_OF_SERVICE: Final = names.TAINT_OUT_OF_SERVICE


def taints_of(node: Object) -> Sequence[Object]:
    return (node.get("spec") or {}).get("taints") or ()


def taint(obj: Object) -> Taint:
    return Taint(*(str(obj.get(key) or "") for key in ("key", "value", "effect")))


def toleration(obj: Object) -> PodToleration:
    return PodToleration(*(str(obj.get(key) or "") for key in ("key", "operator", "value", "effect")))


def stays_for(taints: Sequence[Object], tolerations: Sequence[Object]) -> float | None:
    """Seconds that a pod may stay with these NoExecute taints; 0 for not at all, None for ever.

    Of each taint the first toleration that matches counts, and of those the shortest time (taint-eviction's rule).
    """
    known = [(toleration(entry), entry.get("tolerationSeconds")) for entry in tolerations]
    shortest: float | None = None
    for node_taint in map(taint, taints):
        match = next((seconds for tolerated, seconds in known if tolerated.tolerates(node_taint)), 0)
        if match is not None:
            shortest = max(0.0, float(match)) if shortest is None else min(shortest, max(0.0, float(match)))
    return shortest
