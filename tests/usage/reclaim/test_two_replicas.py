"""Two processes that both believe to lead, in any interleaving of what they ask and write: an act happens once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.kube.port import KubeRefusedError
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.usage.reclaim.record import ActionState
from tests.usage.reclaim.scene import ADMIN, HOUR, START, Scene, core_with_kinds

CALLS = ("get", "list", "apply", "patch", "create", "delete")


class InterleavedApi:
    """The API server, for one of several processes: before and after each call, the others may go on."""

    def __init__(self, inner: Any, draw: random.Random, stops: list[str]) -> None:
        self.inner = inner
        self.draw = draw
        self.stops = stops

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name not in CALLS:
            return method

        async def call(*args: Any, **more: Any) -> Any:
            await self.others()
            answer = await method(*args, **more)
            if more.get("subresource") == "scale":
                self.stops.append(str(args[1]))
            await self.others()
            return answer

        return call

    async def others(self) -> None:
        for _ in range(self.draw.randint(0, 3)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(12))
async def test_of_two_that_lead_at_once_one_stops_it(seed: int) -> None:
    inner, draw, stops = LocalApi(core_with_kinds(), ADMIN, manager="test"), random.Random(seed), list[str]()
    scene = await Scene(InterleavedApi(inner, draw, stops)).begin()
    receiver = await scene.secret("http://hooks.example.com/a")
    await scene.policy(reclaim={"grace": "5m"}, notify=[receiver], budget={"maxSharePercent": 100})
    await scene.deployment("one", pods=2, idle_since=START - 3 * HOUR)
    await scene.deployment("two", pods=3, idle_since=START - 3 * HOUR)
    both = [scene.again().round(scene.api) for _ in range(2)]
    for _ in range(14):
        scene.now += 60
        scene.clock.at += 60
        for ended in await asyncio.gather(*(one.once() for one in both), return_exceptions=True):
            assert ended is None or (isinstance(ended, KubeRefusedError) and ended.code == 409), ended
    assert sorted(stops) == ["one", "two"]
    assert [await scene.replicas(name) for name in ("one", "two")] == [0, 0]
    assert [(await scene.annotations(name))[names.ORIGINAL_REPLICAS] for name in ("one", "two")] == ["2", "3"]
    acts = [one for one in (await scene.record()).actions if one.state is not ActionState.VOID]
    assert sorted(one.name for one in acts) == ["one", "two"]
    assert {one.state for one in acts} == {ActionState.DONE}
    warned = [body for body in scene.webhook.taken if b"Will be stopped" in body]
    assert warned, "nobody is stopped without a message"
