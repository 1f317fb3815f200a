"""Where the pods that need a node go, one after another, and what is left of the cluster afterwards. Pure.

As kube-scheduler does it: by priority and then in order, every filter, then the node with the most points; of equal
ones the first by name, where the scheduler throws dice. A pod that fits nowhere may preempt others, which then need a
node themselves, and is tried again when pods that it waits for have landed. A gang that its scheduler starts as one
gets nodes for as many pods as that takes, or for none, and preempts nobody; others' pods are placed one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from kgpu.fit import FitVerdict, PodView, explain_pod, outside_scheduler, verdict
from kgpu.fit.filters_pods import FAR
from kgpu.fit.filters_spread import SKEWED
from kgpu.fit.score import ScoreFaultError, scores
from kgpu.fit.snapshot import ClusterSnapshot
from kgpu.placement import groups
from kgpu.placement.gangs import told
from kgpu.placement.model import GangOutcome, Origin, PodOutcome, PodToPlace
from kgpu.placement.state import Chooser, PlacementState

MOST_HELPED: Final = 20
"""For how many gangs that don't fit it is looked for what would help."""
_Row = TypeVar("_Row", PodToPlace, PodOutcome)
_BY_OTHERS: Final = (FAR.phrase, SKEWED.phrase)
"""What a node lacks and other pods can bring."""


def by_points(*, pack: bool = False) -> Chooser:
    """The node with the most points by the scheduler's default profile; ``pack`` fills nodes up instead."""

    def choose(pod: PodView, names: Sequence[str], snapshot: ClusterSnapshot) -> str:
        nodes = [snapshot.nodes[name] for name in names]
        try:
            points = scores(pod, nodes, snapshot, pack=pack)
        except ScoreFaultError:
            points = {}
        return min(names, key=lambda name: (-points.get(name, 0.0), name))

    return choose


