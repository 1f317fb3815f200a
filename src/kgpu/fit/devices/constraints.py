"""Constraints across the devices of one claim: equal or distinct values of an attribute, as devices come and go.

They decide as kube-scheduler's do, its weak spot with ``distinctAttribute`` included: of each request it remembers one
value only, that of the device added last.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from kgpu.fit.devices.model import AttributeValue, ConstraintView, DeviceKey, SliceDevice


class DeviceConstraint(Protocol):
    def add(self, request: str, choice: str, device: SliceDevice, key: DeviceKey) -> bool:
        """Whether the device may join; if so it has joined."""
        ...

    def remove(self, request: str, choice: str) -> None:
        """Take back the last ``add`` that succeeded for the request."""
        ...

    def state(self) -> Hashable:
        """All that the answers for further devices depend on."""
        ...


def attribute(device: SliceDevice, driver: str, name: str) -> AttributeValue | None:
    """An attribute by its full name; what a driver names without a domain belongs to the driver's."""
    found = device.attributes.get(name)
    domain, slash, identifier = name.partition("/")
    if found is None and slash and domain == driver:
        return device.attributes.get(identifier)
    return found


class _Constraint:
    def __init__(self, requests: frozenset[str], name: str) -> None:
        self.requests = requests
        self.name = name
        self.members = 0

    def concerns(self, request: str, choice: str) -> bool:
        return (
            not self.requests or request in self.requests or (choice != "" and f"{request}/{choice}" in self.requests)
        )


class SameValue(_Constraint):
    """``matchAttribute``: the first device decides the value."""

    def __init__(self, requests: frozenset[str], name: str) -> None:
        super().__init__(requests, name)
        self._value: AttributeValue | None = None

    def add(self, request: str, choice: str, device: SliceDevice, key: DeviceKey) -> bool:
        if not self.concerns(request, choice):
            return True
        value = attribute(device, key.driver, self.name)
        if value is None:
            return False
        if self.members == 0:
            self._value = value
        elif not value.kind or value != self._value:
            return False
        self.members += 1
        return True

    def remove(self, request: str, choice: str) -> None:
        if self.concerns(request, choice):
            self.members -= 1

    def state(self) -> Hashable:
        return self.members, self._value if self.members else None


class DistinctValues(_Constraint):
    """``distinctAttribute``: no device has the value of another."""

    def __init__(self, requests: frozenset[str], name: str) -> None:
        super().__init__(requests, name)
        self._values: dict[str, AttributeValue] = {}

    def add(self, request: str, choice: str, device: SliceDevice, key: DeviceKey) -> bool:
        if not self.concerns(request, choice):
            return True
        value = attribute(device, key.driver, self.name)
        if value is None:
            return False
        if self.members and any(not value.kind or value == other for other in self._values.values()):
            return False
        self._values[request] = value
        self.members += 1
        return True

    def remove(self, request: str, choice: str) -> None:
        if self.concerns(request, choice):
            self._values.pop(request, None)
            self.members -= 1

    def state(self) -> Hashable:
        return self.members, frozenset(self._values.items())


def constraint(view: ConstraintView, *, newest: bool) -> DeviceConstraint | None:
    """None for a kind that the scheduler does not know; ``distinctAttribute`` only its newest allocator knows."""
    if view.match is not None:
        return SameValue(view.requests, view.match)
    if view.distinct is not None and newest:
        return DistinctValues(view.requests, view.distinct)
    return None
