"""One POST against a real server: slow, silent, redirecting, refusing, gone; and what the log says of it."""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Advice
from kgpu.base.clock import SystemClock
from kgpu.base.log import configure
from kgpu.base.service import end
from kgpu.notifications.notifier import Notifier
from kgpu.notifications.settings import WebhookSettings, read_webhook
from kgpu.notifications.webhook import Delivery, Outcome, Webhook, outcome_of, why_of
from tests.budget import tries
from tests.notifications.receiver import HANG, LocalReceiver, receiving, status
from tests.ports import free_port

TOKEN = "tokensecret"
PATH = "/services/pathsecret?key=querysecret"


def settings(receiver: LocalReceiver, *, scheme: str = "http", host: str = "127.0.0.1") -> WebhookSettings:
    return read_webhook(f"{scheme}://{host}:{receiver.port}{PATH}", token=TOKEN)


async def posted(to: WebhookSettings, *, deadline: float = 60.0, body: bytes = b"{}") -> Outcome:
    webhook = Webhook(to, deadline=deadline)
    try:
        return await webhook.post(body)
    finally:
        await webhook.close()


async def test_a_post_has_the_body_the_type_and_the_token_in_its_header_alone() -> None:
    async with receiving() as receiver:
        assert await posted(settings(receiver), body=b'{"a": 1}') == Outcome(Delivery.SENT)
    (got,) = receiver.got
    assert (got.path, got.json) == (PATH, {"a": 1})
    assert got.headers["content-type"] == "application/cloudevents+json"
    assert got.headers.pop("authorization") == f"Bearer {TOKEN}"
    assert TOKEN not in f"{got.headers} {got.path} {got.body!r}"


async def test_a_redirect_is_not_followed() -> None:
    async with receiving() as elsewhere:
        leads = status(307, f"Location: http://127.0.0.1:{elsewhere.port}/")
        async with receiving(leads) as receiver:
            outcome = await posted(settings(receiver))
        assert outcome.delivery is Delivery.REFUSED
        assert "redirects (307)" in outcome.why
        assert (len(receiver.got), elsewhere.got) == (1, [])


async def test_one_that_never_answers_costs_no_more_than_the_deadline() -> None:
    async with receiving(HANG) as receiver:
        assert await posted(settings(receiver), deadline=0.2) == Outcome(Delivery.AGAIN, "no answer within 0.2 s")


async def test_a_client_that_takes_longer_to_make_than_an_attempt_serves_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine the system's certificates are read for longer than a short deadline."""
    made, may_go_on, really = [], threading.Event(), Webhook._client

    def slowly(self: Webhook) -> Any:
        made.append(self)
        may_go_on.wait(60)
        return really(self)

    monkeypatch.setattr(Webhook, "_client", slowly)
    async with receiving() as receiver:
        webhook = Webhook(settings(receiver), deadline=0.05)
        outcomes = [await webhook.post(b"{}"), await webhook.post(b"{}")]
        assert {outcome.delivery for outcome in outcomes} == {Delivery.AGAIN}
        may_go_on.set()
        webhook._deadline = 60
        assert await webhook.post(b"{}") == Outcome(Delivery.SENT)
        await webhook.close()
    assert len(made) == len(receiver.got) == 1


async def test_a_client_that_could_not_be_made_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    really, problems = Webhook._client, [OSError(24, "too many open files")]

    def once_not(self: Webhook) -> Any:
        if problems:
            raise problems.pop()
        return really(self)

    monkeypatch.setattr(Webhook, "_client", once_not)
    async with receiving() as receiver:
        webhook = Webhook(settings(receiver), deadline=60)
        assert (await webhook.post(b"{}")).delivery is Delivery.AGAIN
        assert (await webhook.post(b"{}")).delivery is Delivery.SENT
        await webhook.close()


async def test_closed_while_its_client_is_made_it_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    monkeypatch.setattr(Webhook, "_client", lambda self: may_go_on.wait(60))
    async with receiving() as receiver:
        webhook = Webhook(settings(receiver), deadline=0.05)
        assert (await webhook.post(b"{}")).delivery is Delivery.AGAIN
        await webhook.close()
        assert [task for task in asyncio.all_tasks() if "beside" in repr(task)] == []
    may_go_on.set()


async def test_one_that_drips_its_answer_costs_no_more_than_the_deadline() -> None:
    async with receiving(status(200), drip=0.1) as receiver:
        outcome = await posted(settings(receiver), deadline=0.5)
        assert outcome == Outcome(Delivery.AGAIN, "no answer within 0.5 s")


