"""Requests that a server has served keep its workload; a page is only read for numbers, and what is not known keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.usage_reclaim import decode
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import PODS
from kgpu.operations.writing import evict
from kgpu.usage.reclaim import asking
from kgpu.usage.reclaim.asking import PodMetricsPages, ask
from kgpu.usage.reclaim.run import ReclaimController
from kgpu.usage.reclaim.traffic import (
    COUNTERS,
    RUNNING,
    MetricsPlace,
    RequestFigures,
    RequestWatch,
    place_of,
    read_page,
)
from tests.budget import tries
from tests.usage.reclaim.scene import HOUR, OWN, START, Scene

WINDOW = 2 * HOUR
VLLM = """\
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{finished_reason="stop",model_name="a} 9 b"} 17.0
vllm:request_success_total{finished_reason="length",model_name="a"} 3.0
vllm:request_success_created{finished_reason="stop"} 1.78e+09
vllm:num_requests_running{model_name="a"} 0.0
vllm:e2e_request_latency_seconds_count{model_name="a"} 20
mine_total 5 1786356000000
"""


def test_counters_of_requests_are_summed() -> None:
    assert read_page(VLLM, ()) == RequestFigures(served=20.0)
    assert read_page(VLLM, ("mine_total",)) == RequestFigures(served=25.0)
    assert read_page(VLLM.replace('running{model_name="a"} 0.0', "running 2"), ()) == RequestFigures(20.0, 2.0)


@pytest.mark.parametrize("name", sorted(COUNTERS | RUNNING))
def test_each_server_is_known_by_its_own(name: str) -> None:
    found = read_page(f'{name}{{model="m"}} 4\n{name}_other 9\n', ())
    assert (found.served, found.running) == ((4.0, 0.0) if name in COUNTERS else (0.0, 4.0))


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "a", "0x7"])
def test_a_page_that_says_nonsense_of_requests_says_nothing(value: str) -> None:
    with pytest.raises(ConfigError, match="requests"):
        read_page(f"tgi_request_count {value}\n", ())


HOSTILE = {
    "no metrics": "<html>\x1b[2J" * 1000,
    "a line without end": "tgi_request_count" + "{" * 1_000_000,
    "braces": ("tgi_request_count{" + "}" * 4000 + "\n") * 400,
    "nothing": "",
    "nulls": "\x00" * 100_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_page_has_no_requests(text: str) -> None:
    assert read_page(text, ()) == RequestFigures()


def test_a_page_with_lines_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="too many lines"):
        read_page("\n" * 100_001, ())


@tries(200)
@given(st.text(max_size=300))
def test_any_page_is_read_or_refused(text: str) -> None:
    try:
        found = read_page(text + "\ntgi_request_count 1\n", ())
    except ConfigError as error:
        assert error.expected  # noqa: PT017 - either is right
    else:
        assert found.served >= 1


def pod(annotations: dict[str, str], address: str = "10.0.0.1") -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "a", "uid": "u", "annotations": annotations},
            "status": {"podIP": address}}  # fmt: skip


def annotated(**own: str) -> dict[str, str]:
    return {f"prometheus.io/{key}": value for key, value in own.items()}


def test_where_a_pod_says_its_metrics_are() -> None:
    assert place_of(pod({})) is None
    assert place_of(pod(annotated(scrape="false", port="x"))) is None
    place = MetricsPlace("a", "p", "u", "10.0.0.1", 8000, "/metrics")
    assert place_of(pod(annotated(scrape="true", port="8000"))) == place
    found = place_of(pod(annotated(scrape="True", port="8501", path="/monitoring/prometheus/metrics")))
    assert found is not None
    assert (found.port, found.path) == (8501, "/monitoring/prometheus/metrics")


@pytest.mark.parametrize(
    "own",
    [{}, {"port": ""}, {"port": "0"}, {"port": "65536"}, {"port": "1" * 900}, {"port": "80", "path": "metrics"},
     {"port": "80", "path": "/a b"}, {"port": "80", "path": "/\r\nHost: x"}, {"port": "80", "path": "/" + "a" * 900},
     {"port": "80", "path": "//other.example/"[1:] + "\n"}, {"port": "80", "scheme": "https"}],
)  # fmt: skip
def test_what_can_not_be_asked_is_told(own: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        place_of(pod(annotated(scrape="true", **own)))


def kept(*seen: tuple[float, RequestFigures | str], now: float | None = None) -> str:
    watch = RequestWatch()
    for at, figures in seen:
        watch.take("u", "llama-1", figures, START + at)
    return watch.kept(["u", "other"], START + (seen[-1][0] if now is None else now), WINDOW)


def every_minute(seconds: float, served: Callable[[float], float] = lambda _: 5.0) -> list[Any]:
    return [(float(at), RequestFigures(served(at))) for at in range(0, int(seconds) + 1, 60)]


def test_who_has_served_nothing_for_the_window_is_not_kept() -> None:
    assert kept(*every_minute(WINDOW)) == ""


def test_who_has_never_served_is_not_kept_at_all() -> None:
    assert kept((0, RequestFigures())) == ""


def test_a_request_within_the_window_keeps() -> None:
    early = every_minute(WINDOW, lambda at: 5.0 if at < HOUR else 6.0)
    assert kept(*early) == "pod llama-1 has served requests at 2026-08-10T11:00:00Z"
    assert kept(*early, *[(at + WINDOW, figures) for at, figures in every_minute(WINDOW, lambda _: 6.0)]) == ""


def test_a_counter_that_began_anew_keeps() -> None:
    assert "has served" in kept(*every_minute(WINDOW), (WINDOW + 60, RequestFigures(0.0)))


def test_requests_at_work_keep() -> None:
    assert kept((0, RequestFigures(running=2))) == "pod llama-1 has 2 requests at work"


def test_what_was_not_watched_for_long_enough_keeps() -> None:
    assert kept(*every_minute(HOUR)) == "requests of pod llama-1 are watched for 1h only, of 2h"


def test_a_gap_or_a_clock_that_was_set_begins_anew() -> None:
    beyond = WINDOW + 600
    assert "watched for 0s only" in kept(*every_minute(WINDOW), (beyond, RequestFigures(5.0)))
    assert "watched for 0s only" in kept(*every_minute(WINDOW), (WINDOW - 60, RequestFigures(5.0)))
    assert "has served" in kept(*every_minute(WINDOW), (beyond, RequestFigures(6.0)))


def test_what_does_not_answer_keeps_and_begins_anew() -> None:
    silent = (WINDOW + 60, "HTTP 500")
    assert kept(*every_minute(WINDOW), silent) == "requests of pod llama-1 are not known: HTTP 500"
    assert "watched for 0s" in kept(*every_minute(WINDOW), silent, (WINDOW + 120, RequestFigures(5.0)))


def test_the_first_page_after_silence_proves_no_request() -> None:
    assert "watched for 0s only" in kept((0, "HTTP 500"), (60, RequestFigures(5.0)))
    assert kept((0, "HTTP 500"), (60, RequestFigures(0.0))) == ""


def test_pods_that_are_gone_are_forgotten() -> None:
    watch = RequestWatch()
    watch.take("u", "a", "x", START)
    watch.keep([])
    assert watch.kept(["u"], START, WINDOW) == ""
    assert not watch.pods


# Over HTTP


async def answer(text: bytes, head: bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n") -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(text) + text


@asynccontextmanager
async def serving(*parts: bytes, hang: bool = False) -> AsyncIterator[MetricsPlace]:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            if hang:
                await ended.wait()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield MetricsPlace("a", "p", "u", "127.0.0.1", port, "/metrics")
    finally:
        ended.set()
        server.close()


async def asked(place: MetricsPlace) -> RequestWatch:
    watch = RequestWatch()
    await ask(PodMetricsPages(FakeApi(), direct=True), [(place, frozenset())], watch, START)
    return watch


async def test_a_real_page_is_read() -> None:
    async with serving(await answer(VLLM.encode())) as place:
        watch = await asked(place)
    assert watch.pods["u"].figures == RequestFigures(20.0)


@pytest.mark.parametrize(
    ("head", "body"),
    [(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n", b""), (b"HTTP/1.1 500 No\r\n", b"x"),
     (b"nonsense\r\n", b""), (b"HTTP/1.1 200 OK\r\n", b"x" * (asking.MOST_BYTES + 1))],
)  # fmt: skip
async def test_an_answer_that_is_none_keeps(head: bytes, body: bytes) -> None:
    async with serving(await answer(body, head)) as place:
        watch = await asked(place)
    assert "are not known" in watch.kept(["u"], START, WINDOW)


async def test_a_pod_that_hangs_keeps_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "DEADLINE", 0.05)
    async with serving(hang=True) as silent, serving(await answer(VLLM.encode())) as good:
        watch = RequestWatch()
        places = [
            (MetricsPlace("a", f"p{n}", f"u{n}", silent.address, silent.port, "/"), frozenset[str]()) for n in range(40)
        ]
        monkeypatch.setattr(asking, "ALTOGETHER", 30.0)
        pages = PodMetricsPages(FakeApi(), direct=True)
        await ask(pages, places, watch, START)
        monkeypatch.setattr(asking, "DEADLINE", 30.0)
        await ask(pages, [(good, frozenset())], watch, START)
    assert all("does not answer within" in watch.kept([f"u{n}"], START, WINDOW) for n in range(40))
    assert watch.pods["u"].figures.served == 20.0


async def test_who_could_not_be_asked_in_time_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ALTOGETHER", 0.05)
    async with serving(hang=True) as place:
        watch = await asked(place)
    assert "too many pods" in watch.kept(["u"], START, WINDOW)


# The whole way


class Servers:
    """Pods' pages by name; a text, or an error."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.asked: list[str] = []

    async def page(self, place: MetricsPlace) -> str:
        self.asked.append(place.pod)
        if place.pod not in self.texts:
            raise OSError("connection refused")
        return self.texts[place.pod]


