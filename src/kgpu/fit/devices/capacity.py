"""Devices that several claims share by capacity: what a claim takes of each, and whether that is still there.

Rules: KEP-5075 as kube-scheduler 1.35 has it. A request is rounded up as the device's policy says; without one the
claim takes what it asks for, and all where it asks for nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeAlias

from kgpu.base.quantity import Format, Quantity
from kgpu.fit.devices.model import CapacityPolicy, CapacityValue, DeviceKey

Amounts: TypeAlias = Mapping[str, Quantity]


def consumed(asked: Amounts | None, capacity: Mapping[str, CapacityValue]) -> dict[str, Quantity]:
    """What a claim takes of a device that asks for ``asked``."""
    return {name: _consumed((asked or {}).get(name), value) for name, value in capacity.items()}


def enough(asked: Amounts | None, capacity: Mapping[str, CapacityValue], taken: Amounts, taking: Amounts) -> bool:
    """Whether the device still has it, with ``taken`` by other claims and ``taking`` in the same attempt."""
    if any(name not in capacity for name in asked or {}):
        return False
    for name, value in capacity.items():
        amount = _consumed((asked or {}).get(name), value)
        if _breaks(amount, value.policy):
            return False
        total = sum(amounts[name].nanos for amounts in (taken, taking) if name in amounts)
        if amount.nanos + total > value.value.nanos:
            return False
    return True


def _consumed(asked: Quantity | None, value: CapacityValue) -> Quantity:
    policy = value.policy
    if asked is None:
        return policy.default if policy is not None and policy.default is not None else value.value
    if policy is None:
        return asked
    if policy.ranged and policy.minimum is not None:
        return _in_range(asked, policy.minimum, policy.step)
    return next((valid for valid in policy.values or () if asked <= valid), asked)


def _in_range(asked: Quantity, minimum: Quantity, step: Quantity | None) -> Quantity:
    if asked < minimum:
        return minimum
    if step is None or step.value == 0:
        return asked
    steps = -(-(asked.value - minimum.value) // step.value)
    return Quantity.of(minimum.value + step.value * steps, Format.BINARY)


def _breaks(amount: Quantity, policy: CapacityPolicy | None) -> bool:
    if policy is None or amount == policy.default:
        return False
    if policy.ranged:
        if policy.maximum is not None and amount > policy.maximum:
            return True
        least = policy.minimum.value if policy.minimum is not None else 0
        return policy.step is not None and policy.step.value != 0 and (amount.value - least) % policy.step.value != 0
    return bool(policy.values) and amount not in (policy.values or ())


class SharedCapacity:
    """What the claims of one attempt take of shared devices, beside what other claims hold."""

    def __init__(self, held: Mapping[DeviceKey, Amounts]) -> None:
        self._held = held
        self._taking: dict[DeviceKey, dict[str, Quantity]] = {}

    def in_use(self, key: DeviceKey) -> bool:
        return key in self._held or key in self._taking

    def enough(self, key: DeviceKey, asked: Amounts | None, capacity: Mapping[str, CapacityValue]) -> bool:
        return enough(asked, capacity, self._held.get(key, {}), self._taking.get(key, {}))

    def take(self, key: DeviceKey, amounts: Amounts) -> None:
        own = self._taking.setdefault(key, {})
        for name, amount in amounts.items():
            own[name] = own[name] + amount if name in own else amount

    def give_back(self, key: DeviceKey, amounts: Amounts) -> None:
        own = self._taking.get(key)
        if own is None:
            return
        for name, amount in amounts.items():
            if name in own:
                own[name] = own[name] - amount
        if not any(own.values()):
            del self._taking[key]

    def state(self) -> Hashable:
        """All that further answers depend on."""
        return frozenset((key, frozenset(amounts.items())) for key, amounts in self._taking.items())
