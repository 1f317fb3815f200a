"""An informer follows through changes, outages, forgotten history and dropped connections, and never empties; so does
each view of one that is shared.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kgpu.base.clock import VirtualClock, settle
from kgpu.kube.fake import FakeApi
from kgpu.kube.informer import Informer, Scope
from kgpu.kube.port import CONFIG_MAPS, Listing, Object, Resource, Selector
from kgpu.kube.shared_informer import InformerView, SharedInformer

Followed = Informer | InformerView


def config_map(name: str, value: str = "", namespace: str = "n") -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "data": {"value": value}}


async def until(condition: Callable[[], bool], clock: VirtualClock | None = None) -> None:
    """Wait for the condition, moving the virtual clock on meanwhile."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)
            if clock is not None:
                await clock.advance(1)


def whole(obj: Object) -> Object:
    """Everything but what the API server keeps books of."""
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key != "managedFields"}}


class Making:
    """Makes what is tested."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, api: FakeApi, scope: Scope, **more: Any) -> Followed:
        if self.kind == "alone":
            return Informer(api, scope, **more)
        project = more.pop("project", whole)
        shared = SharedInformer(api, scope, **more)
        shared.view(whole)  # somebody who keeps more
        return shared.view(project)


making = Making("alone")


@pytest.fixture(params=["alone", "shared"], autouse=True)
def _made(request: pytest.FixtureRequest) -> None:
    making.kind = request.param


@contextlib.asynccontextmanager
async def following(
    api: FakeApi, scope: Scope | None = None, clock: VirtualClock | None = None
) -> AsyncIterator[Followed]:
    informer = making(api, scope or Scope(CONFIG_MAPS, "n"), clock=clock or VirtualClock())
    task = asyncio.create_task(informer.run())
    try:
        yield informer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def values(informer: Followed) -> dict[str, str]:
    return {name: obj["data"]["value"] for (_, name), obj in informer.objects.items()}


async def test_lists_then_follows_changes_in_scope() -> None:
    api = FakeApi()
    api.put(CONFIG_MAPS, config_map("a", "1"))
    api.put(CONFIG_MAPS, config_map("a", "other", namespace="elsewhere"))
    async with following(api) as informer:
        await informer.synced.wait()
        assert values(informer) == {"a": "1"}
        api.put(CONFIG_MAPS, config_map("a", "2"))
        api.put(CONFIG_MAPS, config_map("b", "1"))
        await until(lambda: values(informer) == {"a": "2", "b": "1"})
        await api.delete(CONFIG_MAPS, "a", namespace="n")
        await until(lambda: values(informer) == {"b": "1"})


async def test_changed_wakes_with_a_new_revision() -> None:
    api = FakeApi()
    async with following(api) as informer:
        await informer.synced.wait()
        revision = informer.revision
        waiter = asyncio.create_task(informer.changed(revision))
        await asyncio.sleep(0)
        api.put(CONFIG_MAPS, config_map("a"))
        assert await asyncio.wait_for(waiter, 60) > revision
        assert await informer.changed(revision) == informer.revision, "a late asker does not wait"


async def test_an_outage_keeps_the_last_state_and_ends_by_itself() -> None:
    api, clock = FakeApi(), VirtualClock()
    api.put(CONFIG_MAPS, config_map("a", "1"))
    async with following(api, clock=clock) as informer:
        await informer.synced.wait()
        api.set_down(True)
        await until(lambda: informer.error is not None, clock)
        assert values(informer) == {"a": "1"}
        api.put(CONFIG_MAPS, config_map("a", "2"))
        api.set_down(False)
        await until(lambda: values(informer) == {"a": "2"}, clock)
        assert informer.error is None


async def test_an_outage_at_the_start_is_waited_for() -> None:
    api, clock = FakeApi(), VirtualClock()
    api.set_down(True)
    async with following(api, clock=clock) as informer:
        await until(lambda: informer.error is not None, clock)
        assert not informer.synced.is_set()
        api.set_down(False)
        await until(informer.synced.is_set, clock)


async def test_forgotten_history_is_listed_anew_and_tells_what_is_gone() -> None:
    api, clock = FakeApi(), VirtualClock()
    api.put(CONFIG_MAPS, config_map("a", "1"))
    api.put(CONFIG_MAPS, config_map("b", "1"))
    async with following(api, clock=clock) as informer:
        await informer.synced.wait()
        api.set_down(True)
        await until(lambda: informer.error is not None, clock)
        api.down = False
        await api.delete(CONFIG_MAPS, "a", namespace="n")
        api.expire()
        await until(lambda: values(informer) == {"b": "1"}, clock)
        lists = [call for call in api.calls if call[0] == "list"]
        assert len(lists) == 2


async def test_a_dropped_connection_goes_on_without_a_new_list() -> None:
    api, clock = FakeApi(), VirtualClock()
    async with following(api, clock=clock) as informer:
        await informer.synced.wait()
        await until(lambda: ("watch", "configmaps", "") in api.calls)
        api.drop_watches()
        api.put(CONFIG_MAPS, config_map("a", "1"))
        await until(lambda: values(informer) == {"a": "1"}, clock)
        assert len([call for call in api.calls if call[0] == "list"]) == 1


async def test_pauses_between_attempts_grow() -> None:
    api, clock = FakeApi(), VirtualClock()
    api.set_down(True)
    async with following(api, clock=clock):
        for _ in range(400):
            await asyncio.sleep(0)
            await clock.advance(0.1)
    attempts = len(api.calls)
    assert 5 <= attempts <= 16, f"{attempts} attempts in 40 seconds"


async def test_selector_and_projection_bound_what_is_kept() -> None:
    api = FakeApi()
    await api.apply(CONFIG_MAPS, config_map("a", "1"), manager="someone")
    api.put(CONFIG_MAPS, config_map("b", "1"))
    async with following(api, Scope(CONFIG_MAPS, "n", Selector.named("a"))) as informer:
        await informer.synced.wait()
        ((key, obj),) = informer.objects.items()
    assert key == ("n", "a")
    assert "managedFields" not in obj["metadata"]
    with pytest.raises(TypeError):
        informer.objects["n", "x"] = {}  # type: ignore[index]


async def test_what_was_learned_is_known_at_once_and_is_no_news_twice() -> None:
    api = FakeApi()
    informer = making(api, Scope(CONFIG_MAPS, "n"))
    task = asyncio.create_task(informer.run())
    try:
        await informer.synced.wait()
        made = api.put(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "n"}, "data": {"x": "1"}})
        before = informer.revision
        await informer.learn(made)
        assert informer.objects["n", "a"]["data"] == {"x": "1"}
        assert informer.revision > before
        newer = api.put(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "n"}, "data": {"x": "2"}})
        await informer.learn(newer)
        await informer.learn(made)
        assert informer.objects["n", "a"]["data"] == {"x": "2"}, "older news does not count"
        await api.delete(CONFIG_MAPS, "a", namespace="n")
        await settle(50)
        assert not informer.objects
        await informer.learn(newer)
        assert not informer.objects, "what the watch has seen end does not come back"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_late_list_does_not_undo_what_was_learned() -> None:
    """The server made it before this process wrote; what it does not have any more is gone all the same."""
    clock = VirtualClock()

    class Late(FakeApi):
        held: Listing | None = None

        async def list(self, resource: Resource, **more: Any) -> Listing:
            listing, self.held = self.held, None
            return listing or await super().list(resource, **more)

    api = Late()
    api.put(CONFIG_MAPS, config_map("a", "1"))
    api.put(CONFIG_MAPS, config_map("gone", "1"))
    async with following(api, clock=clock) as informer:
        await until(informer.synced.is_set)
        late = await FakeApi.list(api, CONFIG_MAPS, namespace="n")
        await informer.learn(api.put(CONFIG_MAPS, config_map("a", "2")))
        await informer.learn(api.put(CONFIG_MAPS, config_map("new", "1")))
        await until(lambda: values(informer) == {"a": "2", "gone": "1", "new": "1"})
        api.held = late
        api.expire()
        api.drop_watches()
        await until(lambda: api.held is None, clock)
        assert values(informer) == {"a": "2", "gone": "1", "new": "1"}
        await api.delete(CONFIG_MAPS, "new", namespace="n")
        await until(lambda: "new" not in values(informer), clock)


async def test_a_change_of_what_is_not_kept_is_kept_and_is_no_news() -> None:
    api, clock = FakeApi(), VirtualClock()
    api.put(CONFIG_MAPS, {**config_map("a", "1"), "heartbeat": 1})
    scope = Scope(CONFIG_MAPS, "n")
    informer = making(api, scope, clock=clock, project=lambda obj: {k: obj[k] for k in ("metadata", "data")})
    task = asyncio.create_task(informer.run())
    try:
        await until(informer.synced.is_set)
        revision, version = informer.revision, informer.objects["n", "a"]["metadata"]["resourceVersion"]
        api.put(CONFIG_MAPS, {**config_map("a", "1"), "heartbeat": 2})
        await until(lambda: informer.objects["n", "a"]["metadata"]["resourceVersion"] != version)
        assert informer.revision == revision
        api.put(CONFIG_MAPS, {**config_map("a", "2"), "heartbeat": 3})
        await until(lambda: values(informer) == {"a": "2"})
        assert informer.revision == revision + 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
