"""Hands advice to a webhook while this process leads, without delaying whoever tells it.

Promises: ``tell`` never waits and never raises. What the receiver does not take is tried again, later each time, for
``KEPT`` seconds, then dropped; the first drop of an outage is a log line, every one is counted. At most ``MOST`` wait:
the oldest goes for a new one. What waits when the lead ends is dropped: Events remain.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kgpu.base.advice import Advice, Severity
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock
from kgpu.base.metric_text import head, page
from kgpu.notifications.payload import PLAIN, EventDetails, body_of
from kgpu.notifications.settings import WebhookSettings
from kgpu.notifications.webhook import Delivery, Outcome

log = logging.getLogger(__name__)

MOST: Final = 200
KEPT: Final = 600.0
"""Seconds after which a notification is dropped."""
LONGEST_WISH: Final = 120.0
"""The most seconds between two attempts, whatever the receiver asks for."""
SENT: Final = "kgpu_notifications_sent_total"
DROPPED: Final = "kgpu_notifications_dropped_total"
HEADS: Final = {
    SENT: ("counter", "Notifications that the webhook has taken."),
    DROPPED: ("counter", "Notifications that were dropped, by why: refused, unreachable, full or lead."),
}
_CAUSES: Final = ("refused", "unreachable", "full", "lead")
_PAUSE: Final = BackoffPolicy(first=1.0, cap=60.0, factor=2.0, jitter=0.3, healthy_after=60.0)
_RANK: Final = {severity: rank for rank, severity in enumerate(Severity)}


class Receiver(Protocol):
    """Where notifications go; ``kgpu.notifications.webhook.Webhook``, or a test's."""

    async def post(self, body: bytes) -> Outcome:
        """Send a body once; never raises."""
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


@dataclass(frozen=True, slots=True)
class _QueuedBody:
    """A body, and the monotonic time until which it is tried."""

    body: bytes
    until: float


class Notifier:
    """``tell`` from anywhere; ``run`` sends until it is cancelled, once per term as the leader."""

    def __init__(
        self, settings: WebhookSettings, receiver: Receiver, *, clock: Clock, now: Callable[[], float]
    ) -> None:
        """``now`` is in seconds since 1970."""
        self._settings = settings
        self._receiver = receiver
        self._clock = clock
        self._now = now
        self._queue: deque[_QueuedBody] = deque()
        self._news = asyncio.Event()
        self._dropped_in_a_row = 0
        self.sent = 0
        self.dropped: Counter[str] = Counter()

    def tell(self, advice: Advice, details: EventDetails = PLAIN) -> None:
        """Queue advice, if it is severe enough."""
        settings = self._settings
        if _RANK[advice.severity] < _RANK[settings.min_severity]:
            return
        body = body_of(advice, details, settings.format, cluster=settings.cluster, moment=self._now())
        if len(self._queue) >= MOST:
            self._queue.popleft()
            self._drop("full", f"{MOST} wait already")
        self._queue.append(_QueuedBody(body, self._clock.monotonic() + KEPT))
        self._news.set()

    async def run(self) -> None:
        """Send what is told, one after the other, until cancelled."""
        current: _QueuedBody | None = None
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._queue:
                    current = self._queue.popleft()
                    await self._deliver(current)
                    current = None
        finally:
            left = len(self._queue) + (current is not None)
            self._queue.clear()
            for _ in range(left):
                self._drop("lead", "this process no longer leads")
            await self._receiver.close()

    async def _deliver(self, waiting: _QueuedBody) -> None:
        backoff = Backoff(_PAUSE)
        while True:
            outcome = await self._receiver.post(waiting.body)
            if outcome.delivery is Delivery.SENT:
                self._taken()
                return
            if outcome.delivery is Delivery.REFUSED:
                self._drop("refused", outcome.why)
                return
            pause = max(backoff.next_delay(), min(outcome.after, LONGEST_WISH))
            if self._clock.monotonic() + pause > waiting.until:
                self._drop("unreachable", outcome.why)
                return
            await self._clock.sleep(pause)

    def _taken(self) -> None:
        self.sent += 1
        if self._dropped_in_a_row:
            place, dropped = self._settings.place, self._dropped_in_a_row
            log.info("the webhook %s takes notifications again; %d were dropped", place, dropped)
        self._dropped_in_a_row = 0

    def _drop(self, cause: str, why: str) -> None:
        level = logging.DEBUG if self._dropped_in_a_row else logging.WARNING
        log.log(level, "a notification to the webhook %s is dropped: %s", self._settings.place, why)
        self._dropped_in_a_row += 1
        self.dropped[cause] += 1

    def metrics(self) -> str:
        """What was sent and dropped, in Prometheus' text format."""
        rows = {SENT: [f"{SENT} {self.sent}"]}
        rows[DROPPED] = [f'{DROPPED}{{why="{cause}"}} {self.dropped[cause]}' for cause in _CAUSES]
        return page(line for name, (kind, said) in HEADS.items() for line in (*head(name, kind, said), *rows[name]))
