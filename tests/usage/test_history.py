"""A cluster's history: fetched from agents by cursors, stored once, rolled up, and served as agents serve theirs."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Advice
from kgpu.base.clock import settle
from kgpu.base.errors import ConfigError
from kgpu.base.http import AwaitedPage, Request
from kgpu.formats import names
from kgpu.formats.usage import RecordedGpu, RecordedNode, RecordingError, RecordingHeader, encode
from kgpu.formats.usage_now import (
    LINES_PATH,
    NOW_PATH,
    LinesPage,
    UsageAnswerError,
    UsageNow,
    decode,
    decode_page,
    encode_page,
)
from kgpu.formats.usage_now import encode as encode_now
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import PODS
from kgpu.usage.agents import UsageAgents
from kgpu.usage.history import UsageHistory, recorded_in
from kgpu.usage.listening import UsageListener
from kgpu.usage.recording import parse
from kgpu.usage.rollup import rolled_up
from kgpu.usage.segments import timeline
from kgpu.usage.store import DAY_SECONDS, UsageStore
from tests.budget import tries
from tests.usage.recordings import Device, holder

NAMESPACE = "gpu-operator"


class PagedApi(FakeApi):
    """An API server whose pods' pages are functions of path and query."""

    def __init__(self) -> None:
        super().__init__()
        self.stores: dict[str, UsageStore] = {}
        self.answers: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []

    def agent(self, node: str, store: UsageStore | None = None, *, app: str = names.AGENT_DAEMON_SET) -> None:
        pod = f"{app}-{node}"
        self.put(
            PODS,
            {
                "metadata": {"name": pod, "namespace": NAMESPACE, "labels": {"app": app}}, "spec": {"nodeName": node},
                "status": {"phase": "Running", "podIP": "10.0.0.1"},
            },
        )  # fmt: skip
        if store is not None:
            self.stores[pod] = store

    async def pod_page(self, namespace: str, pod: str, port: int, path: str, **how: Any) -> str:
        assert (namespace, port) == (NAMESPACE, names.USAGE_PORT)
        query = how.get("query") or {}
        self.asked.append((pod, path))
        if pod in self.answers:
            return self.answers[pod]
        if path == NOW_PATH:
            now = UsageNow(
                version=1, node=pod.removeprefix("kgpu-agent-"), at=dt.datetime.now(dt.UTC), boot="b", uptime_us=1
            )
            return encode_now(now).decode()
        page = self.stores[pod].page(query.get("after", ""), most=1500)
        return encode_page(
            LinesPage(version=1, cursor=page.cursor, more=page.more, labels=("team",)), page.lines
        ).decode()


def lines_of(node: str = "n1", count: int = 10) -> list[RecordedGpu]:
    device = Device(node=node)
    for _ in range(count):
        device.spend(300, holder())
    return device.lines


def opened(path: Path, **how: Any) -> UsageStore:
    store = UsageStore(path, **{"days": 400, "max_bytes": 64 << 20, **how})
    store.open()
    return store


def stored(store: UsageStore) -> list[bytes]:
    return list(store.page("").lines)


@pytest.fixture
def api() -> PagedApi:
    return PagedApi()


async def test_every_line_is_stored_once_whatever_is_restarted(api: PagedApi, tmp_path: Path) -> None:
    agent = opened(tmp_path / "a")
    api.agent("n1", agent)
    lines = lines_of(count=30)
    agent.save(lines[:20])
    agents = UsageAgents(api, namespace=NAMESPACE, direct=False)
    for part in (lines[20:25], lines[25:], ()):
        store = opened(tmp_path / "h")  # as after a restart
        await UsageHistory(agents, store, report=lambda _: None, now=lambda: 0.0).round(await agents.find())
        agent.save(part)
    store = opened(tmp_path / "h")
    await UsageHistory(agents, store, report=lambda _: None, now=lambda: 0.0).round(await agents.find())
    assert stored(store) == [encode(line) for line in lines]


async def test_an_agent_speaks_for_its_own_node_alone(api: PagedApi, tmp_path: Path) -> None:
    agent = opened(tmp_path / "a")
    agent.save(lines_of("another"))
    api.agent("n1", agent)
    agents = UsageAgents(api, namespace=NAMESPACE, direct=False)
    store = opened(tmp_path / "h")
    await UsageHistory(agents, store, report=lambda _: None, now=lambda: 0.0).round(await agents.find())
    assert stored(store) == []
    assert "not about n1" in agents.silent["n1"]