@dataclass(slots=True)
class Placing:
    """One pass over the pods that wait."""

    state: PlacementState
    choose: Chooser
    gangs: list[GangOutcome] = field(default_factory=list)
    """What came of those that were tried."""
    evicted: int = 0
    """How many pods others have put out."""

    def all(self) -> list[PodOutcome]:
        """Every pod's outcome, in the order in which they are tried; those that could not be created come first."""
        ran = groups.running(self.state)
        created, outcomes = self._created()
        gangs = _by_gang(created)
        told_of: dict[str, list[PodOutcome]] = _by_gang(outcomes)
        queue = [(-row.pod.priority, place, row) for place, row in enumerate(created)]
        heapq.heapify(queue)
        count, tried = len(queue), set[str]()
        again: list[tuple[int, PodToPlace]] = []
        while queue:
            _, _, row = heapq.heappop(queue)
            if not self._starts_as_one(row, ran):
                outcome, victims = self.one(row)
                if not outcome.node:
                    again.append((len(outcomes), row))
                outcomes.append(outcome)
                for victim in victims:
                    if (refused := self._refusal(victim)) is not None:
                        outcomes.append(refused)
                        continue
                    count += 1
                    heapq.heappush(queue, (-victim.pod.priority, count, victim))
            elif row.gang not in tried:
                tried.add(row.gang)
                found = self.together(gangs[row.gang], self.state.gangs[row.gang].least - ran[row.gang])
                outcomes += found
                self._tell(row.gang, [*told_of.get(row.gang, ()), *found], ran)
        self._retry(outcomes, again)
        for name, own in _by_gang(outcomes).items():
            if name not in tried:
                self._tell(name, own, ran)
        return outcomes

    def _tell(self, gang: str, own: Sequence[PodOutcome], ran: Mapping[str, int]) -> None:
        helps = sum(not one.fits_whole for one in self.gangs) < MOST_HELPED
        self.gangs.append(told(self.state, own, ran[gang], self.choose, helps=helps))

    def _starts_as_one(self, row: PodToPlace, ran: Mapping[str, int]) -> bool:
        """Not where so many run already that each further one is placed by itself."""
        wish = self.state.gangs.get(row.gang)
        return wish is not None and wish.scheduled and wish.least > ran[row.gang]

    def _retry(self, outcomes: list[PodOutcome], again: list[tuple[int, PodToPlace]]) -> None:
        """The scheduler tries a pod again when others that it waits for have got a node, or have gone."""
        left = [(at, row) for at, row in again if self.evicted or _waits_for_pods(outcomes[at])]
        landed = True
        while landed:
            landed = False
            for at, row in list(left):
                found = verdict(row.pod, self.state.snapshot)
                if found.fits:
                    outcomes[at] = self._bound(row, self.choose(row.pod, found.fits, self.state.snapshot))
                    left.remove((at, row))
                    landed = True

    def _created(self) -> tuple[list[PodToPlace], list[PodOutcome]]:
        """The pods that get past quotas, which count from then on, and the others."""
        refused: list[PodOutcome] = []
        created: list[PodToPlace] = []
        for row in self.state.waiting:
            why = self._refusal(row)
            if why is None:
                created.append(row)
            else:
                refused.append(why)
        self.state.waiting.clear()
        return created, refused

    def _refusal(self, row: PodToPlace) -> PodOutcome | None:
        """What keeps the pod from the scheduler; else None, and quotas count it."""
        reasons = tuple(reason.sentence for reason in outside_scheduler.reasons(row.pod, self.state.snapshot))
        if reasons:
            return _refused(row, "; ".join(reasons), reasons)
        if row.origin is not Origin.WAITING:
            self.state.count_in_quotas(row.pod, 1)
        return None

    def one(self, row: PodToPlace) -> tuple[PodOutcome, list[PodToPlace]]:
        """A pod by itself, and the pods that it puts out and that are made anew."""
        found = verdict(row.pod, self.state.snapshot)
        if found.fits:
            return self._bound(row, self.choose(row.pod, found.fits, self.state.snapshot)), []
        if found.preemption is None:
            return _unplaced(row, found, self.state.snapshot), []
        victims = found.preemption.victims
        self.evicted += len(victims)
        again = [made for victim in victims if (made := self.state.evict(victim, Origin.PREEMPTED)) is not None]
        return replace(self._bound(row, found.preemption.node), preempts=tuple(map(str, victims))), again

    def together(self, rows: Sequence[PodToPlace], least: int) -> list[PodOutcome]:
        """At least so many of them, or none: then each says where it had room, or why not."""
        if len(rows) < least:
            why = f"the gang {rows[0].gang} needs {least} more pods to start, and {len(rows)} are there"
            return [_refused(row, why, ()) for row in rows]
        landed = self._landed(rows)
        if len(landed) >= least:
            return [landed[at] if at in landed else self._lacking(row) for at, row in enumerate(rows)]
        lacking = {at: self._lacking(row) for at, row in enumerate(rows) if at not in landed}
        for outcome in reversed(landed.values()):
            self.state.unbind(outcome.pod)
        return [
            lacking[at] if at in lacking else replace(landed[at], node="", room=landed[at].node)
            for at in range(len(rows))
        ]  # fmt: skip

    def _landed(self, rows: Sequence[PodToPlace]) -> dict[int, PodOutcome]:
        """Those that have room at once, by their place; tried again as long as others help them to it."""
        landed: dict[int, PodOutcome] = {}
        progress = True
        while progress:
            progress = False
            for at, row in enumerate(rows):
                found = verdict(row.pod, self.state.snapshot) if at not in landed else None
                if found is not None and found.fits:
                    landed[at] = self._bound(row, self.choose(row.pod, found.fits, self.state.snapshot))
                    progress = True
            progress = progress and len(landed) < len(rows) and any(row.pod.affinity or row.pod.spread for row in rows)
        return landed

    def _lacking(self, row: PodToPlace) -> PodOutcome:
        return _unplaced(row, verdict(row.pod, self.state.snapshot), self.state.snapshot)

    def _bound(self, row: PodToPlace, node: str) -> PodOutcome:
        self.state.bind(row.pod, node)
        return PodOutcome(pod=row.pod, origin=row.origin, came_from=row.came_from, gang=row.gang, node=node)


def _by_gang(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    """Those of gangs, by its name."""
    found: dict[str, list[_Row]] = {}
    for row in rows:
        if row.gang:
            found.setdefault(row.gang, []).append(row)
    return found


def _waits_for_pods(outcome: PodOutcome) -> bool:
    """Whether more pods on nodes could give it one: it wants to be beside some, or spread evenly with them."""
    return any(phrase in outcome.counts for phrase in _BY_OTHERS)


def _refused(row: PodToPlace, message: str, reasons: tuple[str, ...]) -> PodOutcome:
    return PodOutcome(
        pod=row.pod, origin=row.origin, came_from=row.came_from, gang=row.gang, message=message, reasons=reasons
    )  # fmt: skip


def _unplaced(row: PodToPlace, found: FitVerdict, snapshot: ClusterSnapshot) -> PodOutcome:
    reasons = tuple(dict.fromkeys(reason.sentence for reason in explain_pod(row.pod, snapshot)))
    return replace(_refused(row, found.message or found.gate, reasons), counts=dict(found.counts))
