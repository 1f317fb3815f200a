"""What the scheduler knows of devices: slices, classes, and what claims hold or are about to hold.

Follows API objects one by one; the allocator over them is made anew when it is asked after a change. No device is given
twice: what ``reserve`` decides counts until the claim is known to have it, or ``release`` takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kgpu.base.plain import mapping, text
from kgpu.fit import PodView
from kgpu.fit.devices import read
from kgpu.fit.devices.fitter import AllocatingFitter
from kgpu.fit.devices.model import AllocationGates, ClassRules, DeviceSlice, TaintRule, TakenDevice
from kgpu.fit.devices.result import AllocatedClaim
from kgpu.fit.devices.selector import SelectorEngine
from kgpu.fit.extended import ExtendedClaim, extended_ask
from kgpu.fit.model import ClaimView, DeviceRefusal
from kgpu.fit.snapshot import ClusterSnapshot, NodeState
from kgpu.formats.names import EXTENDED_CLAIM_ANNOTATION
from kgpu.kube.port import Change, Object, name_of, namespace_of

Key = TypeVar("Key")
Value = TypeVar("Value")
GATES: Final = AllocationGates(
    device_taints=True, partitionable_devices=True, consumable_capacity=True, binding_conditions=True
)
"""As the API has them (``types/validate``). DRAExtendedResource is on, too."""
_STEPS_ON_A_NODE: Final = 2000
_STEPS: Final = 6000
"""Of the search for one pod's devices, some 0.2 ms each, while nobody else is served."""


@dataclass(frozen=True, slots=True)
class ClaimGrant:
    """A claim that a pod is to have on its node.

    ``allocation`` is what it gets now, None when it has its devices. A claim for ``extended`` resources is still to be
    made.
    """

    claim: ClaimView
    allocation: AllocatedClaim | None = None
    extended: ExtendedClaim | None = None


@dataclass(slots=True)
class SchedulerDevices:
    """A ``DeviceFitter`` that follows the cluster."""

    snapshot: ClusterSnapshot
    engine: Callable[[], SelectorEngine]
    """Makes what evaluates selectors, at the first question."""
    _slices: dict[str, DeviceSlice] = field(default_factory=dict)
    _classes: dict[str, ClassRules] = field(default_factory=dict)
    _rules: dict[str, TaintRule] = field(default_factory=dict)
    _taken: dict[tuple[str, str], tuple[TakenDevice, ...]] = field(default_factory=dict)
    _granted: dict[str, tuple[TakenDevice, ...]] = field(default_factory=dict)
    _selectors: SelectorEngine | None = None
    _fitter: AllocatingFitter | None = None

    def follow(self, change: Change, obj: Object) -> None:
        """Take in a ResourceSlice, DeviceClass, DeviceTaintRule or ResourceClaim."""
        kind, name = obj.get("kind"), name_of(obj)
        if kind == "ResourceSlice":
            _keep(self._slices, name, None if change is Change.DELETED else read.device_slice(obj))
        elif kind == "DeviceClass":
            rules = read.class_rules(name, mapping(obj.get("spec")))
            _keep(self._classes, name, None if change is Change.DELETED else rules)
        elif kind == "DeviceTaintRule":
            _keep(self._rules, name, None if change is Change.DELETED else read.taint_rule(obj))
        else:
            self._follow_claim(change, obj)
            return
        self._fitter = None

    def _follow_claim(self, change: Change, obj: Object) -> None:
        key = namespace_of(obj), name_of(obj)
        taken = () if change is Change.DELETED else read.taken_devices((obj,))
        if change is Change.DELETED or mapping(obj.get("status")).get("allocation") is not None:
            self.release(text(mapping(obj.get("metadata")).get("uid")))
        if self._taken.get(key, ()) != taken:
            _keep(self._taken, key, taken or None)
            self._fitter = None

    def refusal(self, claims: tuple[ClaimView, ...], node: NodeState) -> DeviceRefusal | None:
        return self._now().refusal(claims, node)

    def preference(self, claims: tuple[ClaimView, ...], node: NodeState) -> int:
        return self._now().preference(claims, node)

    def missing(self, claims: tuple[ClaimView, ...], node: NodeState) -> tuple[str, ...]:
        return self._now().missing(claims, node)

    def reserve(self, pod: PodView, node: NodeState) -> tuple[ClaimGrant, ...] | None:
        """What the pod's claims get on the node that was chosen for it, None where they can't have it any more."""
        claims = self.snapshot.shelf.claims
        mine = [claims.get((pod.namespace, entry.claim)) for entry in pod.claims if entry.claim]
        known = [claim for claim in mine if claim is not None]
        if len(known) < len(mine):
            return None
        ask = extended_ask(pod, self.snapshot)
        extended = ask.on(node) if ask is not None else None
        known += [extended.view] if extended is not None else []
        due = tuple(claim for claim in known if not claim.allocated)
        found = self._now().allocate(due, node).allocations if due else ()
        if found is None:
            return None
        allocations = dict(zip((claim.uid for claim in due), found, strict=True))
        for uid, allocation in allocations.items():
            self._granted[uid] = allocation.taken()
            self.snapshot.in_flight.add(uid)
        if allocations:
            self._fitter = None
        return tuple(
            ClaimGrant(
                claim,
                allocations.get(claim.uid),
                extended if extended is not None and claim is extended.view else None,
            )
            for claim in known
        )

    def release(self, uid: str) -> None:
        """The claim has its devices by what the API says, or does not get them after all."""
        self.snapshot.in_flight.discard(uid)
        if self._granted.pop(uid, None) is not None:
            self._fitter = None

    def _now(self) -> AllocatingFitter:
        if self._selectors is None:
            self._selectors = self.engine()
        if self._fitter is None:
            self._fitter = AllocatingFitter(
                slices=self._slices.values(),
                classes=self._classes.values(),
                taken=[device for held in (self._taken, self._granted) for some in held.values() for device in some],
                selectors=self._selectors,
                gates=GATES,
                rules=self._rules.values(),
                max_steps=_STEPS_ON_A_NODE,
                most=_STEPS,
            )
        return self._fitter


def _keep(table: dict[Key, Value], key: Key, value: Value | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def cel() -> SelectorEngine:
    """CEL; loaded when the first claim is to be allocated."""
    from kgpu.fit.devices.cel import CelSelectors

    return CelSelectors()


def claim_status(
    grant: ClaimGrant, known: Mapping[str, Any], pod: PodView, new_share_id: Callable[[], str], at: str
) -> Object:
    """What changes in the claim's status, which is ``known`` now: the pod uses it, and it has what it is granted.

    ``at``: the time, from which the wait for binding conditions counts.
    """
    users = known.get("reservedFor") or ()
    status: Object = {"reservedFor": [*users, {"resource": "pods", "name": pod.name, "uid": pod.uid}]}
    if grant.allocation is not None:
        status["allocation"] = {**grant.allocation.to_status(new_share_id), "allocationTimestamp": at}
    return status


def claim_of_extended(extended: ExtendedClaim, pod: PodView) -> Object:
    """The claim to create for a pod's extended resources."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
    metadata = {
        "generateName": f"{pod.name}-extended-resources-",
        "namespace": pod.namespace,
        "ownerReferences": [owner],
        "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
    }
    return {"metadata": metadata, "spec": {"devices": {"requests": list(extended.requests)}}}
