"""What a claim gets: its devices, settings for them, and from which nodes they can be used; as the API stores it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.plain import items, mapping
from kgpu.base.quantity import Quantity
from kgpu.fit.devices.model import AllocationGates, ClaimDemand, DeviceAsk, TakenDevice
from kgpu.fit.devices.plan import Candidate, RequestPlan
from kgpu.fit.selectors import NAME_FIELD

Json = dict[str, Any]
_IN_FLIGHT: Final = "in flight"


@dataclass(frozen=True, slots=True)
class PickedDevice:
    """A device of a claim. ``request`` is the full name: with the choice, where it is one.

    ``consumed`` is what is taken of a ``shared`` device.
    """

    request: str
    ask: DeviceAsk
    candidate: Candidate
    shared: bool = False
    consumed: Mapping[str, Quantity] | None = None

    def to_status(self, gates: AllocationGates, new_share_id: Callable[[], str]) -> Json:
        key = self.candidate.key
        found: Json = {"request": self.request, "driver": key.driver, "pool": key.pool, "device": key.device}
        if self.ask.admin:
            found["adminAccess"] = True
        if self.ask.raw_tolerations and not gates.oldest:
            found["tolerations"] = [copy.deepcopy(dict(toleration)) for toleration in self.ask.raw_tolerations]
        if gates.binding_conditions:
            device = self.candidate.device
            found |= {"bindingConditions": list(device.binding_conditions)} if device.binding_conditions else {}
            found |= {"bindingFailureConditions": list(device.binding_failures)} if device.binding_failures else {}
        if self.shared:
            found["shareID"] = new_share_id()
        if self.consumed:
            found["consumedCapacity"] = {name: str(amount) for name, amount in self.consumed.items()}
        return found


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """``node_selector`` is None where the devices can be used from every node."""

    claim: ClaimDemand
    devices: tuple[PickedDevice, ...]
    config: tuple[Json, ...]
    node_selector: Json | None
    gates: AllocationGates

    def taken(self) -> tuple[TakenDevice, ...]:
        """What the claim holds from now on, before the API server knows of it."""
        return tuple(
            TakenDevice(device.candidate.key, str(self.claim), _IN_FLIGHT if device.shared else "", device.consumed)
            for device in self.devices
            if not device.ask.admin
        )

    def to_status(self, new_share_id: Callable[[], str]) -> Json:
        """The claim's ``status.allocation``. ``new_share_id`` gives a fresh UID for each share of a shared device."""
        results = [device.to_status(self.gates, new_share_id) for device in self.devices]
        devices: Json = {"results": results} if results else {}
        if self.config:
            devices["config"] = copy.deepcopy(list(self.config))
        found: Json = {"devices": devices} if devices else {}
        if self.node_selector is not None:
            found["nodeSelector"] = copy.deepcopy(self.node_selector)
        return found


def allocated_claim(
    claim: ClaimDemand, plans: Sequence[RequestPlan], picked: Sequence[PickedDevice], node: str, gates: AllocationGates
) -> AllocatedClaim:
    """``plans`` are those of the claim's requests that were taken, in order."""
    config = (*_of_classes(plans), *_of_claim(claim, plans))
    return AllocatedClaim(claim, tuple(picked), config, node_selector(picked, node, gates), gates)


def _of_classes(plans: Sequence[RequestPlan]) -> Iterable[Json]:
    """Each class once, for all requests that use it."""
    by_class: dict[str, list[RequestPlan]] = {}
    for plan in plans:
        by_class.setdefault(plan.rules.name, []).append(plan)
    for users in by_class.values():
        names = [plan.full_name for plan in users]
        for config in users[0].rules.configs:
            yield {"source": "FromClass", "requests": names, **config.settings}


def _of_claim(claim: ClaimDemand, plans: Sequence[RequestPlan]) -> Iterable[Json]:
    """An entry for no request in particular once, others once for each request that they name."""
    for config in claim.configs:
        entry: Json = {"source": "FromClaim", **config.settings}
        if not config.requests:
            yield entry
            continue
        for plan in plans:
            if plan.base_name in config.requests or plan.full_name in config.requests:
                yield {**entry, "requests": list(config.requests)}


def node_selector(picked: Sequence[PickedDevice], node: str, gates: AllocationGates) -> Json | None:
    """From where all the devices can be used: one node where one of them is local to it, else what each asks for."""
    term: dict[str, list[Any]] = {"matchExpressions": [], "matchFields": []}
    for device in picked:
        found, piece = device.candidate.device, device.candidate.piece
        reach = found.reach if piece.per_device else piece.reach
        if reach.node_name is not None or (found.binds_to_node and gates.newest):
            only = {"key": NAME_FIELD, "operator": "In", "values": [node]}
            return {"nodeSelectorTerms": [{"matchFields": [only]}]}
        # The API allows one term here.
        for wanted in map(mapping, list(items(mapping(reach.selector).get("nodeSelectorTerms")))[:1]):
            for key, known in term.items():
                known.extend(row for row in items(wanted.get(key)) if not _among(row, known))
    kept = {key: rows for key, rows in term.items() if rows}
    return {"nodeSelectorTerms": [kept]} if kept else None


def _among(row: Any, known: list[Any]) -> bool:
    return any(_same(mapping(row), mapping(other)) for other in known)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if any(one.get(key) != other.get(key) for key in ("key", "operator")):
        return False
    return set(map(str, items(one.get("values")))) == set(map(str, items(other.get("values"))))
