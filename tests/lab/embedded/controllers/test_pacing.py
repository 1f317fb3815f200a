"""Turns are given one a round of the loop, first come, first served, also when some of those who wait are gone."""

from __future__ import annotations

import asyncio

from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, Change
from kgpu.lab.embedded.controllers.pacing import PacedApi, take_turn


async def test_between_two_turns_the_loop_goes_round():
    order: list[str] = []

    async def worker(name: str) -> None:
        await take_turn()
        order.append(name)

    async def other() -> None:
        for _ in range(6):
            order.append(".")
            await asyncio.sleep(0)

    await asyncio.gather(*(worker(name) for name in "abc"), other())
    letters = [one for one in order if one != "."]
    assert letters == ["a", "b", "c"]
    text = "".join(order)
    assert "ab" not in text
    assert "bc" not in text


async def test_who_gave_up_waiting_costs_nobody_a_turn():
    done: list[str] = []

    async def worker(name: str) -> None:
        await take_turn()
        done.append(name)

    tasks = [asyncio.create_task(worker(name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == ["a", "c"]


async def test_a_paced_watch_says_the_same_and_ends_with_its_reader():
    fake = FakeApi()
    api = PacedApi(fake)
    for index in range(50):
        await api.create(CONFIG_MAPS, {"metadata": {"name": f"m{index}", "namespace": "default"}})
    seen: list[str] = []
    watch = api.watch(CONFIG_MAPS, "0")
    async with asyncio.timeout(60):
        async for event in watch:
            if event.change is Change.ADDED:
                seen.append(event.object["metadata"]["name"])
            if len(seen) == 50:
                break
    await watch.aclose()  # type: ignore[attr-defined]
    assert seen == [f"m{index}" for index in range(50)]
