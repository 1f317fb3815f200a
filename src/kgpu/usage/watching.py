"""Pure: what was seen of a device, summed up in stretches of a few minutes, by which it can be judged for a day.

A stretch keeps the largest activity, not only the mean: one busy second refutes idleness. It is closed after
``BUCKET_US`` and never changed again, and times are those of the steady clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from kgpu.formats.usage_now import BUCKET_US, UsageBucket, UsageLast
from kgpu.usage.states import UsageReading, WatchedDevice, activity, contradicts, ratio

AtSeconds: TypeAlias = Callable[[int], float]
"""A moment of the steady clock in the seconds of whoever judges."""
LONGEST_GAP_US: Final = 60_000_000
"""What lies further apart than this was not observed in between."""


class OpenBucket(msgspec.Struct, kw_only=True):
    """The stretch that is being watched. ``sum_us``: activity, integrated."""

    begin_us: int
    end_us: int
    watched_us: int = 0
    sum_us: float = 0.0
    peak: float | None = None
    power_w: float | None = None
    memory_mib: float | None = None
    changed: bool = False
    contradicted: bool = False

    def closed(self) -> UsageBucket:
        """As it is told."""
        return UsageBucket(
            begin_us=self.begin_us, end_us=self.end_us, watched_us=self.watched_us, peak=self.peak,
            mean=min(1.0, self.sum_us / self.watched_us) if self.watched_us else None,
            power_w=self.power_w, memory_mib=self.memory_mib, changed=self.changed, contradicted=self.contradicted,
        )  # fmt: skip


class Watch(msgspec.Struct, kw_only=True):
    """What is remembered of one device, partition or tenant: its last reading, and the stretch that is open."""

    last: UsageLast | None = None
    open: OpenBucket | None = None
    processes: tuple[str, ...] | None = None

    def add(
        self, reading: UsageReading | None, begin_us: int, end_us: int, device: WatchedDevice
    ) -> UsageBucket | None:
        """Take what was seen from ``begin_us`` to ``end_us``; None: nothing was. Returns a stretch that this closed."""
        closed = None
        if self.open is not None and end_us - self.open.begin_us > BUCKET_US:
            closed = self.open.closed()
            self.open = None
        if self.open is None:
            self.open = OpenBucket(begin_us=begin_us, end_us=end_us)
        self.open.end_us = end_us
        if reading is not None:
            self._take(self.open, reading, end_us - begin_us, device)
            self.last = _last(reading, end_us)
        return closed

    def buckets(self, closed: Iterable[UsageBucket]) -> tuple[UsageBucket, ...]:
        """All stretches, the open one last; ``closed`` are those that this has returned."""
        return (*closed, *((self.open.closed(),) if self.open is not None else ()))

    def readings(self, closed: Iterable[UsageBucket], at: AtSeconds) -> list[UsageReading]:
        """What to judge by."""
        return readings(self.buckets(closed), self.last, at)

    def _take(self, bucket: OpenBucket, reading: UsageReading, length_us: int, device: WatchedDevice) -> None:
        active = activity(reading)
        if active is not None:
            bucket.watched_us += length_us
            bucket.sum_us += active * length_us
            bucket.peak = _most(bucket.peak, _most(active, ratio(reading.peak)))
        bucket.power_w = _most(bucket.power_w, reading.power_w)
        bucket.memory_mib = _most(bucket.memory_mib, reading.memory_mib)
        bucket.contradicted |= contradicts(reading, device)
        if reading.processes is not None:
            now = tuple(sorted(reading.processes))
            bucket.changed |= self.processes is not None and now != self.processes
            self.processes = now


def readings(buckets: Iterable[UsageBucket], last: UsageLast | None, at: AtSeconds) -> list[UsageReading]:
    """Stretches and the last reading as what ``judge`` takes."""
    found = [
        UsageReading(
            at=at(one.end_us), span=(one.end_us - one.begin_us) / 1e6, watched=one.watched_us / 1e6, peak=one.peak,
            power_w=one.power_w, memory_mib=one.memory_mib, changed=one.changed, contradicted=one.contradicted,
        )
        for one in buckets
        if one.end_us > one.begin_us
    ]  # fmt: skip
    if last is not None:
        fields = {name: getattr(last, name) for name in _SHARED}
        processes = None if last.processes is None else frozenset(last.processes)
        found.append(UsageReading(at=at(last.at_us), processes=processes, **fields))
    return found


_SHARED: Final = (
    "gr_engine", "gpu_util", "sm", "dram", "encoder", "decoder", "power_w", "memory_mib", "host_to_device_mib_s",
    "peak",
)  # fmt: skip


def _last(reading: UsageReading, at_us: int) -> UsageLast:
    processes = None if reading.processes is None else tuple(sorted(reading.processes))
    return UsageLast(at_us=at_us, processes=processes, **{name: getattr(reading, name) for name in _SHARED})


def _most(before: float | None, now: float | None) -> float | None:
    return before if now is None else now if before is None else max(before, now)
