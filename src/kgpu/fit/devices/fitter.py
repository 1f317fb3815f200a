"""The ``DeviceFitter`` of a snapshot: allocates the claims of a pod on one node after another, and explains.

For the slices, classes and held devices of one moment. Slices are taken in the order of their names: the scheduler's
own order is that of its cache, which nobody can know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kgpu.base.plain import mapping, text
from kgpu.fit.devices import read
from kgpu.fit.devices.allocate import DeviceAllocator, DeviceOutcome
from kgpu.fit.devices.explain import explain
from kgpu.fit.devices.held import HeldDevices
from kgpu.fit.devices.model import AllocationGates, ClaimDemand, ClassRules, DeviceSlice, TakenDevice
from kgpu.fit.devices.selector import SelectorEngine
from kgpu.fit.model import ClaimView, DeviceRefusal
from kgpu.fit.snapshot import NodeState


class AllocatingFitter:
    """Judges claims that are not allocated. ``selectors`` evaluates CEL (``kgpu.fit.devices.cel.CelSelectors``)."""

    def __init__(
        self,
        *,
        slices: Iterable[DeviceSlice],
        classes: Iterable[ClassRules],
        taken: Iterable[TakenDevice],
        selectors: SelectorEngine,
        gates: AllocationGates | None = None,
    ) -> None:
        gates = gates or AllocationGates()
        self.allocator = DeviceAllocator(
            slices=sorted(slices, key=lambda piece: piece.name),
            classes={rules.name: rules for rules in classes},
            held=HeldDevices.of(taken, gates),
            selectors=selectors,
            gates=gates,
        )

    @classmethod
    def of(
        cls, objects: Iterable[Mapping[str, Any]], *, selectors: SelectorEngine, gates: AllocationGates | None = None
    ) -> AllocatingFitter:
        """From API objects: ResourceSlices, DeviceClasses and ResourceClaims; others are passed over."""
        by_kind: dict[str, list[Mapping[str, Any]]] = {}
        for obj in objects:
            by_kind.setdefault(text(obj.get("kind")), []).append(obj)
        slices = map(read.device_slice, by_kind.get("ResourceSlice", ()))
        return cls(
            slices=[piece for piece in slices if piece is not None],
            classes=[
                read.class_rules(text(mapping(obj.get("metadata")).get("name")), mapping(obj.get("spec")))
                for obj in by_kind.get("DeviceClass", ())
            ],
            taken=read.taken_devices(by_kind.get("ResourceClaim", ())),
            selectors=selectors,
            gates=gates,
        )

    def refusal(self, claims: tuple[ClaimView, ...], node: NodeState) -> DeviceRefusal | None:
        """Why kube-scheduler does not allocate the claims on the node, in its words; None when it does."""
        outcome = self.allocate(claims, node)
        if outcome.allocations is not None:
            return None
        return DeviceRefusal(outcome.words, everywhere=bool(outcome.fault) and not outcome.on_node)

    def missing(self, claims: tuple[ClaimView, ...], node: NodeState) -> tuple[str, ...]:
        """Sentences about what the node lacks for the claims; empty when all can be allocated there together."""
        demands = tuple(map(_demand, claims))
        outcome = self.allocator.allocate(demands, node.name, node.labels)
        return explain(self.allocator, demands, node.name, node.labels, outcome)

    def allocate(self, claims: tuple[ClaimView, ...], node: NodeState) -> DeviceOutcome:
        """The devices themselves, for who binds the pod."""
        return self.allocator.allocate(tuple(map(_demand, claims)), node.name, node.labels)


def _demand(view: ClaimView) -> ClaimDemand:
    return read.claim_demand(view.namespace, view.name, view.spec, view.uid)
