"""Several readers of one watch: one list and one watch for all, and news only of what each of them keeps."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.base.clock import VirtualClock, settle
from kgpu.kube.fake import FakeApi
from kgpu.kube.informer import Scope
from kgpu.kube.port import CONFIG_MAPS, Object
from kgpu.kube.shared_informer import SharedInformer


def config_map(**data: str) -> Object:
    return {"metadata": {"name": "a", "namespace": "n"}, "data": data}


def keeping(key: str) -> object:
    return lambda obj: {"metadata": obj["metadata"], "value": obj["data"].get(key)}


async def test_one_watch_serves_all_and_each_hears_of_its_own() -> None:
    api = FakeApi()
    api.put(CONFIG_MAPS, config_map(x="1", y="1"))
    shared = SharedInformer(api, Scope(CONFIG_MAPS, "n"), clock=VirtualClock())
    first, second = shared.view(keeping("x")), shared.view(keeping("y"))  # type: ignore[arg-type]
    tasks = [asyncio.create_task(view.run()) for view in (first, second)]
    try:
        await asyncio.wait_for(second.synced.wait(), 60)
        await settle(20)
        before = first.revision, second.revision
        api.put(CONFIG_MAPS, config_map(x="1", y="2"))
        await settle(50)
        assert (first.objects["n", "a"]["value"], second.objects["n", "a"]["value"]) == ("1", "2")
        assert (first.revision, second.revision) == (before[0], before[1] + 1)
        await second.learn(api.put(CONFIG_MAPS, config_map(x="3", y="2")))
        assert first.objects["n", "a"]["value"] == "3", "what one has learned, all know"
        assert [call[0] for call in api.calls if call[0] in {"list", "watch"}] == ["list", "watch"]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_it_goes_on_while_anybody_follows_and_ends_with_the_last() -> None:
    api = FakeApi()
    shared = SharedInformer(api, Scope(CONFIG_MAPS, "n"), clock=VirtualClock())
    views = [shared.view(keeping("x")) for _ in range(2)]  # type: ignore[arg-type]
    tasks = [asyncio.create_task(view.run()) for view in views]
    await asyncio.wait_for(views[0].synced.wait(), 60)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    api.put(CONFIG_MAPS, config_map(x="1"))
    await settle(50)
    assert views[1].objects["n", "a"]["value"] == "1"
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "watch configmaps"]


async def test_a_defect_of_a_projection_ends_all_who_follow() -> None:
    api = FakeApi()
    api.put(CONFIG_MAPS, config_map(x="1"))

    def broken(obj: Object) -> Object:
        raise ZeroDivisionError

    shared = SharedInformer(api, Scope(CONFIG_MAPS, "n"), clock=VirtualClock())
    views = [shared.view(broken), shared.view(keeping("x"))]  # type: ignore[arg-type]
    for view in views:
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(view.run(), 60)


async def test_a_view_that_comes_too_late_is_refused() -> None:
    shared = SharedInformer(FakeApi(), Scope(CONFIG_MAPS, "n"), clock=VirtualClock())
    task = asyncio.create_task(shared.view(keeping("x")).run())  # type: ignore[arg-type]
    await settle(5)
    with pytest.raises(RuntimeError):
        shared.view(keeping("y"))  # type: ignore[arg-type]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
