"""Which advice becomes an Event next: one budget for all and one per subject, so that a node with a new reason every
second does not crowd out the others. What does not fit is dropped and counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Advice
from kgpu.base.clock import Clock

BURST: Final = 25
REFILL: Final = 2.0  # seconds per further Event
SUBJECT_BURST: Final = 10
SUBJECT_REFILL: Final = 30.0
SUBJECT_QUEUE: Final = 30
QUEUE: Final = 2000


@dataclass(slots=True)
class TokenBucket:
    """A token bucket: ``most`` tokens, one more every ``refill`` seconds."""

    most: float
    refill: float
    at: float
    tokens: float = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = self.most

    def wait(self, now: float) -> float:
        """Return the seconds until there is a token, 0 when there is one."""
        self.tokens = min(self.most, self.tokens + (now - self.at) / self.refill)
        self.at = now
        return 0.0 if self.tokens >= 1 - 1e-9 else (1 - self.tokens) * self.refill

    def take(self) -> None:
        self.tokens -= 1

    @property
    def full(self) -> bool:
        return self.tokens >= self.most


class Budget:
    """Queues of advice by subject; subjects take turns."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all = TokenBucket(BURST, REFILL, clock.monotonic())
        self._subjects: dict[str, TokenBucket] = {}
        self._waiting: dict[str, deque[Advice]] = {}  # in the order of their turns
        self._count = 0
        self.dropped = 0
        """How many records were dropped."""

    def add(self, advice: Advice) -> None:
        """Queue the advice. A full queue of its subject drops that subject's oldest; a full budget drops this one."""
        mine = self._waiting.get(advice.subject)
        if mine is not None and len(mine) >= SUBJECT_QUEUE:
            mine.popleft()
            self._count -= 1
            self.dropped += 1
        elif self._count >= QUEUE:
            self.dropped += 1
            return
        self._waiting.setdefault(advice.subject, deque()).append(advice)
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def next(self) -> tuple[Advice | None, float]:
        """Take the next advice and its tokens; or return None and the seconds to wait."""
        now = self._clock.monotonic()
        for_all = self._all.wait(now)
        if not self._waiting:
            return None, for_all
        waits = []
        for subject, queue in self._waiting.items():
            bucket = self._subjects.get(subject) or TokenBucket(SUBJECT_BURST, SUBJECT_REFILL, now)
            wait = max(for_all, bucket.wait(now))
            if wait:
                waits.append(wait)
                continue
            self._subjects[subject] = bucket
            self._all.take()
            bucket.take()
            advice = queue.popleft()
            self._count -= 1
            del self._waiting[subject]
            if queue:
                self._waiting[subject] = queue  # its next turn is after all others'
            self._forget(now)
            return advice, 0.0
        return None, min(waits)

    def _forget(self, now: float) -> None:
        """Drop full buckets: a new one is the same."""
        if len(self._subjects) > QUEUE:
            for bucket in self._subjects.values():
                bucket.wait(now)
            self._subjects = {subject: bucket for subject, bucket in self._subjects.items() if not bucket.full}
