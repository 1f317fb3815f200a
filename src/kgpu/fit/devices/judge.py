"""Who judges devices for claims in the doctor's picture of a cluster: the scheduler's allocator, with CEL.

Which gates the scheduler has nobody can see. The API server drops what it has no gate for, so that what slices hold
shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kgpu.fit.devices import read
from kgpu.fit.devices.fitter import AllocatingFitter
from kgpu.fit.devices.model import AllocationGates, DeviceSlice

_STEPS_ON_A_NODE: Final = 5000
_STEPS: Final = 20_000
"""Of the searches for one way of asking, on all nodes."""


def device_fitter(
    slices: Iterable[Mapping[str, Any]], classes: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]]
) -> AllocatingFitter | None:
    """None where CEL is not installed: then nothing is said of devices."""
    try:
        from kgpu.fit.devices.cel import CelSelectors
    except ImportError:
        return None
    pieces = [piece for piece in map(read.device_slice, slices) if piece is not None]
    rules = [read.class_rules(str(obj["metadata"]["name"]), obj.get("spec") or {}) for obj in classes]
    return AllocatingFitter(
        slices=pieces,
        classes=rules,
        taken=read.taken_devices(claims),
        selectors=CelSelectors(),
        gates=_gates(pieces),
        max_steps=_STEPS_ON_A_NODE,
        most=_STEPS,
    )


def _gates(slices: Iterable[DeviceSlice]) -> AllocationGates:
    devices = [device for piece in slices for device in piece.devices]
    return AllocationGates(
        device_taints=any(device.taints for device in devices),
        partitionable_devices=any(device.consumes for device in devices) or any(piece.counter_sets for piece in slices),
        consumable_capacity=any(device.shareable for device in devices),
    )
