"""What a search has taken at one moment: devices, counters and capacity, with the constraints of each claim.

A device is taken and given back in the scheduler's order of steps, as what a refusal leaves behind depends on it.
"""

from __future__ import annotations

import enum
from typing import Final

from kgpu.fit.devices.capacity import SharedCapacity, consumed
from kgpu.fit.devices.constraints import DeviceConstraint
from kgpu.fit.devices.counters import CounterBooks
from kgpu.fit.devices.held import HeldDevices
from kgpu.fit.devices.model import AllocationGates, DeviceKey
from kgpu.fit.devices.plan import Candidate, RequestPlan
from kgpu.fit.devices.result import PickedDevice
from kgpu.fit.selectors import tolerated


class DeviceRefused(enum.Enum):
    """The device can't be had, and not for a constraint."""

    REFUSED = "refused"


REFUSED: Final = DeviceRefused.REFUSED


class DeviceLedger:
    """``constraints`` and ``picked`` are by claim; ``allocating`` has the claims of the attempt by device."""

    def __init__(self, held: HeldDevices, gates: AllocationGates, claims: int) -> None:
        self.held, self.gates = held, gates
        self.constraints: list[list[DeviceConstraint]] = []
        self.picked: list[list[PickedDevice]] = [[] for _ in range(claims)]
        self.allocating: dict[DeviceKey, set[int]] = {}
        self.capacity = SharedCapacity(held.consumed)
        self.counters = CounterBooks(held.whole)

    def free(self, claim: int, ready: RequestPlan, key: DeviceKey) -> bool:
        """Admin access needs only that the claim has not got the device yet."""
        if ready.ask.admin:
            return claim not in self.allocating.get(key, ())
        return key not in self.held.whole and not self.allocating.get(key)

    def shared(self, candidate: Candidate) -> bool:
        return self.gates.consumable_capacity and candidate.device.shareable

    def has_capacity(self, ready: RequestPlan, candidate: Candidate) -> bool:
        if not self.gates.consumable_capacity:
            return True
        return self.capacity.enough(candidate.key, ready.ask.capacity, candidate.device.capacity)

    def take(self, claim: int, ready: RequestPlan, candidate: Candidate) -> DeviceRefused | int | None:
        """Take the device. None when it is taken; the position of the constraint that forbids it."""
        key, device, _, pool = candidate
        shared = self.shared(candidate)
        if (not shared or not ready.ask.admin) and not self.free(claim, ready, key):
            return REFUSED
        if device.consumes:
            if not self.gates.partitionable_devices:
                return REFUSED
            if not (shared and self.capacity.in_use(key)) and not self.counters.take(device, pool):
                return REFUSED
        # A refusal from here on leaves the counters taken, as in the scheduler.
        if self.gates.device_taints and _untolerated(ready, candidate):
            return REFUSED
        forbidding = self._forbidding(claim, ready, candidate)
        if forbidding is not None:
            return forbidding
        taking = self.allocating.setdefault(key, set())
        if not shared:
            taking.add(claim)
        if not self.has_capacity(ready, candidate):
            return REFUSED
        amounts = consumed(ready.ask.capacity, device.capacity) if shared else None
        if amounts is not None:
            self.capacity.take(key, amounts)
        self.picked[claim].append(PickedDevice(ready.full_name, ready.ask, candidate, shared, amounts or None))
        return None

    def _forbidding(self, claim: int, ready: RequestPlan, candidate: Candidate) -> int | None:
        """Which constraint refuses the device; None when it has joined all."""
        constraints = self.constraints[claim]
        for position, constraint in enumerate(constraints):
            if not constraint.add(ready.base_name, ready.choice_name, candidate.device, candidate.key):
                for earlier in constraints[:position]:
                    earlier.remove(ready.base_name, ready.choice_name)
                return position
        return None

    def give_back(self, claim: int, ready: RequestPlan, candidate: Candidate) -> None:
        """Undo the last ``take`` that succeeded."""
        key, device, _, pool = candidate
        picked = self.picked[claim].pop()
        for constraint in self.constraints[claim]:
            constraint.remove(ready.base_name, ready.choice_name)
        self.allocating[key].discard(claim)
        if picked.shared:
            if picked.consumed:
                self.capacity.give_back(key, picked.consumed)
        elif self.gates.partitionable_devices and device.consumes:
            self.counters.give_back(device, pool)


def _untolerated(ready: RequestPlan, candidate: Candidate) -> bool:
    taints = (taint for taint in candidate.device.taints if taint.hard)
    return any(not tolerated(taint, ready.ask.tolerations) for taint in taints)
