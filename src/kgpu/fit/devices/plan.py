"""A claim's requests made ready for the search: checked as kube-scheduler checks them, with their classes and counts.

What is wrong with a claim in itself ends the attempt before any device is picked: ``ClaimFaultError``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kgpu.fit.devices.constraints import DeviceConstraint, constraint
from kgpu.fit.devices.model import (
    ALL,
    EXACT_COUNT,
    MAX_RESULTS,
    AllocationGates,
    ClaimDemand,
    ClassRules,
    DeviceAsk,
    DeviceKey,
    DeviceSlice,
    RequestView,
    SliceDevice,
)
from kgpu.fit.devices.pools import GatheredPool


class ClaimFaultError(Exception):
    """Why nothing can be allocated whatever the devices are; the scheduler then tries no further node.

    ``device`` is the one whose selector failed, where that is why.
    """

    def __init__(self, message: str, device: DeviceKey | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.device = device


class Candidate(NamedTuple):
    """A device where it stands."""

    key: DeviceKey
    device: SliceDevice
    piece: DeviceSlice
    pool: GatheredPool


class RequestPlace(NamedTuple):
    """A request of a claim, or one choice of it, by position."""

    claim: int
    request: int
    choice: int = 0


@dataclass(slots=True)
class RequestPlan:
    """``parent`` is the request that ``ask`` is a choice of. ``everything`` are the devices of mode All."""

    ask: DeviceAsk
    parent: str
    rules: ClassRules
    count: int = 0
    everything: Sequence[Candidate] = ()
    selected: int = 0
    """The choice that was taken, kept with the first one."""

    @property
    def base_name(self) -> str:
        return self.parent or self.ask.name

    @property
    def choice_name(self) -> str:
        return self.ask.name if self.parent else ""

    @property
    def full_name(self) -> str:
        return f"{self.parent}/{self.ask.name}" if self.parent else self.ask.name


def checked_plan(
    claim: ClaimDemand, ask: DeviceAsk, parent: str, classes: Mapping[str, ClassRules], gates: AllocationGates
) -> RequestPlan:
    """Raises ClaimFaultError. The devices of mode All are still to be found."""
    where = f"claim {claim}, request {ask.name}"
    if None in ask.selectors:
        raise ClaimFaultError(f"{where}: a selector is of a kind that is not known; only CEL is")
    if ask.admin is not None and not gates.admin_access:
        raise ClaimFaultError(f"{where}: asks for admin access, and the gate DRAAdminAccess is off")
    if not ask.device_class:
        raise ClaimFaultError(f"{where}: names no device class")
    rules = classes.get(ask.device_class)
    if rules is None:
        raise ClaimFaultError(f"{where}: device class {ask.device_class} does not exist")
    if ask.mode not in (EXACT_COUNT, ALL):
        raise ClaimFaultError(f"{where}: allocation mode {ask.mode} is not known")
    return RequestPlan(ask, parent, rules, ask.count if ask.mode == EXACT_COUNT else 0)


def check_gates(claim: ClaimDemand, request: RequestView, gates: AllocationGates) -> None:
    """Raises ClaimFaultError for what the request wants and the scheduler has switched off."""
    if request.choices and not gates.prioritized_list:
        raise ClaimFaultError(
            f"claim {claim}, request {request.name}: has choices, and the gate DRAPrioritizedList is off"
        )
    if gates.consumable_capacity or not gates.newest:
        return
    asks = (request.exactly, *request.choices)
    if any(ask is not None and ask.capacity is not None for ask in asks):
        raise ClaimFaultError(
            f"claim {claim}, request {request.name}: wants capacity, and DRAConsumableCapacity is off"
        )


def check_size(claim: ClaimDemand, least: int) -> None:
    """``least`` devices must fit into the claim's status."""
    if least > MAX_RESULTS:
        raise ClaimFaultError(f"claim {claim}: asks for {least} devices, and one claim can have {MAX_RESULTS} at most")


def made_constraints(claim: ClaimDemand, gates: AllocationGates) -> list[DeviceConstraint]:
    """Raises ClaimFaultError for a constraint of a kind that is not known."""
    found: list[DeviceConstraint] = []
    for position, view in enumerate(claim.constraints):
        made = constraint(view, newest=gates.newest)
        if made is None:
            raise ClaimFaultError(f"claim {claim}: constraint {position} is of a kind that the scheduler does not know")
        found.append(made)
    return found