@pytest.mark.parametrize(
    "answer", ["", "{}", "<html>", '{"kind":"kgpu-usage-page","version":9,"cursor":"x"}', "[" * 5000, "\x00"]
)
async def test_nonsense_costs_an_agent_its_own_lines_only(api: PagedApi, tmp_path: Path, answer: str) -> None:
    good = opened(tmp_path / "a")
    good.save(lines_of("n2"))
    api.agent("n1")
    api.answers["kgpu-agent-n1"] = answer
    api.agent("n2", good)
    agents = UsageAgents(api, namespace=NAMESPACE, direct=False)
    store = opened(tmp_path / "h")
    await UsageHistory(agents, store, report=lambda _: None, now=lambda: 0.0).round(await agents.find())
    assert len(stored(store)) == 11
    assert set(agents.silent) == {"n1"}


async def test_only_pods_of_kgpus_namespace_are_asked(api: PagedApi) -> None:
    api.put(PODS, {"metadata": {"name": "fake", "namespace": "tenant", "labels": {"app": names.AGENT_DAEMON_SET}},
                   "spec": {"nodeName": "n1"}, "status": {"phase": "Running", "podIP": "10.0.0.9"}})  # fmt: skip
    assert await UsageAgents(api, namespace=NAMESPACE, direct=False).find() == ()


async def test_usage_is_read_from_the_history_where_there_is_one_else_from_agents(
    api: PagedApi, tmp_path: Path
) -> None:
    for node in ("n1", "n2"):
        store = opened(tmp_path / node)
        store.save([RecordedNode(node=node, at=dt.datetime.now(dt.UTC)), *lines_of(node)])
        api.agent(node, store)
    agents = UsageAgents(api, namespace=NAMESPACE, direct=False)
    from_agents = await recorded_in(agents)
    assert {line.node for line in from_agents.devices} == {"n1", "n2"}
    assert from_agents.labels == ("team",)
    history = opened(tmp_path / "h")
    await UsageHistory(agents, history, report=lambda _: None, now=lambda: 0.0).round(await agents.find())
    api.agent("n1", history, app=names.USAGE_DEPLOYMENT)
    api.asked.clear()
    from_history = await recorded_in(agents)
    assert sorted(map(encode, from_history.devices)) == sorted(map(encode, from_agents.devices))
    assert {pod for pod, _ in api.asked} == {f"{names.USAGE_DEPLOYMENT}-n1"}


async def test_where_nothing_records_it_is_said_what_to_do(api: PagedApi) -> None:
    with pytest.raises(ConfigError, match=r"usage\.enabled"):
        await recorded_in(UsageAgents(api, namespace=NAMESPACE, direct=False))


async def test_agents_that_have_written_nothing_yet_are_waited_for(api: PagedApi, tmp_path: Path) -> None:
    api.agent("n1", opened(tmp_path / "a"))
    with pytest.raises(ConfigError, match="nothing is recorded yet") as refused:
        await recorded_in(UsageAgents(api, namespace=NAMESPACE, direct=False))
    assert "ask again in a few minutes" in refused.value.remedy


