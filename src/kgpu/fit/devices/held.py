"""The devices that claims hold already, as the scheduler counts them, and who holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kgpu.base.quantity import Quantity
from kgpu.fit.devices.model import AllocationGates, DeviceKey, TakenDevice


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """``whole`` are held by one claim alone; ``consumed`` is what claims together take of shared ones."""

    whole: frozenset[DeviceKey] = frozenset()
    consumed: Mapping[DeviceKey, Mapping[str, Quantity]] = field(default_factory=dict)
    holders: Mapping[DeviceKey, tuple[str, ...]] = field(default_factory=dict)
    """The claims (``namespace/name``) by device."""

    @classmethod
    def of(cls, taken: Iterable[TakenDevice], gates: AllocationGates) -> HeldDevices:
        whole: set[DeviceKey] = set()
        consumed: dict[DeviceKey, dict[str, Quantity]] = {}
        holders: dict[DeviceKey, tuple[str, ...]] = {}
        for device in taken:
            holders[device.key] = (*holders.get(device.key, ()), device.claim)
            if not (gates.consumable_capacity and device.share_id):
                whole.add(device.key)
                continue
            if device.consumed is None:
                continue
            own = consumed.setdefault(device.key, {})
            for name, amount in device.consumed.items():
                own[name] = own[name] + amount if name in own else amount
        return cls(frozenset(whole), consumed, holders)
