"""Turns advice into Node Events: only those that a person should see, without repeats and at a limited rate.

The filter is pure: it admits advice that is a warning or ends one, has not been told within ``REPEAT_AFTER``, and
finds a token in the bucket. The worker posts what was admitted. If the API server does not answer, Events are lost, but
decisions still take effect and the log has it all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from typing import Final, Protocol

from kgpu.base.advice import Advice
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError

log = logging.getLogger(__name__)

REPEAT_AFTER: Final = 600.0  # seconds until the same advice is told again
BURST: Final = 25  # events at once, as client-go's own limit
REFILL: Final = 10.0  # seconds per further event
MEMORY: Final = 512  # records remembered for repeats
QUEUE: Final = 64  # events waiting for the API server

# The end of a problem is told too, and lets the same problem be told again when it returns.
GOOD_NEWS: Final = frozenset(
    {
        "DeviceRecovered", "DriverReadable", "ConfigApplied", "ValidationPassed", "GPUHealthy", "MigApplied",
        "MigAdopted", "MigChangedByHand", "PartitionApplied", "PartitionAdopted", "PartitionChangedByHand",
    }
)  # fmt: skip


class EventPublisher(Protocol):
    """Writes one Event about this node."""

    async def publish(self, advice: Advice) -> None:
        """Raises KubeError when the API server refuses or can't be reached."""
        ...


class MemoryEventPublisher:
    """The fake: keeps what was published; ``refuse`` makes it fail."""

    def __init__(self) -> None:
        self.published: list[Advice] = []
        self.refuse: KubeError | None = None

    async def publish(self, advice: Advice) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.published.append(advice)


class EventFilter:
    """Which advice becomes Events."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, str, str, str], float] = OrderedDict()
        self._tokens = float(BURST)
        self._at: float | None = None
        self.suppressed = 0

    def admit(self, advice: Advice, now: float) -> bool:
        """True when an Event should be written at ``now`` (monotonic seconds)."""
        good = advice.reason in GOOD_NEWS
        if not advice.severity.notable and not good:
            return False
        if good:
            for old_key in [known for known in self._told if known[0] == advice.subject]:
                del self._told[old_key]
        key = (advice.subject, advice.reason, advice.what, advice.why)
        told_at = self._told.get(key)
        if told_at is not None and now - told_at < REPEAT_AFTER:
            return False
        if self._at is not None:
            self._tokens = min(float(BURST), self._tokens + (now - self._at) / REFILL)
        self._at = now
        if self._tokens < 1:
            self.suppressed += 1
            return False
        self._tokens -= 1
        self._told[key] = now
        self._told.move_to_end(key)
        if len(self._told) > MEMORY:
            self._told.popitem(last=False)
        return True


class EventQueue:
    """Takes advice from anywhere in the loop; ``run`` posts it."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._filter = EventFilter()
        self._waiting: deque[Advice] = deque(maxlen=QUEUE)
        self._wake = asyncio.Event()

    def take(self, advice: Advice) -> None:
        """Queue advice if the filter admits it. An ``AdviceSink``."""
        if self._filter.admit(advice, self._clock.monotonic()):
            self._waiting.append(advice)
            self._wake.set()

    async def run(self, publisher: EventPublisher) -> None:
        """Post until cancelled. A refused Event is dropped with a log line."""
        while True:
            while self._waiting:
                advice = self._waiting.popleft()
                try:
                    await publisher.publish(advice)
                except KubeError as error:
                    log.warning("an Event was not written: %s", error.one_line())
            self._wake.clear()
            await self._wake.wait()
