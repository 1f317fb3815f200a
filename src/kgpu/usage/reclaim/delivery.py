"""Brings messages to their receivers: in turn, no faster than they take them, and kept until they have them.

Promises: a receiver that is down, refuses, asks to wait or never answers loses nothing and delays no other; its URL is
in no message, log line or condition. What was sent twice after a lost answer has the same id.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock
from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.printable import one_line
from kgpu.formats.crd.usagepolicy import UsageReceiver
from kgpu.kube.kinds import SECRETS
from kgpu.kube.port import KubeApi
from kgpu.notifications.settings import WebhookSettings, read_webhook
from kgpu.notifications.webhook import Delivery, Outcome
from kgpu.usage.reclaim.messages import batches, key_of, message
from kgpu.usage.reclaim.record import NoticeKind, ReclaimNotice, ReclaimRecord, WarningEntry

BETWEEN: Final = 1.0
"""Seconds between two messages to a receiver: Slack takes about one a second."""
AT_ONCE: Final = 30
"""Messages to a receiver in one look."""
LONGEST_WISH: Final = 3600.0
_PAUSE: Final = BackoffPolicy(first=5.0, cap=600.0, factor=2.0, jitter=0.2, healthy_after=60.0)


class WebhookPort(Protocol):
    """Where messages go; ``kgpu.notifications.webhook.Webhook``, or a test's."""

    async def post(self, body: bytes) -> Outcome:
        """Send a body once; never raises."""
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


OpenWebhook = Callable[[WebhookSettings], WebhookPort]


@dataclass(slots=True)
class _ReceiverState:
    """How it stands with one receiver. ``until``: the monotonic time before which it is left alone."""

    backoff: Backoff = field(default_factory=lambda: Backoff(_PAUSE))
    until: float = 0.0
    trouble: str = ""


class NoticeDelivery:
    """Sends what waits. ``trouble`` says of receivers why they have not got theirs."""

    def __init__(
        self, api: KubeApi, namespace: str, opened: OpenWebhook, *, clock: Clock, now: Callable[[], float],
        cluster: str = "",
    ) -> None:  # fmt: skip
        self._api = api
        self._namespace = namespace
        self._opened = opened
        self._clock = clock
        self._now = now
        self._cluster = cluster
        self._lines: dict[str, _ReceiverState] = {}
        self.sent = 0
        self.failed = 0

    @property
    def trouble(self) -> dict[str, str]:
        """Why receivers do not get their messages, by receiver."""
        return {key: line.trouble for key, line in sorted(self._lines.items()) if line.trouble}

    async def deliver(self, record: ReclaimRecord, receivers: Sequence[UsageReceiver]) -> ReclaimRecord:
        """Send what waits for them; returns the record without what has arrived. What waits for a receiver that no
        policy names any more goes.
        """
        by_key = {key_of(receiver): receiver for receiver in receivers}
        self._lines = {key: line for key, line in self._lines.items() if key in by_key}
        kept = (_without_waiting(one, {key for key in one.waiting if key not in by_key}) for one in record.notices)
        record = msgspec.structs.replace(record, notices=tuple(one for one in kept if one.waiting))
        for key, receiver in by_key.items():
            record = await self._to(record, key, receiver)
        return record

    async def _to(self, record: ReclaimRecord, key: str, receiver: UsageReceiver) -> ReclaimRecord:
        line = self._lines.setdefault(key, _ReceiverState())
        waiting = batches(record.notices, key)
        if not waiting or self._clock.monotonic() < line.until:
            return record
        try:
            webhook = self._opened(await self._settings(receiver))
        except (ConfigError, KubeError) as error:
            line.trouble = one_line(f"{error.what}; {error.remedy}", 300)
            return record
        try:
            for number, notices in enumerate(waiting[:AT_ONCE]):
                if number:
                    await self._clock.sleep(BETWEEN)
                outcome = await webhook.post(message(receiver, notices, cluster=self._cluster, now=self._now()))
                if outcome.delivery is not Delivery.SENT:
                    self._held_up(line, outcome)
                    break
                self.sent += 1
                line.trouble, line.until = "", 0.0
                line.backoff.reset()
                record = arrived(record, {one.id for one in notices}, key, self._now())
        finally:
            await webhook.close()
        return record

    def _held_up(self, line: _ReceiverState, outcome: Outcome) -> None:
        self.failed += 1
        line.trouble = one_line(outcome.why, 200)
        pause = max(line.backoff.next_delay(), min(outcome.after, LONGEST_WISH))
        line.until = self._clock.monotonic() + pause

    async def _settings(self, receiver: UsageReceiver) -> WebhookSettings:
        """The receiver's webhook. Raises ConfigError, and KubeError."""
        ref = receiver.secret_ref
        place = f"the key {ref.key} of Secret {self._namespace}/{ref.name}"
        secret = await self._api.get(SECRETS, ref.name, namespace=self._namespace)
        try:
            url = base64.b64decode(((secret or {}).get("data") or {})[ref.key], validate=True).decode()
        except (KeyError, binascii.Error, UnicodeDecodeError):
            raise ConfigError(f"there is no URL in {place}", "the webhook's URL", f"create {place}") from None
        return read_webhook(url, form="Text", place=place)


def arrived(record: ReclaimRecord, ids: set[str], receiver: str, now: float) -> ReclaimRecord:
    """The record once a receiver has these messages; a warning that all have is delivered."""
    notices, delivered = [], []
    for one in record.notices:
        left = _without_waiting(one, {receiver}) if one.id in ids else one
        if left.waiting:
            notices.append(left)
        elif one.kind is NoticeKind.WARNING:
            delivered.append(one.id)
    warnings = tuple(
        msgspec.structs.replace(one, delivered=now) if warning_id(one) in delivered else one for one in record.warnings
    )
    return msgspec.structs.replace(record, notices=tuple(notices), warnings=warnings)


def warning_id(warning: WarningEntry) -> str:
    """The id of the message that warns a workload for a stretch of idleness."""
    return f"{NoticeKind.WARNING}/{warning.ref.title}/{warning.since:.0f}"


def _without_waiting(notice: ReclaimNotice, receivers: set[str]) -> ReclaimNotice:
    return msgspec.structs.replace(notice, waiting=tuple(key for key in notice.waiting if key not in receivers))
