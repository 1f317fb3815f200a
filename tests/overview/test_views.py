"""What a viewer is sent: what has changed since what it has, whatever it has missed."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.base.service import running
from kgpu.overview.access import LocalViewer
from kgpu.overview.gather import ClusterGatherer
from kgpu.overview.markup import Markup
from kgpu.overview.model import OverviewQuery
from kgpu.overview.port import FakeWorld
from kgpu.overview.views import MOST_VIEWERS, LiveView, LiveViews
from kgpu.top.run import NodeWatch
from kgpu.top.source import FakeSource
from tests.overview.making import gpu, node


def view_of(*states: dict[str, str]) -> LiveView:
    view = LiveView()
    for state in states:
        view.put({name: Markup(html) for name, html in state.items()})
    return view


def test_only_what_has_changed_is_sent() -> None:
    view = view_of({"a": "A1", "b": "B1"})
    first = view.stamp
    view.put({"a": Markup("A1"), "b": Markup("B2")})
    second = view.stamp
    view.put({"a": Markup("A3"), "b": Markup("B2")})
    assert view.since(second) == f"event: parts\nid: {view.stamp}\ndata: A3\n\n".encode()
    assert view.since(first) == f"event: parts\nid: {view.stamp}\ndata: A3\ndata: B2\n\n".encode()
    assert view.since(view.stamp) == b""


def test_a_state_that_is_the_same_is_none() -> None:
    view = view_of({"a": "A"})
    before = view.stamp
    view.put({"a": Markup("A")})
    assert view.stamp == before


@pytest.mark.parametrize("stamp", ["", "x-1", "-", "{name}-", "{name}-x", "{name}--1", "{name}-²", "{name}-0"])
def test_a_state_that_is_not_known_is_sent_all(stamp) -> None:
    view = view_of({"a": "A1"}, {"a": "A2", "b": "B"})
    sent = view.since(stamp.replace("{name}", view.stamp.partition("-")[0]))
    assert sent == f"event: page\nid: {view.stamp}\ndata: A2\ndata: B\n\n".encode()


def test_where_parts_come_or_go_all_is_sent() -> None:
    view = view_of({"a": "A", "b": "B"})
    before = view.stamp
    view.put({"a": Markup("A")})
    assert view.since(before).startswith(b"event: page\n")
    before = view.stamp
    view.put({"a": Markup("A2")})
    assert view.since(before).startswith(b"event: parts\n")


ME = LocalViewer(FakeWorld())


def live(source: FakeSource) -> tuple[ClusterGatherer, LiveViews]:
    gatherer = ClusterGatherer(NodeWatch(source), FakeWorld())
    return gatherer, LiveViews(gatherer)


async def test_a_stream_begins_with_what_is_missing_and_goes_on_with_what_changes() -> None:
    source = FakeSource({"a": node("a", gpu("a", 0))})
    gatherer, views = live(source)
    async with running(gather=gatherer.run(), views=views.run()):
        stream = views.stream(OverviewQuery(), ME, "")
        assert await anext(stream) == b"retry: 3000\n\n"
        assert (await anext(stream)).startswith(b"event: page\n")
        source.nodes["a"] = node("a", gpu("a", 0, "ml/late"))
        gatherer.hurry()
        async with asyncio.timeout(60):
            while b"ml/late" not in await anext(stream):
                pass
        assert views.viewers == 1
        await stream.aclose()
        assert views.viewers == 0


async def test_views_that_nobody_looks_at_are_forgotten() -> None:
    gatherer, views = live(FakeSource({}))
    kept = views.stream(OverviewQuery(node="kept"), ME, "")
    for _ in range(2):
        await anext(kept)
    stamp = (await views.view(OverviewQuery(node="kept"), ME)).stamp
    old = (await views.view(OverviewQuery(node="old"), ME)).stamp
    for number in range(2 * MOST_VIEWERS + 1):
        await views.view(OverviewQuery(node=f"n{number}"), ME)
    assert (await views.view(OverviewQuery(node="kept"), ME)).stamp == stamp
    assert (await views.view(OverviewQuery(node="old"), ME)).stamp != old
    await kept.aclose()
    assert gatherer.paused is False


async def test_there_is_room_for_some_viewers() -> None:
    _, views = live(FakeSource({}))
    streams = [views.stream(OverviewQuery(), ME, "") for _ in range(MOST_VIEWERS)]
    for stream in streams:
        assert not views.full_for(ME)
        await anext(stream)
    assert views.full_for(ME)
    for stream in streams:
        await stream.aclose()
    assert not views.full_for(ME)