async def scene_with(servers: Servers | None, **requests: Any) -> Scene:
    scene = await Scene().begin()
    scene.controller = ReclaimController(
        scene.source, namespace=OWN, opened=scene.webhook.open, evict=evict, report=scene.said.append, metrics=servers,
        clock=scene.clock, now=lambda: scene.now,
    )  # fmt: skip
    await scene.policy(requests=requests, reclaim={"after": "30m", "grace": "5m"})
    await scene.deployment(idle_since=START - 3 * HOUR)
    await scene.api.patch(
        PODS, "llama-1-0", {"metadata": {"annotations": annotated(scrape="true", port="8000")}}, namespace="team-a"
    )
    await scene.api.patch(
        PODS, "llama-1-0", {"status": {"podIP": "10.0.0.9"}}, namespace="team-a", subresource="status"
    )
    return scene


async def test_traffic_keeps_a_workload_and_without_it_it_is_stopped() -> None:
    servers = Servers()
    scene = await scene_with(servers, watch=True)
    for number in range(12):
        servers.texts["llama-1-0"] = f"vllm:request_success_total {number}\n"
        await scene.round(290)
    assert (await scene.replicas(), await scene.annotations()) == (1, {})
    await scene.rounds(HOUR, every=290)
    assert await scene.replicas() == 0
    assert set(servers.asked) == {"llama-1-0"}


