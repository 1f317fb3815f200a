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

    ``words`` are the scheduler's; ``message`` says more where they say too little. ``device`` is the one whose selector
    failed, where that is why.
    """

    def __init__(self, words: str, device: DeviceKey | None = None, *, message: str = "") -> None:
        super().__init__(message or words)
        self.words = words
        self.message = message or words
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
        number = ask.selectors.index(None)
        raise ClaimFaultError(f"{where}, selector #{number}: CEL expression empty (unsupported selector type?)")
    if ask.admin is not None and not gates.admin_access:
        raise ClaimFaultError(f"{where}: admin access is requested, but the feature is disabled")
    if not ask.device_class:
        raise ClaimFaultError(f"{where}: missing device class name (unsupported request type?)")
    rules = classes.get(ask.device_class)
    if rules is None:
        lost = f'deviceclass.resource.k8s.io "{ask.device_class}" not found'
        raise ClaimFaultError(f"{where}: could not retrieve device class {ask.device_class}: {lost}")
    if ask.mode not in (EXACT_COUNT, ALL):
        raise ClaimFaultError(f"{where}: unsupported count mode {ask.mode}")
    return RequestPlan(ask, parent, rules, ask.count if ask.mode == EXACT_COUNT else 0)


def check_gates(claim: ClaimDemand, request: RequestView, gates: AllocationGates) -> None:
    """Raises ClaimFaultError for what the request wants and the scheduler has switched off."""
    if request.choices and not gates.prioritized_list:
        words = "has subrequests, but the DRAPrioritizedList feature is disabled"
        raise ClaimFaultError(f"claim {claim}, request {request.name}: {words}")
    if gates.consumable_capacity or not gates.newest:
        return
    asks = (request.exactly, *request.choices)
    wanting = next((ask for ask in asks if ask is not None and ask.capacity is not None), None)
    if wanting is not None:
        what = "request" if wanting is request.exactly else "subrequest"
        words = "has capacity requests, but the DRAConsumableCapacity feature is disabled"
        raise ClaimFaultError(f"claim {claim}, {what} {wanting.name}: {words}")


def check_size(claim: ClaimDemand, least: int) -> None:
    """``least`` devices must fit into the claim's status."""
    if least > MAX_RESULTS:
        words = f"number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}"
        raise ClaimFaultError(f"claim {claim}: {words}")


def made_constraints(claim: ClaimDemand, gates: AllocationGates) -> list[DeviceConstraint]:
    """Raises ClaimFaultError for a constraint of a kind that is not known."""
    found: list[DeviceConstraint] = []
    for position, view in enumerate(claim.constraints):
        made = constraint(view, newest=gates.newest)
        if made is None:
            words = "empty constraint (unsupported constraint type?)"
            raise ClaimFaultError(f"claim {claim}, constraint #{position}: {words}")
        found.append(made)
    return found
