"""The node's configuration follows the label and the ConfigMap, and survives both being wrong or away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from kgpu.base.clock import VirtualClock
from kgpu.formats.config_choice import ConfigText, Fallback
from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL
from kgpu.kube.fake import FakeApi
from kgpu.kube.node_config import NodeConfigSource
from kgpu.kube.port import CONFIG_MAPS, NODES, Object

NODE = "gpu-1"


def node(label: str = "") -> Object:
    labels = {DEVICE_PLUGIN_CONFIG_LABEL: label} if label else {"other": "x"}
    return {"metadata": {"name": NODE, "labels": labels}, "status": {"images": ["big"] * 100}}


def config_map(**texts: str) -> Object:
    return {"metadata": {"name": "configs", "namespace": "gpu"}, "data": texts}


@contextlib.asynccontextmanager
async def source(
    api: FakeApi, *, default: str = "", fallbacks: Sequence[Fallback] = (), clock: VirtualClock | None = None
) -> AsyncIterator[NodeConfigSource]:
    found = NodeConfigSource(
        api, node=NODE, namespace="gpu", config_map="configs", default=default, fallbacks=fallbacks,
        clock=clock or VirtualClock(),
    )  # fmt: skip
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def soon(found: NodeConfigSource, after: ConfigText | None) -> ConfigText:
    return await asyncio.wait_for(found.next(after), 60)


async def test_label_change_and_text_change_are_both_news() -> None:
    api = FakeApi()
    api.put(NODES, node("a100"))
    api.put(CONFIG_MAPS, config_map(a100="replicas: 2", t4="replicas: 4"))
    async with source(api) as found:
        first = await soon(found, None)
        assert first == ConfigText(name="ConfigMap gpu/configs, a100", text="replicas: 2")
        api.put(NODES, node("t4"))
        second = await soon(found, first)
        assert second.text == "replicas: 4"
        api.put(CONFIG_MAPS, config_map(a100="replicas: 2", t4="replicas: 8"))
        assert (await soon(found, second)).text == "replicas: 8"


async def test_nothing_is_chosen_before_both_are_known() -> None:
    api = FakeApi()
    api.put(NODES, node("t4"))
    api.put(CONFIG_MAPS, config_map(default="d", t4="t"))
    api.refuse["list", "nodes"] = 403
    clock = VirtualClock()
    async with source(api, fallbacks=[Fallback.NAMED], clock=clock) as found:
        waiter = asyncio.create_task(found.next(None))
        for _ in range(20):
            await clock.advance(0.1)
        assert not waiter.done()
        assert found.error is not None
        del api.refuse["list", "nodes"]
        while not waiter.done():
            await clock.advance(1)
        assert (await waiter).text == "t"


async def test_a_missing_key_is_a_problem_that_ends_when_it_appears() -> None:
    api = FakeApi()
    api.put(NODES, node("a10"))
    api.put(CONFIG_MAPS, config_map(a100="x"))
    async with source(api, default="a100", fallbacks=[Fallback.SINGLE]) as found:
        first = await soon(found, None)
        assert first.problem is not None
        assert '"a10"' in first.problem.what
        assert 'did you mean "a100"' in first.problem.what
        api.put(CONFIG_MAPS, config_map(a100="x", a10="y"))
        assert (await soon(found, first)).text == "y"


async def test_a_missing_config_map_is_a_problem_that_ends_when_it_appears() -> None:
    api = FakeApi()
    api.put(NODES, node())
    async with source(api, default="only") as found:
        first = await soon(found, None)
        assert first.problem is not None
        assert "gpu/configs does not exist" in first.problem.what
        api.put(CONFIG_MAPS, config_map(only="x"))
        second = await soon(found, first)
        assert second.text == "x"
        await api.delete(CONFIG_MAPS, "configs", namespace="gpu")
        assert (await soon(found, second)).problem is not None


async def test_unrelated_changes_are_no_news() -> None:
    api = FakeApi()
    api.put(NODES, node("a"))
    api.put(CONFIG_MAPS, config_map(a="x"))
    async with source(api) as found:
        first = await soon(found, None)
        waiter = asyncio.create_task(found.next(first))
        other = node("a")
        other["metadata"]["labels"]["unrelated"] = "y"
        api.put(NODES, other)
        api.put(CONFIG_MAPS, config_map(a="x", b="new"))
        api.set_down(True)
        for _ in range(200):
            await asyncio.sleep(0)
        assert not waiter.done()
        waiter.cancel()


async def test_several_may_wait() -> None:
    api = FakeApi()
    api.put(NODES, node("a"))
    api.put(CONFIG_MAPS, config_map(a="1"))
    async with source(api) as found:
        first = await soon(found, None)
        waiters = [asyncio.create_task(soon(found, first)) for _ in range(3)]
        await asyncio.sleep(0)
        api.put(CONFIG_MAPS, config_map(a="2"))
        assert {news.text for news in await asyncio.gather(*waiters)} == {"2"}
