"""Why claims can't be allocated on a node: for every device one reason, alike devices on one line.

Sentences for people; what they say is computed again from the slices, never read from another program's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kgpu.base.quantity import Quantity
from kgpu.fit.devices.allocate import DeviceAllocator, DeviceOutcome
from kgpu.fit.devices.capacity import consumed, enough
from kgpu.fit.devices.constraints import attribute
from kgpu.fit.devices.counters import Books, left_of
from kgpu.fit.devices.model import ALL, ClaimDemand, ConstraintView, DeviceAsk, PoolKey
from kgpu.fit.devices.plan import Candidate, ClaimFaultError, RequestPlace, RequestPlan
from kgpu.fit.devices.pools import GatheredPool, UnreadableSelectorError
from kgpu.fit.devices.search import DeviceSearch
from kgpu.fit.devices.selector import SelectorFault
from kgpu.fit.selectors import Labels, tolerated

_NAMED: Final = 3
"""So many devices of a group are named."""
_READ: Final = re.compile(r"device\.(attributes|capacity)\[[\"']([^\"']+)[\"']\]\.\??([A-Za-z_]\w*)")
FREE: Final = ""
OTHER_CLASS: Final = "other class"


def explain(
    allocator: DeviceAllocator, claims: Sequence[ClaimDemand], node: str, labels: Labels, outcome: DeviceOutcome
) -> tuple[str, ...]:
    """Sentences about what the node lacks; empty when the outcome has allocations."""
    if outcome.allocations is not None:
        return ()
    if outcome.unfinished:
        return (f"no answer: the search for devices was stopped after {outcome.steps} steps",)
    if outcome.fault and not outcome.on_node:
        return (outcome.fault,)
    search = allocator.search(claims, node, labels)
    search.prepare()
    return tuple(_Explanation(search).sentences())


def device_reasons(
    allocator: DeviceAllocator, claims: Sequence[ClaimDemand], node: str, labels: Labels
) -> dict[RequestPlace, tuple[tuple[Candidate, str], ...]]:
    """Of every request (or choice) each device that the node can use, with why it is not for it; "" when it is free.

    Empty where a claim or a slice itself is wrong.
    """
    try:
        search = allocator.search(claims, node, labels)
        search.prepare()
    except (ClaimFaultError, UnreadableSelectorError):
        return {}
    explanation = _Explanation(search)
    return {place: tuple(explanation.reasons(plan)) for place, plan in search.plans.items()}


class _Explanation:
    def __init__(self, search: DeviceSearch) -> None:
        self.search = search
        self.gates = search.gates
        self.held = search.around.held
        self._left: dict[PoolKey, Books] = {}

    def sentences(self) -> Iterator[str]:
        for pool in self.search.around.pools:
            if not pool.usable:
                problem = f"is incomplete: {pool.incomplete}" if pool.incomplete else f"is invalid: {pool.invalid}"
                yield f"pool {pool.key} {problem}"
        short = False
        for place, plan in self.search.plans.items():
            found = list(self.reasons(plan))
            if self._enough(plan, found):
                continue
            short = True
            yield from self._short(place, plan, found)
        if not short:
            yield from self._together()

    def _enough(self, plan: RequestPlan, found: Sequence[tuple[Candidate, str]]) -> bool:
        mine = [(candidate, reason) for candidate, reason in found if not reason.startswith(OTHER_CLASS)]
        if plan.ask.mode == ALL:
            wanted = {candidate.key for candidate in plan.everything}
            return bool(wanted) and all(not reason for candidate, reason in mine if candidate.key in wanted)
        free = [candidate for candidate, reason in mine if reason == FREE]
        return len(free) >= plan.ask.count or any(map(self.search.ledger.shared, free))

    def _short(self, place: RequestPlace, plan: RequestPlan, found: Sequence[tuple[Candidate, str]]) -> Iterator[str]:
        ask = plan.ask
        free = sum(reason == FREE for _, reason in found)
        wants = "all devices" if ask.mode == ALL else f"{ask.count} device{'s' * (ask.count > 1)}"
        head = f"claim {self.search.claims[place.claim].name}, request {plan.full_name}"
        groups: dict[str, list[str]] = {}
        for candidate, reason in found:
            groups.setdefault(reason, []).append(candidate.key.device)
        own = [(reason, names) for reason, names in groups.items() if reason and reason != OTHER_CLASS]
        total = len(found) - len(groups.get(OTHER_CLASS, ()))
        yield f"{head} wants {wants} of class {ask.device_class}: the node has {total}, free for it {free}"
        yield from (f"{head}: {listed(names)}: {reason}" for reason, names in own)

    def reasons(self, plan: RequestPlan) -> Iterator[tuple[Candidate, str]]:
        for candidate in self.search.candidates:
            yield candidate, self._reason(plan, candidate)

    def _reason(self, plan: RequestPlan, candidate: Candidate) -> str:
        return (
            self._of_class(plan, candidate)
            or self._of_reach(candidate)
            or self._of_selectors(plan, candidate)
            or self._of_holders(plan, candidate)
            or self._of_device(plan, candidate)
        )

    def _of_class(self, plan: RequestPlan, candidate: Candidate) -> str:
        for expression in plan.rules.selectors:
            verdict = self.search.around.selectors.evaluate(expression or "", candidate.key, candidate.device)
            if isinstance(verdict, SelectorFault):
                return f"the selector of class {plan.rules.name} fails: {verdict}"
            if not verdict:
                return OTHER_CLASS
        return ""

    def _of_reach(self, candidate: Candidate) -> str:
        around = self.search.around
        if candidate.piece.per_device and not candidate.device.reach.matches(around.node, around.labels):
            return "can't be used from this node"
        return ""

    def _of_selectors(self, plan: RequestPlan, candidate: Candidate) -> str:
        for expression in plan.ask.selectors:
            verdict = self.search.around.selectors.evaluate(expression or "", candidate.key, candidate.device)
            if isinstance(verdict, SelectorFault):
                return f"the selector fails: {verdict}"
            if not verdict:
                return _untrue(expression or "", candidate)
        return ""

    def _of_holders(self, plan: RequestPlan, candidate: Candidate) -> str:
        if plan.ask.admin or candidate.key not in self.held.whole:
            return ""
        return f"taken by claim {listed(self.held.holders.get(candidate.key, ('unknown',)), word='claims')}"

    def _of_device(self, plan: RequestPlan, candidate: Candidate) -> str:
        device, ask = candidate.device, plan.ask
        if device.binding_conditions and not self.gates.binding_conditions:
            return "has binding conditions, and the gate DRADeviceBindingConditions is off"
        if device.consumes and not self.gates.partitionable_devices:
            return "takes counters, and the gate DRAPartitionableDevices is off"
        bad = [taint for taint in device.taints if taint.hard and not tolerated(taint, ask.tolerations)]
        if bad and self.gates.device_taints:
            return f"taint {bad[0]} is not tolerated"
        return self._of_capacity(ask, candidate) or self._of_counters(candidate)

    def _of_capacity(self, ask: DeviceAsk, candidate: Candidate) -> str:
        capacity = candidate.device.capacity
        taken = self.held.consumed.get(candidate.key, {})
        if not self.gates.consumable_capacity or enough(ask.capacity, capacity, taken, {}):
            return ""
        unknown = [name for name in ask.capacity or {} if name not in capacity]
        if unknown:
            return f"has no capacity {unknown[0]}"
        wants = consumed(ask.capacity, capacity)
        parts = [
            f"{name} {value.value}, taken {taken.get(name, Quantity(0))}, wanted {wants[name]}"
            for name, value in capacity.items()
        ]
        return f"not enough capacity: {'; '.join(parts)}"

    def _of_counters(self, candidate: Candidate) -> str:
        left = self._left_of(candidate.pool)
        for use in candidate.device.consumes:
            for counter, amount in use.counters.items():
                have = left.get(use.counter_set, {}).get(counter, 0)
                if have < amount.nanos:
                    rest = Quantity(max(have, 0), amount.format)
                    by = listed(self._takers(candidate, use.counter_set), word="claims")
                    return f"counter {counter} of {use.counter_set}: {rest} left, {amount} wanted; taken by claim {by}"
        return ""

    def _left_of(self, pool: GatheredPool) -> Books:
        if pool.key not in self._left:
            self._left[pool.key] = left_of(pool, self.held.whole)
        return self._left[pool.key]

    def _takers(self, candidate: Candidate, counter_set: str) -> list[str]:
        pool = candidate.pool
        keys = (
            piece.device_key(device)
            for piece in (*pool.slices, *pool.others)
            for device in piece.devices
            if any(use.counter_set == counter_set for use in device.consumes)
        )
        return list(dict.fromkeys(claim for key in keys for claim in self.held.holders.get(key, ())))

    def _together(self) -> Iterator[str]:
        """Each request alone could be met."""
        said = False
        for position, claim in enumerate(self.search.claims):
            for constraint in claim.constraints:
                said = True
                yield self._constraint(position, claim, constraint)
        if self._keeps_counters():
            yield (
                "kube-scheduler counts what a device takes of shared counters even when it then refuses the device for "
                "its taint or a constraint: devices that share counters with such a one may be out of reach"
            )
        if len(self.search.plans) > 1:
            yield "each request alone could be met, but not all of them together"
        elif not said:
            yield "enough devices are free one by one, but they can't be had together"

    def _keeps_counters(self) -> bool:
        takers = [one.device for one in self.search.candidates if one.device.consumes]
        if not takers or not self.gates.partitionable_devices:
            return False
        tainted = self.gates.device_taints and any(taint.hard for device in takers for taint in device.taints)
        return tainted or any(claim.constraints for claim in self.search.claims)

    def _constraint(self, position: int, claim: ClaimDemand, constraint: ConstraintView) -> str:
        name = constraint.match or constraint.distinct or ""
        values: dict[str, set[str]] = {}
        for place, plan in self.search.plans.items():
            if place.claim != position or (constraint.requests and not _concerned(plan, constraint)):
                continue
            for candidate, reason in self.reasons(plan):
                if reason == FREE:
                    value = attribute(candidate.device, candidate.key.driver, name)
                    values.setdefault("not set" if value is None else str(value), set()).add(candidate.key.device)
        spread = "; ".join(f"{value}: {listed(sorted(names))}" for value, names in values.items())
        wish = "all devices with the same" if constraint.match else "devices with distinct"
        return f"claim {claim.name} wants {wish} {name}; free devices by its value: {spread or 'none'}"


def _concerned(plan: RequestPlan, constraint: ConstraintView) -> bool:
    return bool(constraint.requests & {plan.base_name, plan.full_name})


def _untrue(expression: str, candidate: Candidate) -> str:
    """That a selector is false, with what it reads of the device."""
    facts: dict[str, str] = {}
    for kind, domain, name in _READ.findall(expression):
        table = candidate.device.attributes if kind == "attributes" else candidate.device.capacity
        found = table.get(f"{domain}/{name}") or (table.get(name) if domain == candidate.key.driver else None)
        facts[name] = "not set" if found is None else str(getattr(found, "value", found))
    told = ", ".join(f"{name} is {value}" for name, value in facts.items())
    return f"selector {expression} is false" + (f": {told}" if told else "")


def listed(names: Iterable[str], *, word: str = "devices") -> str:
    """The first few names, and how many there are."""
    known = list(names)
    if len(known) <= _NAMED:
        return ", ".join(known) or "none"
    return f"{', '.join(known[:_NAMED])} and {len(known) - _NAMED} more {word}"