async def test_the_process_says_what_it_has_seen_of_requests() -> None:
    servers = Servers()
    scene = await scene_with(servers, watch=True)
    for number in range(2):
        servers.texts["llama-1-0"] = f"vllm:request_success_total {number}\n"
        await scene.round(60)
    (one,) = decode(scene.controller.page().body.decode(), place="p").workloads
    assert one.watched
    assert "pod llama-1-0 has served requests at" in one.requests
    servers.texts.clear()
    await scene.round(60)
    (one,) = decode(scene.controller.page().body.decode(), place="p").workloads
    assert "are not known: connection refused" in one.requests


async def test_a_request_after_the_warning_takes_the_deadline_back() -> None:
    servers = Servers()
    scene = await scene_with(servers, watch=True)
    servers.texts["llama-1-0"] = "vllm:request_success_total 0\n"
    await scene.rounds(240, every=120)
    assert await scene.annotations()
    servers.texts["llama-1-0"] = "vllm:request_success_total 1\n"
    await scene.rounds(0.4 * HOUR, every=120)
    assert (await scene.replicas(), await scene.annotations()) == (1, {})


@pytest.mark.parametrize("servers", [Servers(), None], ids=["it does not answer", "nobody can ask"])
async def test_what_is_not_known_is_never_stopped(servers: Servers | None) -> None:
    scene = await scene_with(servers, watch=True)
    await scene.rounds(2 * HOUR, every=290)
    assert (await scene.replicas(), await scene.annotations()) == (1, {})


async def test_an_annotation_that_is_taken_off_ends_the_watching() -> None:
    scene = await scene_with(Servers(), watch=True)
    await scene.round()
    assert (await scene.annotations()) == {}
    off = {"metadata": {"annotations": {"prometheus.io/scrape": None}}}
    await scene.api.patch(PODS, "llama-1-0", off, namespace="team-a")
    await scene.rounds(0.5 * HOUR, every=290)
    assert await scene.replicas() == 0


async def test_nobody_is_asked_unless_the_policy_says_so() -> None:
    servers = Servers()
    scene = await scene_with(servers)
    await scene.rounds(0.5 * HOUR, every=290)
    assert await scene.replicas() == 0
    assert not servers.asked
