"""Branches of the search that can be left out, because they can't change what comes out.

- A request that found nothing finds nothing again when all is as it was then.
- Devices of one request lead to the same in whatever order they are picked: only rising orders are tried.
- Where fewer devices are left than a request still needs, no combination of them will do.
- Requests that ask alike want more together than there is: nothing is searched.

All of these hold only while a branch that led nowhere leaves nothing behind (``steady``), and while no selector fails:
a failure must come out as it does in the scheduler.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

from kgpu.fit.devices.constraints import SameValue
from kgpu.fit.devices.model import ALL
from kgpu.fit.devices.plan import Candidate, ClaimFaultError, RequestPlace, RequestPlan

if TYPE_CHECKING:
    from kgpu.fit.devices.search import DevicePlace, DeviceSearch

_MAX_REMEMBERED: Final = 20_000


class Shortcuts:
    """For one search, made when its plans are ready."""

    def __init__(self, search: DeviceSearch) -> None:
        self._search = search
        self._failed: set[Hashable] = set()
        self._counts: dict[RequestPlace, list[bool | None]] = {}
        self.positions: dict[DevicePlace, int] = {}
        """Where the device before a place stands among the candidates."""
        self.steady = self._steady()

    def _steady(self) -> bool:
        """Whether all is again as it was when devices have been given back. ``allocate`` tells where it is not."""
        search, gates = self._search, self._search.gates
        constraints = [one for own in search.ledger.constraints for one in own]
        if not all(isinstance(one, SameValue) for one in constraints):
            return False
        if gates.consumable_capacity and any(one.ask.mode == ALL for one in search.plans.values()):
            return False
        takers = [one for one in search.candidates if one.device.consumes] if gates.partitionable_devices else []
        if not takers:
            return True
        shared = gates.consumable_capacity and any(one.device.shareable for one in takers)
        tainted = gates.device_taints and any(taint.hard for one in takers for taint in one.device.taints)
        two = len({one.pool.key.pool for one in takers}) < len({one.pool.key for one in takers})
        return not (constraints or shared or tainted or two)

    def _entered_late(self, place: DevicePlace) -> bool:
        """Whether another choice, of mode All, may have gone on with this one."""
        choices = self._search.claims[place.claim].requests[place.request].choices[1:]
        return place.choice == 0 and any(choice.mode == ALL for choice in choices)

    def start(self, place: DevicePlace, ready: RequestPlan) -> int | None:
        """The position of the first candidate to try; None where there are too few."""
        if not self.steady:
            return 0
        first = self.positions[place] if place.device and not self._entered_late(place) else 0
        needed = ready.count - place.device
        selected = self._selected(place.of_request, ready)
        for position in range(first, len(selected)):
            verdict = selected[position]
            if verdict is None:
                return first
            candidate = self._search.candidates[position]
            if verdict and self._search.ledger.free(place.claim, ready, candidate.key):
                needed -= 1
                if needed <= 0 or self._search.ledger.shared(candidate):
                    return first
        return None

    def _selected(self, place: RequestPlace, ready: RequestPlan) -> list[bool | None]:
        """Of each candidate whether it is selected; None where the selector fails."""
        known = self._counts.get(place)
        if known is None:
            known = self._counts[place] = [
                self._verdict(place, ready, candidate) for candidate in self._search.candidates
            ]
        return known

    def _verdict(self, place: RequestPlace, ready: RequestPlan, candidate: Candidate) -> bool | None:
        try:
            return self._search.selectable(place, ready, candidate)
        except ClaimFaultError:
            return None

    def remembered(self, claim: int, request: int, go_on: Callable[[], bool]) -> bool:
        """``go_on``, unless it is known to lead nowhere with what is taken."""
        if not self.steady or claim >= len(self._search.claims):
            return go_on()
        state = self._state(claim, request)
        if state in self._failed:
            return False
        done = go_on()
        if not done and len(self._failed) < _MAX_REMEMBERED:
            self._failed.add(state)
        return done

    def _state(self, claim: int, request: int) -> Hashable:
        """All that the search depends on from this request on."""
        search = self._search
        return (
            claim,
            request,
            len(search.ledger.picked[claim]),
            frozenset((key, frozenset(owners)) for key, owners in search.ledger.allocating.items() if owners),
            tuple(one.state() for own in search.ledger.constraints[claim:] for one in own),
            search.ledger.capacity.state(),
            search.ledger.counters.state(),
        )

    def hopeless(self) -> bool:
        """True where requests that ask alike want more devices than there are for them, and no selector fails."""
        search = self._search
        plans = search.plans
        if not self.steady or any(one.parent or one.ask.mode == ALL for one in plans.values()):
            return False
        wanted: Counter[Hashable] = Counter()
        there: dict[Hashable, float] = {}
        for place, ready in plans.items():
            selected = self._selected(place, ready)
            if None in selected:
                return False
            if ready.ask.admin:
                continue
            alike = (ready.ask.device_class, ready.ask.selectors)
            wanted[alike] += ready.count
            there[alike] = sum(map(self._offered, search.candidates, selected))
        return any(count > there[alike] for alike, count in wanted.items())

    def _offered(self, candidate: Candidate, selected: bool | None) -> float:
        """How many requests the device can be for."""
        if not selected or candidate.key in self._search.around.held.whole:
            return 0
        return math.inf if self._search.ledger.shared(candidate) else 1
