"""The scheduler against an API in memory: it binds, explains, preempts, waits for news, and gives nothing twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from kgpu.kube.fake import FakeApi
from kgpu.kube.port import EVENTS, NODES, PODS
from kgpu.lab.embedded.scheduler.run import Scheduler, enough_of
from tests.fit.generate import GPU, Object


def node(name: str, gpus: int = 8, **spec: object) -> Object:
    sizes = {"cpu": "16", "memory": "64Gi", "pods": "110", GPU: str(gpus)}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {"allocatable": sizes, "capacity": sizes},
    }


def pod(name: str, gpus: int = 1, *, priority: int = 0, **spec: object) -> Object:
    container = {"name": "c", "image": "x", "resources": {"limits": {GPU: gpus}}}
    spec = {"containers": [container], "priority": priority, "terminationGracePeriodSeconds": 0, **spec}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": {}}


class Place:
    def __init__(self, api: FakeApi) -> None:
        self.api = api

    async def get(self, name: str) -> Object:
        found = await self.api.get(PODS, name, namespace="default")
        assert found is not None
        return found

    async def node_of(self, name: str) -> str:
        return (await self.get(name))["spec"].get("nodeName", "")

    async def condition(self, name: str) -> Object:
        conditions = (await self.get(name)).get("status", {}).get("conditions") or ()
        return next((one for one in conditions if one["type"] == "PodScheduled"), {})

    async def events(self, name: str) -> list[tuple[str, str, str]]:
        found = (await self.api.list(EVENTS, namespace="default")).items
        return [
            (one["type"], one["reason"], one["message"])
            for one in found
            if one["involvedObject"]["name"] == name and one["source"]["component"] == "default-scheduler"
        ]

    async def until(self, ask: Callable[[], object]) -> None:
        async with asyncio.timeout(300):
            while not await ask():  # type: ignore[misc]  # noqa: ASYNC110 - it is another task that changes it
                await asyncio.sleep(0.01)

    async def bound(self, name: str) -> str:
        await self.until(lambda: self.node_of(name))
        return await self.node_of(name)

    async def refused(self, name: str) -> str:
        async def asked() -> bool:
            return bool(await self.condition(name)) and bool(await self.events(name))

        await self.until(asked)
        return str((await self.condition(name))["message"])


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    api = FakeApi()
    scheduler = Scheduler(api, dice=random.Random(1))
    task = asyncio.create_task(scheduler.run())
    yield Place(api)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_pod_that_fits_is_bound_and_told(place: Place):
    place.api.put(NODES, node("a"))
    place.api.put(PODS, pod("p"))
    assert await place.bound("p") == "a"
    await place.until(lambda: place.events("p"))
    assert await place.events("p") == [("Normal", "Scheduled", "Successfully assigned default/p to a")]


async def test_a_pod_that_fits_nowhere_is_told_why_in_condition_and_event(place: Place):
    place.api.put(NODES, node("a", 2))
    place.api.put(NODES, node("b", unschedulable=True))
    await asyncio.sleep(0)
    place.api.put(PODS, pod("p", 4))
    message = await place.refused("p")
    assert message == (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable. no new claims to "
        "deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )
    assert (await place.condition("p"))["reason"] == "Unschedulable"
    assert ("Warning", "FailedScheduling", message) in await place.events("p")


async def test_without_nodes_the_pod_waits_for_the_first(place: Place):
    place.api.put(PODS, pod("p"))
    assert await place.refused("p") == "no nodes available to schedule pods"
    place.api.put(NODES, node("a"))
    assert await place.bound("p") == "a"


async def test_nothing_is_given_twice(place: Place):
    place.api.put(NODES, node("a", 4))
    place.api.put(NODES, node("b", 4))
    for index in range(12):
        place.api.put(PODS, pod(f"p{index}"))

    async def eight() -> bool:
        return len(await holders()) == 8

    async def holders() -> list[str]:
        return [node for item in (await place.api.list(PODS)).items if (node := item["spec"].get("nodeName"))]

    await place.until(eight)
    for index in range(12):
        if not await place.node_of(f"p{index}"):
            await place.refused(f"p{index}")
    assert sorted(await holders()) == ["a"] * 4 + ["b"] * 4


async def test_a_refused_binding_costs_a_pause_and_no_room(place: Place):
    place.api.put(NODES, node("a", 1))
    place.api.refuse[("create", "pods")] = 500
    place.api.put(PODS, pod("p"))
    await place.until(lambda: place.events("p"))
    assert (await place.events("p"))[0][1] == "FailedScheduling"
    place.api.refuse.clear()
    assert await place.bound("p") == "a"


async def test_room_is_made_for_a_pod_of_higher_priority(place: Place):
    place.api.put(NODES, node("a", 2))
    for name, priority in (("low", 0), ("middle", 5)):
        place.api.put(PODS, pod(name, priority=priority))
        await place.bound(name)
    place.api.put(PODS, pod("high", priority=10))
    assert await place.bound("high") == "a"
    assert await place.api.get(PODS, "low", namespace="default") is None
    assert await place.node_of("middle") == "a"

    async def told() -> bool:
        return [event[1] for event in await place.events("low")][-1] == "Preempted"

    await place.until(told)


async def test_other_schedulers_pods_and_gated_ones_are_left_alone(place: Place):
    place.api.put(NODES, node("a"))
    place.api.put(PODS, pod("other", schedulerName="kai-scheduler"))
    place.api.put(PODS, pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
    place.api.put(PODS, pod("p"))
    await place.bound("p")
    assert [await place.node_of("other"), await place.node_of("gated")] == ["", ""]
    change = {"spec": {"schedulingGates": []}}
    await place.api.patch(PODS, "gated", change, namespace="default")
    assert await place.bound("gated") == "a"


@pytest.mark.parametrize(("nodes", "wanted"), [(0, 1), (7, 7), (99, 99), (100, 100), (1000, 420), (10000, 500)])
def test_large_clusters_are_not_searched_to_the_end(nodes, wanted):
    assert enough_of(nodes) == wanted