async def test_who_does_not_answer_is_told_beside_what_the_others_have(api: PagedApi, tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    store.save(lines_of())
    api.agent("n1", store)
    api.agent("n2")
    api.answers["kgpu-agent-n2"] = "nonsense"
    found = await recorded_in(UsageAgents(api, namespace=NAMESPACE, direct=False))
    assert [(one.reason, one.subject) for one in found.advice] == [("UsageNotRead", "n2")]


async def test_the_listener_knows_each_node_and_forgets_those_that_are_gone(api: PagedApi) -> None:
    told: list[Advice] = []
    listener = UsageListener(UsageAgents(api, namespace=NAMESPACE, direct=False), seconds=3600.0, report=told.append)
    assert listener.missing() == ("the agents",)
    api.agent("n1")
    api.agent("n2")
    await listener.once()
    assert set(listener.heard.by_node) == {"n1", "n2"}
    await api.delete(PODS, "kgpu-agent-n2", namespace=NAMESPACE, grace=0)
    api.answers["kgpu-agent-n1"] = "nonsense"
    await listener.once()
    assert set(listener.heard.by_node) == {"n1"}
    assert 'kgpu_usage_agents{answered="false"} 1' in listener.metrics()
    api.set_down(True)
    await listener.once()
    await listener.once()
    assert [one.reason for one in told] == ["UsageNotRead"]


async def test_who_judges_is_woken_by_what_agents_have_just_said_also_where_nobody_could_be_asked(
    api: PagedApi,
) -> None:
    """Each by a clock of its own, what is judged could be a minute old, which is too old to be called idle."""
    listener = UsageListener(UsageAgents(api, namespace=NAMESPACE, direct=False), seconds=3600.0, report=lambda _: None)
    api.agent("n1")
    heard: list[int] = []

    async def judge() -> None:
        for _ in range(2):
            await listener.asked_again()
            heard.append(len(listener.heard.by_node))

    judging = asyncio.create_task(judge())
    await settle()
    assert heard == []
    await listener.once()
    await settle()
    assert heard == [1]
    api.set_down(True)
    await listener.once()
    await judging
    assert heard == [1, 1]


def test_an_hours_lines_become_one_and_sums_stay(tmp_path: Path) -> None:
    store = opened(tmp_path / "h")
    lines = lines_of(count=12 * 30)
    store.save(lines)
    before = parse([encode(RecordingHeader(version=1)), *stored_all(store)], source="test")
    first = int(lines[0].at.timestamp())
    while store.roll_up(first + 20 * 3600):
        pass
    left = stored_all(store)
    assert len(left) < 12 * 11 + 25
    after = parse([encode(RecordingHeader(version=1)), *left], source="test")
    assert held(after) == held(before)
    assert store.page(f"{store.name}:{len(lines)}").lines == (), "cursors go on"


def stored_all(store: UsageStore) -> list[bytes]:
    lines: list[bytes] = []
    page = store.page("")
    lines += page.lines
    while page.more:
        page = store.page(page.cursor)
        lines += page.lines
    return lines


def held(recording: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for segments in timeline(recording).devices.values():
        for segment in segments:
            for use in segment.holders:
                found[use.holder.pod] = found.get(use.holder.pod, 0) + use.held_us
            found["all"] = found.get("all", 0) + segment.length_us
    return found


@tries(60)
@given(
    st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.integers(1, 900), st.booleans()), min_size=2, max_size=12)
)
def test_rolling_up_loses_no_holders_time(steps: list[tuple[set[str], int, bool]]) -> None:
    device = Device()
    for names_held, seconds, parted in steps:
        device.partitions = (("m1", "3g.20gb"),) if parted else ()
        device.counters = {
            key: sums for key, sums in device.counters.items() if key[0].removeprefix("uid-") in names_held
        }
        device.spend(seconds, *(holder(name) for name in sorted(names_held)))
    header = encode(RecordingHeader(version=1))
    whole = parse([header, *map(encode, device.lines)], source="test")
    rolled = parse([header, *map(encode, rolled_up(device.lines))], source="test")
    assert held(rolled) == held(whole)


def test_a_full_file_loses_its_oldest_lines(tmp_path: Path) -> None:
    store = opened(tmp_path / "h", max_bytes=1 << 20)
    lines = lines_of(count=400)
    for _ in range(12):
        store.save(lines)
    left = stored_all(store)
    assert left[-1] == encode(lines[-1])
    assert 400 <= len(left) < 12 * 400


def test_lines_that_are_too_old_go(tmp_path: Path) -> None:
    store = opened(tmp_path / "h", days=1)
    old, new = lines_of(count=60), lines_of(count=60)
    new = [msgspec.structs.replace(line, at=line.at + dt.timedelta(days=3)) for line in new]
    store.save(old)
    store.save(new)
    store.save([msgspec.structs.replace(new[-1], at=new[-1].at + dt.timedelta(seconds=DAY_SECONDS // 12))])
    assert [line for line in stored_all(store) if line in set(map(encode, old))] == []


async def test_the_page_has_what_agents_pages_have(api: PagedApi, tmp_path: Path) -> None:
    store = opened(tmp_path / "h")
    store.save(lines_of())
    history = UsageHistory(
        UsageAgents(api, namespace=NAMESPACE, direct=False), store, report=lambda _: None, now=lambda: 0.0
    )
    page = history.pages()[LINES_PATH]
    assert isinstance(page, AwaitedPage)
    answer = await page.page(Request("GET", LINES_PATH, query="after="))
    assert isinstance(answer.body, bytes)
    about, lines = decode_page(answer.body.decode(), place="test")
    assert len(lines) == 11
    assert not about.more


@tries(200)
@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda raw: raw.decode("latin-1"))))
def test_any_answer_is_read_or_refused(text: str) -> None:
    for read in (lambda: decode(text, place="x"), lambda: decode_page(text, place="x", node="n1")):
        with contextlib.suppress(UsageAnswerError, RecordingError):
            read()
