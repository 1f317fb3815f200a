"""The ``DeviceFitter`` of a snapshot: allocates the claims of a pod on one node after another, and explains.

For the slices, classes and held devices of one moment. Slices are taken in the order of their names: the scheduler's
own order is that of its cache, which nobody can know.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from kgpu.base.plain import mapping, text
from kgpu.fit.devices import read
from kgpu.fit.devices.allocate import MAX_STEPS, DeviceAllocator, DeviceOutcome
from kgpu.fit.devices.explain import explain
from kgpu.fit.devices.held import HeldDevices
from kgpu.fit.devices.model import (
    MAX_CHOICES,
    AllocationGates,
    ClaimDemand,
    ClassRules,
    DeviceSlice,
    TaintRule,
    TakenDevice,
)
from kgpu.fit.devices.result import AllocatedClaim
from kgpu.fit.devices.selector import SelectorEngine
from kgpu.fit.model import ClaimView, DeviceRefusal
from kgpu.fit.selectors import Labels
from kgpu.fit.snapshot import NodeState


class AllocatingFitter:
    """Judges claims that are not allocated. ``selectors`` evaluates CEL (``kgpu.fit.devices.cel.CelSelectors``).

    A search on one node takes ``max_steps`` at most, those for the same claims on all nodes together ``most``: what is
    beyond is not known.
    """

    def __init__(
        self,
        *,
        slices: Iterable[DeviceSlice],
        classes: Iterable[ClassRules],
        taken: Iterable[TakenDevice],
        selectors: SelectorEngine,
        gates: AllocationGates | None = None,
        rules: Iterable[TaintRule] = (),
        max_steps: int = MAX_STEPS,
        most: int = sys.maxsize,
    ) -> None:
        gates = gates or AllocationGates()
        rules = sorted(rules, key=lambda rule: rule.name)
        self.allocator = DeviceAllocator(
            slices=[read.tainted(piece, rules) for piece in sorted(slices, key=lambda piece: piece.name)],
            classes={rules.name: rules for rules in classes},
            held=HeldDevices.of(taken, gates),
            selectors=selectors,
            gates=gates,
            max_steps=max_steps,
        )
        self._most = self._left = most
        self._asked: tuple[ClaimView, ...] = ()
        self._said: dict[str, tuple[Labels, DeviceOutcome]] = {}
        """By node, with the labels that it had."""

    @classmethod
    def of(
        cls, objects: Iterable[Mapping[str, Any]], *, selectors: SelectorEngine, gates: AllocationGates | None = None
    ) -> AllocatingFitter:
        """From API objects: ResourceSlices, DeviceClasses, ResourceClaims, DeviceTaintRules; others are passed over."""
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
            rules=filter(None, map(read.taint_rule, by_kind.get("DeviceTaintRule", ()))),
            selectors=selectors,
            gates=gates,
        )

    def refusal(self, claims: tuple[ClaimView, ...], node: NodeState) -> DeviceRefusal | None:
        """Why kube-scheduler does not allocate the claims on the node, in its words; None when it does."""
        outcome = self.allocate(claims, node)
        if outcome.allocations is not None:
            return None
        return DeviceRefusal(outcome.words, everywhere=bool(outcome.fault) and not outcome.on_node)

    def preference(self, claims: tuple[ClaimView, ...], node: NodeState) -> int:
        """Points for each request that chooses: the earlier in its list the choice that is taken, the more."""
        return sum(_points(found) for found in self.allocate(claims, node).allocations or ())

    def missing(self, claims: tuple[ClaimView, ...], node: NodeState) -> tuple[str, ...]:
        """Sentences about what the node lacks for the claims; empty when all can be allocated there together."""
        demands = tuple(map(_demand, claims))
        outcome = self.allocate(claims, node)
        return explain(self.allocator, demands, node.name, node.labels, outcome)

    def allocate(self, claims: tuple[ClaimView, ...], node: NodeState) -> DeviceOutcome:
        """The devices themselves, for who binds the pod. Asked again of the same claims it knows what it said."""
        if self._asked != claims:
            self._asked, self._left = claims, self._most
            self._said.clear()
        known = self._said.get(node.name)
        if known is None or known[0] is not node.labels:
            outcome = self.allocator.allocate(tuple(map(_demand, claims)), node.name, node.labels, self._left)
            self._left -= min(outcome.steps, self._left)
            known = self._said[node.name] = node.labels, outcome
        return known[1]


def _demand(view: ClaimView) -> ClaimDemand:
    return read.claim_demand(view.namespace, view.name, view.spec, view.uid)


def _points(found: AllocatedClaim) -> int:
    taken = {device.request for device in found.devices}
    return sum(
        MAX_CHOICES - position
        for request in found.claim.requests
        for position, choice in enumerate(request.choices)
        if f"{request.name}/{choice.name}" in taken
    )
