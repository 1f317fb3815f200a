"""A Prometheus that is gone, slow, busy, guarded or another program: an error in three parts, and no secret in it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping

import pytest

from kgpu.base.clock import SystemClock
from kgpu.base.errors import ConfigError
from kgpu.usage.prometheus import asking
from kgpu.usage.prometheus.answer import PrometheusError, RangeAnswer, TooMuchAskedError
from kgpu.usage.prometheus.asking import PrometheusApi, checked_url
from tests.ports import free_port
from tests.usage.prometheus.stand_in import HTML, TOO_MANY, StandIn, matrix, refusal, serving

SERIES = {"metric": {"UUID": "GPU-1"}, "values": [[10, "1"]]}


class Hurried(SystemClock):
    """Waits are remembered, and take no time."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with serving(StandIn()) as stand_in:
        yield stand_in


async def ask(
    url: str, *, headers: Mapping[str, str] = {}, deadline: float = 30.0, clock: Hurried | None = None
) -> RangeAnswer:  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    api = PrometheusApi(url, headers=headers, context=context, deadline=deadline, clock=clock or Hurried())
    try:
        return await api.range("up{}", 0, 60, 60)
    finally:
        await api.close()


async def test_what_passes_is_tried_again_and_waited_for(server: StandIn) -> None:
    server.answers = [(429, "text/plain", b"slow down"), (503, "text/plain", b""), matrix(SERIES)]
    clock = Hurried()
    assert (await ask(server.url, clock=clock)).series[0].points == [(10_000, 1.0)]
    assert clock.slept == [1.0, 2.0]


@pytest.mark.parametrize("code", [429, 502, 503, 504])
async def test_what_does_not_pass_is_too_much(server: StandIn, code: int) -> None:
    server.answers = [(code, "text/plain", b"")] * 10
    with pytest.raises(TooMuchAskedError, match=f"answers {code} again and again"):
        await ask(server.url)
    assert len(server.seen) == 4


@pytest.mark.parametrize(
    ("code", "kind", "why"),
    [
        (422, "execution", TOO_MANY),
        (503, "timeout", "query timed out"),
        (400, "bad_data", "exceeded maximum resolution"),
    ],
)
async def test_too_much_is_known_by_its_kind(server: StandIn, code: int, kind: str, why: str) -> None:
    server.answers = [refusal(code, kind, why)] * 4
    with pytest.raises(TooMuchAskedError) as refused:
        await ask(server.url)
    assert why in refused.value.what
    assert "--since" in refused.value.remedy


async def test_one_that_hangs_is_given_up(server: StandIn) -> None:
    server.answers = [None]
    with pytest.raises(TooMuchAskedError, match=r"does not answer within 0\.2 s"):
        await ask(server.url, deadline=0.2)


async def test_an_answer_that_is_too_long_is_given_up(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST_BYTES", 1000)
    server.answers = [(200, "application/json", b"x" * 2000)]
    with pytest.raises(TooMuchAskedError, match="at once"):
        await ask(server.url)


async def test_one_that_is_not_there(server: StandIn) -> None:
    del server
    url, clock = f"http://127.0.0.1:{free_port()}", Hurried()
    with pytest.raises(PrometheusError, match="can't be asked") as refused:
        await ask(url, clock=clock)
    assert (len(clock.slept), type(refused.value)) == (3, PrometheusError)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HTML, "answers as no Prometheus does"),
        ((200, "text/plain", b""), "answers as no Prometheus does"),
        ((200, "application/json", b"[" * 100_000), "answers as no Prometheus does"),
        ((200, "application/json", b'{"kind": "Status"}'), "answers as no Prometheus does"),
        ((200, "application/json", b'{"status": "success", "data": {"resultType": "vector", "result": []}}'), "without figures"),
        ((404, "text/plain", b"404 page not found"), "answers 404"),
        ((302, "text/html", b""), "login page"),
        ((401, "text/plain", b""), "refuses with 401"),
        ((403, "text/html", b"<html>"), "refuses with 403"),
        ((500, "text/html", b"\x1b[2Jboom"), "answers 500"),
    ],
)  # fmt: skip
async def test_another_program_is_told_in_three_parts(
    server: StandIn, answer: tuple[int, str, bytes], words: str
) -> None:
    server.answers = [answer] * 4
    with pytest.raises(PrometheusError, match=words) as refused:
        await ask(server.url, headers={"Authorization": "Basic c2VjcmV0"})
    assert not isinstance(refused.value, TooMuchAskedError)
    assert refused.value.expected
    assert refused.value.remedy
    assert str(refused.value).isascii()
    assert "\x1b" not in str(refused.value)
    assert "c2VjcmV0" not in str(refused.value)
    assert len(server.seen) == 1, "asked once, at this address alone"


async def test_credentials_are_sent_and_a_path_is_kept(server: StandIn) -> None:
    server.answers = [matrix()]
    await ask(server.url + "/prometheus/", headers={"Authorization": "Bearer t"})
    ((path, headers),) = server.seen
    assert path.startswith("/prometheus/api/v1/query_range?query=up%7B%7D&start=0&end=60&step=60")
    assert headers["authorization"] == "Bearer t"


@pytest.mark.parametrize("url", ["", "localhost:9090", "ftp://a", "http://", "http://a:b", "http://a:0", "http://a/?x=1",
                                 "http://a/#x", "http://a b", "http://a\r\nX: y", "http://ä"])  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no address of a Prometheus"):
        checked_url(url)


@pytest.mark.parametrize("url", ["http://me:s3cret@host:9090", "https://s3cret@host", "me:s3cret@host"])
def test_a_password_in_the_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="everybody on this machine") as refused:
        checked_url(url)
    assert "s3cret" not in str(refused.value)
