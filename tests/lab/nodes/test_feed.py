"""A feed tells every change once, in whatever way the API server goes away and comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, Change, Object
from kgpu.lab.nodes import feed as feed_module
from kgpu.lab.nodes.feed import ObjectFeed
from tests.lab.nodes.support import until


class Heard:
    """What a feed told, and the world that follows from it."""

    def __init__(self) -> None:
        self.changes: list[tuple[Change, str]] = []
        self.there: dict[str, str] = {}

    def __call__(self, change: Change, obj: Object) -> None:
        name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
        self.changes.append((change, name))
        if change is Change.DELETED:
            assert self.there.pop(name) == uid
        else:
            assert (change is Change.ADDED) == (name not in self.there)
            self.there[name] = uid


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "_POLICY", feed_module.BackoffPolicy(first=0.01, cap=0.02))


@contextlib.asynccontextmanager
async def following(api: FakeApi, **options: Any) -> AsyncIterator[tuple[ObjectFeed, Heard]]:
    heard = Heard()
    feed = ObjectFeed(api, CONFIG_MAPS, heard, **options)
    task = asyncio.create_task(feed.run())
    try:
        await feed.synced.wait()
        yield feed, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


async def test_what_was_there_and_what_happens() -> None:
    api = FakeApi()
    api.put(CONFIG_MAPS, config_map("a"))
    async with following(api) as (feed, heard):
        assert heard.changes == [(Change.ADDED, "a")]
        api.put(CONFIG_MAPS, config_map("b"))
        api.put(CONFIG_MAPS, config_map("a", x="1"))
        await api.delete(CONFIG_MAPS, "b", namespace="default")
        await until(lambda: len(heard.changes) == 4)
        assert heard.changes[1:] == [(Change.ADDED, "b"), (Change.MODIFIED, "a"), (Change.DELETED, "b")]
        assert feed.objects["default", "a"]["data"] == {"x": "1"}


async def test_an_outage_is_told_and_nothing_is_lost_or_told_twice() -> None:
    api = FakeApi()
    api.put(CONFIG_MAPS, config_map("a"))
    async with following(api) as (feed, heard):
        api.set_down(True)
        await until(lambda: bool(feed.away))
        api.put(CONFIG_MAPS, config_map("b"))
        api.set_down(False)
        await until(lambda: "b" in heard.there)
        assert not feed.away
        assert heard.changes == [(Change.ADDED, "a"), (Change.ADDED, "b")]


async def test_a_forgotten_version_is_told_as_the_difference() -> None:
    api = FakeApi()
    for name in ("stays", "changes", "goes", "again"):
        api.put(CONFIG_MAPS, config_map(name))
    async with following(api) as (_, heard):
        api.set_down(True)
        del heard.changes[:]
        for name in ("goes", "again"):
            api._objects.pop((CONFIG_MAPS, "default", name))
        api.put(CONFIG_MAPS, config_map("again"))
        api.put(CONFIG_MAPS, config_map("changes", x="1"))
        api.put(CONFIG_MAPS, config_map("comes"))
        api.expire()
        api.set_down(False)
        await until(lambda: "comes" in heard.there)
        assert sorted(heard.changes) == sorted(
            [
                (Change.DELETED, "goes"),
                (Change.MODIFIED, "changes"),
                (Change.DELETED, "again"),
                (Change.ADDED, "again"),
                (Change.ADDED, "comes"),
            ]
        )


async def test_only_what_is_to_be_kept_is_kept() -> None:
    api = FakeApi()

    def keep(obj: Object) -> Object:
        return {"metadata": {key: obj["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}}

    async with following(api, keep=keep) as (feed, heard):
        api.put(CONFIG_MAPS, config_map("a", x="1"))
        await until(lambda: bool(heard.changes))
        assert "data" not in feed.objects["default", "a"]
