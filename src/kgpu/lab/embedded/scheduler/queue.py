"""Which pod is next: by priority, then age; refused pods wait for an event that could make them fit.

A pod is ready, backing off (1 s after the first refusal, doubling up to 10 s), or waiting for an event. An event wakes
only pods refused by a filter that it may affect; after five minutes every pod is retried. Pure: all times are
parameters, in seconds of a monotonic clock.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

FIRST: Final = 1.0
LONGEST: Final = 10.0
GIVEN_UP: Final = 300.0


class ClusterEvent(enum.Enum):
    """A change in the cluster that may make a refused pod fit."""

    NODE = "node"
    POD_GONE = "pod gone"
    POD_PLACED = "pod placed"
    POD_LABELS = "pod labels"
    VOLUME = "volume"
    CLAIM = "claim"
    DEVICE_CLASS = "device class"
    OTHER = "other"


_PODS: Final = frozenset({ClusterEvent.POD_GONE, ClusterEvent.POD_PLACED, ClusterEvent.POD_LABELS})
WAKING_EVENTS: Final[Mapping[str, frozenset[ClusterEvent]]] = {
    "NodeUnschedulable": frozenset({ClusterEvent.NODE}),
    "NodeName": frozenset({ClusterEvent.NODE}),
    "TaintToleration": frozenset({ClusterEvent.NODE}),
    "NodeAffinity": frozenset({ClusterEvent.NODE}),
    "NodePorts": frozenset({ClusterEvent.NODE, ClusterEvent.POD_GONE}),
    "NodeResourcesFit": frozenset({ClusterEvent.NODE, ClusterEvent.POD_GONE, ClusterEvent.DEVICE_CLASS}),
    "VolumeRestrictions": frozenset({ClusterEvent.VOLUME, ClusterEvent.POD_GONE}),
    "VolumeBinding": frozenset({ClusterEvent.NODE, ClusterEvent.VOLUME}),
    "VolumeZone": frozenset({ClusterEvent.NODE, ClusterEvent.VOLUME}),
    "PodTopologySpread": frozenset({ClusterEvent.NODE, *_PODS}),
    "InterPodAffinity": frozenset({ClusterEvent.NODE, *_PODS}),
    "DynamicResources": frozenset(
        {ClusterEvent.NODE, ClusterEvent.CLAIM, ClusterEvent.DEVICE_CLASS, ClusterEvent.POD_GONE}
    ),
}
"""By filter: the events that wake the pods it refused."""


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
        """Queue a new pod, or one that has changed so that it is worth a retry at once."""
        known = self.entries.get(uid)
        if known is None:
            known = self.entries[uid] = QueuedPod(uid, priority, now)
        elif uid not in self._waiting:
            return
        del_waiting = self._waiting.pop(uid, None)
        self._admit(del_waiting or known, now)

    def remove(self, uid: str) -> None:
        """Drop a pod: it is bound, deleted, or no longer this scheduler's."""
        self.entries.pop(uid, None)
        self._waiting.pop(uid, None)
        self._trying.pop(uid, None)
        self._missed.pop(uid, None)

    def pop(self, now: float) -> QueuedPod | None:
        """The next pod to try, None when none is ready."""
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
        """The pod fits nowhere and waits for an event that concerns these filters; events during the attempt count."""
        entry = self._trying.pop(uid, None)
        missed = self._missed.pop(uid, set())
        if entry is None or uid not in self.entries:
            return
        entry.refused_by = frozenset(filters)
        self._punish(entry, now)
        if any(_concerns(entry, event) for event in missed):
            self._admit(entry, now)
        else:
            self._waiting[uid] = entry

    def failed(self, uid: str, now: float) -> None:
        """Scheduling the pod failed with an error: retry it after a pause."""
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

    def notify(self, event: ClusterEvent, now: float, only: Container[str] | None = None) -> None:
        """Wake the pods that the event may help, and remember it for those being tried; of ``only`` these uids."""
        waiting = [uid for uid in self._waiting if only is None or uid in only]
        for uid in waiting:
            if _concerns(self._waiting[uid], event):
                self._admit(self._waiting.pop(uid), now)
        for uid, missed in self._missed.items():
            if only is None or uid in only:
                missed.add(event)

    def next_time(self, now: float) -> float | None:
        """Seconds until a pod is ready without an event; None when none will be."""
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


def _concerns(entry: QueuedPod, event: ClusterEvent) -> bool:
    return event is ClusterEvent.OTHER or any(
        event in WAKING_EVENTS.get(name, frozenset({event})) for name in entry.refused_by
    )