async def test_an_endless_body_is_not_read() -> None:
    async with receiving(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\nbegins") as receiver:
        assert await posted(settings(receiver)) == Outcome(Delivery.SENT)


@pytest.mark.parametrize("answer", [b"not http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000])
async def test_nonsense_is_tried_again(answer: bytes) -> None:
    async with receiving(answer) as receiver:
        assert await posted(settings(receiver)) == Outcome(Delivery.AGAIN, "RemoteProtocolError")


async def test_nobody_there_is_tried_again() -> None:
    nobody = read_webhook(f"http://127.0.0.1:{free_port()}")
    assert await posted(nobody) == Outcome(Delivery.AGAIN, "connection refused")


async def test_a_proxy_that_the_environment_names_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        assert await posted(read_webhook("http://hooks.invalid/kgpu")) == Outcome(Delivery.SENT)
        monkeypatch.setenv("NO_PROXY", "hooks.invalid")
        assert await posted(read_webhook("http://hooks.invalid/kgpu")) != Outcome(Delivery.SENT)
    assert [got.path for got in proxy.got] == ["http://hooks.invalid/kgpu"]


async def test_a_proxy_that_makes_no_sense_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "nonsense://secret@host")
    outcome = await posted(read_webhook("http://hooks.invalid/kgpu"))
    assert outcome.delivery is Delivery.AGAIN
    assert "secret" not in outcome.why


@pytest.mark.parametrize(
    ("code", "retry_after", "outcome"),
    [
        (202, "", Outcome(Delivery.SENT)),
        (429, "7", Outcome(Delivery.AGAIN, "it answers 429", 7.0)),
        (503, "Wed, 21 Oct 2026 07:28:00 GMT", Outcome(Delivery.AGAIN, "it answers 503")),
        (503, "9" * 400, Outcome(Delivery.AGAIN, "it answers 503")),
        (401, "", Outcome(Delivery.REFUSED, "it refuses with 401 (its token)")),
        (400, "", Outcome(Delivery.REFUSED, "it refuses with 400")),
    ],
)
def test_what_a_status_says(code: int, retry_after: str, outcome: Outcome) -> None:
    assert outcome_of(code, retry_after) == outcome


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of localhost in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 2 -subj /CN=localhost"
    more = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command.split(), *more], cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "k.pem").read_text() + (folder / "c.pem").read_text())
    return both


async def test_a_certificate_of_the_systems_cas_is_accepted_and_no_other(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with receiving(context=context) as receiver:
        to = settings(receiver, scheme="https", host="localhost")
        outcome = await posted(to)
        assert outcome == Outcome(Delivery.AGAIN, "its certificate is not accepted: self-signed certificate")
        assert receiver.got == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.parent / "c.pem"))
        assert await posted(to) == Outcome(Delivery.SENT)


async def test_plain_http_to_a_server_of_tls_is_tried_again(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with receiving(context=context) as receiver:
        assert (await posted(settings(receiver))).delivery is Delivery.AGAIN
        assert receiver.got == []


SECRETS = st.text(alphabet="ghijklmnopqrstuvwxyz", min_size=12, max_size=30).map(lambda text: f"s3{text}")
FAILURES = st.sampled_from([
    lambda secret: OSError(111, secret), lambda secret: ValueError(secret), lambda secret: RuntimeError(secret),
    lambda secret: ssl.SSLError(1, secret), lambda secret: socket.gaierror(-2, secret),
    lambda secret: ExceptionGroup(secret, [ValueError(secret)]),
])  # fmt: skip


@tries(100)
@given(SECRETS, st.lists(FAILURES, min_size=1, max_size=10))
def test_whatever_fails_its_words_are_not_repeated(secret: str, failures: list) -> None:
    error: BaseException | None = None
    for make in failures:
        behind, error = error, make(secret)
        error.__cause__ = behind
    assert error is not None
    assert secret not in why_of(error)


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """All that kgpu logs at its most talkative, as the operator has it."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure(level="debug", stream=stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.parametrize(
    "answer",
    [status(200), status(403), status(500), status(302, "Location: /pathsecret"), HANG, b"tokensecret\r\n\r\n"],
)
async def test_no_log_line_has_a_secret_whatever_the_receiver_does(answer: bytes, written: io.StringIO) -> None:
    async with receiving(answer) as receiver:
        to = read_webhook(f"http://127.0.0.1:{receiver.port}{PATH}", token=TOKEN)
        notifier = Notifier(to, Webhook(to, deadline=0.3), clock=SystemClock(), now=lambda: 0.0)
        task = asyncio.create_task(notifier.run())
        notifier.tell(Advice(what="something"))
        await receiver.until(lambda: bool(receiver.got))
        await end(task)
    assert notifier.sent + notifier.dropped.total() == 1
    logged = written.getvalue()
    assert "secret" not in logged
    assert notifier.sent or "is dropped" in logged


async def test_a_500_and_then_a_200_is_one_notification() -> None:
    async with receiving(status(500), status(200)) as receiver:
        to = settings(receiver)
        notifier = Notifier(to, Webhook(to), clock=SystemClock(), now=lambda: 0.0)
        task = asyncio.create_task(notifier.run())
        notifier.tell(Advice(what="something"))
        notifier.tell(Advice(what="something else"))
        await receiver.until(lambda: len(receiver.got) == 3)  # it comes when the first has been taken
        await end(task)
    first, again, other = (got.json["id"] for got in receiver.got)
    assert first == again != other
    assert notifier.sent + notifier.dropped["lead"] == 2
    assert notifier.sent
