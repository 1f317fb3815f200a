"""The search for devices: claim after claim, request after request, device after device; the first solution counts.

What it decides in the same way as kube-scheduler, and where it may differ, is told in ``allocate``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kgpu.fit.devices import plan, pools
from kgpu.fit.devices.held import HeldDevices
from kgpu.fit.devices.ledger import DeviceLedger
from kgpu.fit.devices.model import ALL, MAX_RESULTS, AllocationGates, ClaimDemand, ClassRules, DeviceKey
from kgpu.fit.devices.plan import Candidate, ClaimFaultError, RequestPlace, RequestPlan
from kgpu.fit.devices.selector import SelectorEngine, SelectorFault
from kgpu.fit.devices.shortcuts import Shortcuts
from kgpu.fit.selectors import Labels


class TooManyDevicesError(Exception):
    """The claim's status would not hold the devices: other devices for the requests before can't help."""


class BoundMetError(Exception):
    """The search took more steps than it may."""


class DevicePlace(NamedTuple):
    """The device that is to be picked next. ``choosing`` while one choice of a request is being tried."""

    claim: int
    request: int = 0
    choice: int = 0
    device: int = 0
    choosing: bool = False

    @property
    def of_request(self) -> RequestPlace:
        return RequestPlace(self.claim, self.request, self.choice)


class Surroundings(NamedTuple):
    """What a search draws on."""

    pools: tuple[pools.GatheredPool, ...]
    classes: Mapping[str, ClassRules]
    held: HeldDevices
    selectors: SelectorEngine
    gates: AllocationGates
    node: str
    labels: Labels
    max_steps: int


class DeviceSearch:
    """One attempt, for one node."""

    def __init__(self, around: Surroundings, claims: Sequence[ClaimDemand]) -> None:
        self.around, self.claims, self.gates = around, claims, around.gates
        self.candidates = tuple(_candidates(around.pools))
        self.plans: dict[RequestPlace, RequestPlan] = {}
        self.ledger = DeviceLedger(around.held, around.gates, len(claims))
        self.steps = 0
        self._matches: dict[tuple[DeviceKey, RequestPlace], bool] = {}

    def prepare(self) -> None:
        """Raises ClaimFaultError for what is wrong with a claim."""
        for position, claim in enumerate(self.claims):
            least = sum(self._prepare_request(position, number) for number in range(len(claim.requests)))
            plan.check_size(claim, least)
            self.ledger.constraints.append(plan.made_constraints(claim, self.gates))
        self._matches.clear()

    def _prepare_request(self, position: int, number: int) -> int:
        """The least number of devices that the request takes."""
        claim = self.claims[position]
        request = claim.requests[number]
        plan.check_gates(claim, request, self.gates)
        if request.exactly is not None:
            place = RequestPlace(position, number)
            return self._planned(place, place)
        # The scheduler looks at a choice under the number of the one before, and remembers selectors' answers by it.
        return min(
            self._planned(RequestPlace(position, number, choice), RequestPlace(position, number, max(choice - 1, 0)))
            for choice in range(len(request.choices))
        )

    def _planned(self, place: RequestPlace, remembered: RequestPlace) -> int:
        claim = self.claims[place.claim]
        request = claim.requests[place.request]
        ask = request.exactly or request.choices[place.choice]
        ready = plan.checked_plan(claim, ask, "" if request.exactly else request.name, self.around.classes, self.gates)
        if ask.mode == ALL:
            ready.everything = list(self._everything(ready, remembered))
            ready.count = len(ready.everything)
        self.plans[place] = ready
        return ready.count

    def _everything(self, ready: RequestPlan, place: RequestPlace) -> Iterator[Candidate]:
        for pool in self.around.pools:
            if not pool.usable:
                asks = f"claim {self.claims[place.claim]}, request {ready.ask.name}: asks for all devices, "
                state = "being updated" if pool.incomplete else "invalid"
                raise ClaimFaultError(
                    f"{asks}but resource pool {pool.key} is currently {state}",
                    message=f"{asks}and pool {pool.key} is not whole: {pool.incomplete or pool.invalid}",
                )
            for candidate in _candidates((pool,)):
                if self.selectable(place, ready, candidate) and self.ledger.has_capacity(ready, candidate):
                    yield candidate

    def run(self) -> bool:
        """Whether devices were found for all claims. Raises ClaimFaultError, TooManyDevicesError, BoundMetError."""
        self._shortcuts = Shortcuts(self)
        return not self._shortcuts.hopeless() and self._next(DevicePlace(0))

    def taken_plans(self, claim: int) -> list[RequestPlan]:
        """The plans of a claim's requests; of choices the one that was taken."""
        first = [RequestPlace(claim, number) for number in range(len(self.claims[claim].requests))]
        return [self.plans[place._replace(choice=self.plans[place].selected)] for place in first]

    def _next(self, place: DevicePlace) -> bool:
        """Pick this device and all that come after it."""
        self.steps += 1
        if self.steps > self.around.max_steps:
            raise BoundMetError
        if place.claim >= len(self.claims):
            return True
        if place.request >= len(self.claims[place.claim].requests):
            return self._next_claim(place.claim + 1)
        ready = self.plans[place.of_request]
        if ready.parent and not place.choosing:
            return self._choices(place, ready)
        if ready.ask.mode == ALL and not ready.everything:
            return False
        if place.device >= ready.count:
            return self._next_request(place)
        if len(self.ledger.picked[place.claim]) + ready.count - place.device > MAX_RESULTS:
            raise TooManyDevicesError
        if ready.ask.mode == ALL:
            return self._all(place, ready)
        return self._one_of(place, ready)

    def _next_claim(self, claim: int) -> bool:
        try:
            return self._shortcuts.remembered(claim, 0, lambda: self._next(DevicePlace(claim)))
        except TooManyDevicesError:
            return False

    def _next_request(self, place: DevicePlace) -> bool:
        after = DevicePlace(place.claim, place.request + 1)
        return self._shortcuts.remembered(after.claim, after.request, lambda: self._next(after))

    def _choices(self, place: DevicePlace, first: RequestPlan) -> bool:
        all_too_many = True
        for choice in range(len(self.claims[place.claim].requests[place.request].choices)):
            try:
                done = self._next(place._replace(choice=choice, choosing=True))
            except TooManyDevicesError:
                continue
            all_too_many = False
            if done:
                first.selected = choice
                return True
        if all_too_many:
            raise TooManyDevicesError
        return False

    def _all(self, place: DevicePlace, ready: RequestPlan) -> bool:
        # The place that comes after has no choice, as in the scheduler.
        after = DevicePlace(place.claim, place.request, 0, place.device + 1, place.choosing)
        candidate = ready.everything[place.device]
        return self._must_take(place, ready, candidate) and self._goes_on(after, place, candidate)

    def _must_take(self, place: DevicePlace, ready: RequestPlan, candidate: Candidate) -> bool:
        """Raises ClaimFaultError where a constraint forbids it: no other node would do."""
        refused = self.ledger.take(place.claim, ready, candidate)
        if isinstance(refused, int):
            asks = f"claim {self.claims[place.claim]}, request {ready.ask.name}"
            raise ClaimFaultError(
                f"{asks}: cannot add device {candidate.key} because a claim constraint would not be satisfied",
                candidate.key,
                message=f"{asks}: asks for all devices, and constraint {refused} forbids {candidate.key}",
            )
        return refused is None

    def _one_of(self, place: DevicePlace, ready: RequestPlan) -> bool:
        after = place._replace(device=place.device + 1)
        start = self._shortcuts.start(place, ready)
        if start is None:
            return False
        for position in range(start, len(self.candidates)):
            candidate = self.candidates[position]
            if not self.ledger.free(place.claim, ready, candidate.key):
                continue
            if not self.selectable(place.of_request, ready, candidate) or not self.ledger.has_capacity(
                ready, candidate
            ):
                continue
            if self.ledger.take(place.claim, ready, candidate) is None:
                self._shortcuts.positions[after] = position
                if self._goes_on(after, place, candidate):
                    return True
        return False

    def _goes_on(self, after: DevicePlace, place: DevicePlace, candidate: Candidate) -> bool:
        """Go on with the device taken; give it back if that leads nowhere."""
        try:
            done = self._next(after)
        except TooManyDevicesError:
            self.ledger.give_back(place.claim, self.plans[place.of_request], candidate)
            raise
        if not done:
            self.ledger.give_back(place.claim, self.plans[place.of_request], candidate)
        return done

    def selectable(self, place: RequestPlace, ready: RequestPlan, candidate: Candidate) -> bool:
        """Whether the device is what the class and the request select, and can be used here. Raises ClaimFaultError."""
        device = candidate.device
        if device.binding_conditions and not self.gates.binding_conditions:
            return False
        known = self._matches.get((candidate.key, place))
        if known is None:
            known = self._matches[candidate.key, place] = self._selected(place, ready, candidate)
        return known

    def _selected(self, place: RequestPlace, ready: RequestPlan, candidate: Candidate) -> bool:
        claim, name = f"claim {self.claims[place.claim]}", f"class {ready.rules.name}"
        sources = (
            (name, name, ready.rules.selectors),
            (claim, f"{claim}, request {ready.ask.name}", ready.ask.selectors),
        )
        for whose, source, selectors in sources:
            for number, expression in enumerate(selectors):
                verdict = self.around.selectors.evaluate(expression or "", candidate.key, candidate.device)
                if isinstance(verdict, SelectorFault):
                    raise ClaimFaultError(
                        f"{whose}: selector #{number}: {verdict}",
                        candidate.key,
                        message=f"{source}: selector {number} on device {candidate.key}: {verdict}",
                    )
                if not verdict:
                    return False
        if not candidate.piece.per_device:
            return True
        return pools.matches(candidate.piece, candidate.device.reach, self.around.node, self.around.labels)


def _candidates(found: Sequence[pools.GatheredPool]) -> Iterator[Candidate]:
    for pool in found:
        for piece in pool.slices if pool.usable else ():
            for device in piece.devices:
                yield Candidate(piece.device_key(device), device, piece, pool)
