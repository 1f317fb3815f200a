"""Which pod is next: by priority and then age; pods that were refused wait for news that could help them.

Three places: ready, backing off (1 s after the first refusal, doubling up to 10 s), and waiting for news. News wakes
only pods that a filter refused which the news is about; after five minutes everybody is tried again. Pure but for the
times that it is given, in seconds of a monotonic clock.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

FIRST: Final = 1.0
LONGEST: Final = 10.0
GIVEN_UP: Final = 300.0


class ClusterEvent(enum.Enum):
    """What has happened that may make room."""

    NODE = "node"
    POD_GONE = "pod gone"
    POD_PLACED = "pod placed"
    POD_LABELS = "pod labels"
    VOLUME = "volume"
    CLAIM = "claim"
    OTHER = "other"


_PODS: Final = frozenset({ClusterEvent.POD_GONE, ClusterEvent.POD_PLACED, ClusterEvent.POD_LABELS})
CARES: Final[Mapping[str, frozenset[ClusterEvent]]] = {
    "NodeUnschedulable": frozenset({ClusterEvent.NODE}),
    "NodeName": frozenset({ClusterEvent.NODE}),
    "TaintToleration": frozenset({ClusterEvent.NODE}),
    "NodeAffinity": frozenset({ClusterEvent.NODE}),
    "NodePorts": frozenset({ClusterEvent.NODE, ClusterEvent.POD_GONE}),
    "NodeResourcesFit": frozenset({ClusterEvent.NODE, ClusterEvent.POD_GONE}),
    "VolumeRestrictions": frozenset({ClusterEvent.VOLUME, ClusterEvent.POD_GONE}),
    "VolumeBinding": frozenset({ClusterEvent.NODE, ClusterEvent.VOLUME}),
    "VolumeZone": frozenset({ClusterEvent.NODE, ClusterEvent.VOLUME}),
    "PodTopologySpread": frozenset({ClusterEvent.NODE, *_PODS}),
    "InterPodAffinity": frozenset({ClusterEvent.NODE, *_PODS}),
    "DynamicResources": frozenset({ClusterEvent.NODE, ClusterEvent.CLAIM, ClusterEvent.POD_GONE}),
}
"""By filter: the news that its refusals may not outlive."""


@dataclass(slots=True)
class QueuedPod:
    """A pod in the queue."""

    uid: str
    priority: int
    since: float
    attempts: int = 0
    not_before: float = 0.0
    refused_by: frozenset[str] = frozenset()
    parked: float = 0.0


@dataclass(slots=True)
class Queue:
    """Pods by uid. A pod that was popped is gone until it is added or refused again."""

    entries: dict[str, QueuedPod] = field(default_factory=dict)
    _ready: list[tuple[int, float, int, str]] = field(default_factory=list)
    _backing: list[tuple[float, int, str]] = field(default_factory=list)
    _waiting: dict[str, QueuedPod] = field(default_factory=dict)
    _trying: dict[str, QueuedPod] = field(default_factory=dict)
    _missed: dict[str, set[ClusterEvent]] = field(default_factory=dict)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    def add(self, uid: str, priority: int, now: float) -> None:
        """A pod that is new, or has changed so that it is worth a try at once."""
        known = self.entries.get(uid)
        if known is None:
            known = self.entries[uid] = QueuedPod(uid, priority, now)
        elif uid not in self._waiting:
            return
        del_waiting = self._waiting.pop(uid, None)
        self._admit(del_waiting or known, now)

    def remove(self, uid: str) -> None:
        """Bound, deleted, or no longer ours."""
        self.entries.pop(uid, None)
        self._waiting.pop(uid, None)
        self._trying.pop(uid, None)
        self._missed.pop(uid, None)

    def pop(self, now: float) -> QueuedPod | None:
        """The next to try, None when nobody is ready."""
        self._ripen(now)
        while self._ready:
            uid = heapq.heappop(self._ready)[3]
            entry = self.entries.get(uid)
            if entry is not None and uid not in self._trying and uid not in self._waiting:
                self._trying[uid] = entry
                self._missed[uid] = set()
                return entry
        return None

    def done(self, uid: str) -> None:
        """The pod has a node."""
        self.remove(uid)

    def refused(self, uid: str, filters: Iterable[str], now: float) -> None:
        """It fits nowhere: to wait for news about these filters. News that came while it was tried counts."""
        entry = self._trying.pop(uid, None)
        missed = self._missed.pop(uid, set())
        if entry is None or uid not in self.entries:
            return
        entry.refused_by = frozenset(filters)
        self._punish(entry, now)
        if any(_concerns(entry, one) for one in missed):
            self._admit(entry, now)
        else:
            self._waiting[uid] = entry

    def failed(self, uid: str, now: float) -> None:
        """It could have gone somewhere, but an error came between: again after a pause."""
        entry = self._trying.pop(uid, None)
        self._missed.pop(uid, None)
        if entry is None or uid not in self.entries:
            return
        self._punish(entry, now)
        self._admit(entry, now)

    def _punish(self, entry: QueuedPod, now: float) -> None:
        entry.attempts += 1
        entry.not_before = now + min(LONGEST, FIRST * 2.0 ** min(entry.attempts - 1, 10))
        entry.parked = now

    def tell(self, news: ClusterEvent, now: float) -> None:
        """Wake the pods that the news may help, and remember it for those that are being tried."""
        for uid in [uid for uid, entry in self._waiting.items() if _concerns(entry, news)]:
            self._admit(self._waiting.pop(uid), now)
        for missed in self._missed.values():
            missed.add(news)

    def next_time(self, now: float) -> float | None:
        """Seconds until somebody is ready without news; None when nobody will be."""
        if self._ready:
            return 0.0
        times = [self._backing[0][0]] if self._backing else []
        times += [entry.parked + GIVEN_UP for entry in self._waiting.values()]
        return max(min(times) - now, 0.0) if times else None

    def _ripen(self, now: float) -> None:
        while self._backing and self._backing[0][0] <= now:
            uid = heapq.heappop(self._backing)[2]
            if (entry := self.entries.get(uid)) is not None:
                self._admit(entry, now)
        for uid in [uid for uid, entry in self._waiting.items() if entry.parked + GIVEN_UP <= now]:
            self._admit(self._waiting.pop(uid), now)

    def _admit(self, entry: QueuedPod, now: float) -> None:
        if entry.not_before > now:
            heapq.heappush(self._backing, (entry.not_before, next(self._order), entry.uid))
        else:
            heapq.heappush(self._ready, (-entry.priority, entry.since, next(self._order), entry.uid))

    def __len__(self) -> int:
        return len(self.entries)


def _concerns(entry: QueuedPod, news: ClusterEvent) -> bool:
    return news is ClusterEvent.OTHER or any(news in CARES.get(name, frozenset({news})) for name in entry.refused_by)
