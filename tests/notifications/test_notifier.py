"""The queue: what is tried again, what is dropped, and that nobody who tells waits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kgpu.base.advice import Advice, Severity
from kgpu.base.clock import VirtualClock, settle
from kgpu.base.service import end
from kgpu.notifications.notifier import KEPT, LONGEST_WISH, MOST, Notifier
from kgpu.notifications.settings import WebhookSettings, read_webhook
from kgpu.notifications.webhook import Delivery, Outcome

SETTINGS = read_webhook("https://hooks.example.com/pathsecret", token="tokensecret")
SENT = Outcome(Delivery.SENT)
BUSY = Outcome(Delivery.AGAIN, "it answers 500")
REFUSED = Outcome(Delivery.REFUSED, "it refuses with 403")


class ScriptedReceiver:
    """Answers in their order, the last one for ever; None never comes. ``got`` are the texts with their times."""

    def __init__(self, clock: VirtualClock, *answers: Outcome | None) -> None:
        self._clock = clock
        self.answers = list(answers)
        self.got: list[tuple[float, str]] = []
        self.closed = False

    async def post(self, body: bytes) -> Outcome:
        self.got.append((self._clock.monotonic(), json.loads(body)["text"]))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await asyncio.Event().wait()
            raise AssertionError
        return answer

    async def close(self) -> None:
        self.closed = True


def advice(what: str, severity: Severity = Severity.INFO) -> Advice:
    return Advice(what=what, severity=severity)


@contextlib.asynccontextmanager
async def sending(
    *answers: Outcome | None, settings: WebhookSettings = SETTINGS
) -> AsyncIterator[tuple[Notifier, ScriptedReceiver, VirtualClock]]:
    clock = VirtualClock()
    receiver = ScriptedReceiver(clock, *answers)
    notifier = Notifier(settings, receiver, clock=clock, now=lambda: 1_700_000_000.0 + clock.monotonic())
    task = asyncio.create_task(notifier.run())
    await settle()
    try:
        yield notifier, receiver, clock
    finally:
        await end(task)
    assert receiver.closed


def figures(notifier: Notifier) -> dict[str, float]:
    families = text_string_to_metric_families(notifier.metrics())
    return {sample.labels.get("why", "sent"): sample.value for family in families for sample in family.samples}


async def test_what_is_told_is_sent_in_its_order() -> None:
    async with sending(SENT) as (notifier, receiver, _):
        for what in ("one", "two", "three"):
            notifier.tell(advice(what))
        await settle()
        assert [text for _, text in receiver.got] == ["one", "two", "three"]
        assert figures(notifier) == {"sent": 3, "refused": 0, "unreachable": 0, "full": 0, "lead": 0}


async def test_what_is_not_severe_enough_is_not_sent() -> None:
    settings = read_webhook("https://hooks.example.com", min_severity="warning")
    async with sending(SENT, settings=settings) as (notifier, receiver, _):
        for severity in Severity:
            notifier.tell(advice(str(severity), severity))
        await settle()
        assert [text for _, text in receiver.got] == ["warning: warning", "error: error"]


async def test_a_busy_receiver_is_tried_again_later_each_time() -> None:
    async with sending(BUSY, BUSY, BUSY, SENT) as (notifier, receiver, clock):
        notifier.tell(advice("one"))
        await clock.advance(60)
        moments = [at for at, _ in receiver.got]
        pauses = [later - at for at, later in itertools.pairwise(moments)]
        assert len(moments) == 4
        assert pauses == sorted(pauses)
        assert pauses[0] >= 0.7
        assert (notifier.sent, notifier.dropped.total()) == (1, 0)


async def test_the_receivers_own_wish_is_heeded_within_bounds() -> None:
    wishes = [Outcome(Delivery.AGAIN, "it answers 429", seconds) for seconds in (30.0, 1e6)]
    async with sending(*wishes, SENT) as (notifier, receiver, clock):
        notifier.tell(advice("one"))
        await clock.advance(300)
        assert [at for at, _ in receiver.got] == [0, 30, 30 + LONGEST_WISH]


async def test_an_outage_ends_in_one_line_and_figures(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kgpu.notifications")
    async with sending(BUSY) as (notifier, receiver, clock):
        notifier.tell(advice("one"))
        notifier.tell(advice("two"))
        await clock.advance(KEPT)
        assert (notifier.sent, dict(notifier.dropped)) == (0, {"unreachable": 2})
        assert {text for _, text in receiver.got} == {"one", "two"}  # each was tried
        (line,) = caplog.messages
        assert line == "a notification to the webhook https://hooks.example.com is dropped: it answers 500"
        receiver.answers = [SENT]
        notifier.tell(advice("three"))
        await settle()
        assert caplog.messages[1:] == [
            "the webhook https://hooks.example.com takes notifications again; 2 were dropped"
        ]
        assert figures(notifier)["unreachable"] == 2


async def test_what_is_refused_is_not_tried_again() -> None:
    async with sending(REFUSED, SENT) as (notifier, receiver, _):
        notifier.tell(advice("one"))
        notifier.tell(advice("two"))
        await settle()
        assert [text for _, text in receiver.got] == ["one", "two"]
        assert (notifier.sent, dict(notifier.dropped)) == (1, {"refused": 1})


async def test_a_thousand_find_no_place_and_the_newest_stay() -> None:
    async with sending(None) as (notifier, receiver, _):
        notifier.tell(advice("first"))
        await settle()  # it is under way, and the receiver does not answer
        for number in range(1000):
            notifier.tell(advice(str(number)))
        assert dict(notifier.dropped) == {"full": 1000 - MOST}
        assert len(receiver.got) == 1


async def test_what_waits_when_the_lead_ends_is_dropped_and_the_next_term_sends_again() -> None:
    async with sending(None) as (notifier, receiver, _):
        notifier.tell(advice("one"))
        await settle()
        notifier.tell(advice("two"))
    assert dict(notifier.dropped) == {"lead": 2}
    receiver.answers = [SENT]
    task = asyncio.create_task(notifier.run())
    notifier.tell(advice("three"))
    await settle()
    await end(task)
    assert [text for _, text in receiver.got] == ["one", "three"]
