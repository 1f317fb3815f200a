"""What goes wrong stays where it is: a controller that dies starts again, an odd object troubles nobody else."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.supervise import RoleHandle
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, PODS, KubeRefusedError, Object, Resource
from kgpu.lab.embedded.controllers.job import JobController
from kgpu.lab.embedded.controllers.kinds import CRON_JOBS, DEPLOYMENTS, JOBS, REPLICA_SETS, SERVICE_ACCOUNTS
from kgpu.lab.embedded.controllers.replicaset import ReplicaSetController
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.lab.embedded.scheduler.run import Scheduler
from tests.lab.embedded.support import Whole, whole

from .conftest import World, until, workload


async def ready(lab: Whole) -> None:
    await lab.until(lambda: lab.get(SERVICE_ACCOUNTS, "default"))


def pods_of(world: World, app: str = "web") -> list[Object]:
    return [pod for pod in world.all(PODS) if pod["metadata"]["labels"].get("app") == app]


async def test_a_controller_that_dies_starts_again_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    deaths = []
    run = JobController.run

    async def dying(self: JobController, handle: RoleHandle) -> None:
        if len(deaths) < 2:
            deaths.append(1)
            raise RuntimeError("injected")
        await run(self, handle)

    monkeypatch.setattr(JobController, "run", dying)
    async with whole(tmp_path, "controllers") as lab:
        await ready(lab)
        await lab.create(DEPLOYMENTS, workload(replicas=2))
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
        await lab.create(JOBS, {"metadata": {"name": "job"}, "spec": {"template": template}})

        async def made() -> bool:
            owners = sorted(one["metadata"]["ownerReferences"][0]["kind"] for one in await lab.all(PODS))
            return owners == ["Job", "ReplicaSet", "ReplicaSet"]

        await lab.until(made, "pods of both")
    assert len(deaths) == 2


async def test_a_sync_that_always_fails_takes_no_other_object_along(world: World, monkeypatch: pytest.MonkeyPatch):
    sync = ReplicaSetController.sync

    async def failing(self: ReplicaSetController, key: tuple[str, str]) -> Any:
        if key[1].startswith("bad"):
            raise ValueError("injected")
        return await sync(self, key)

    monkeypatch.setattr(ReplicaSetController, "sync", failing)
    await world.api.create(REPLICA_SETS, workload("bad", replicas=1))
    for index in range(5):
        await world.api.create(REPLICA_SETS, workload(f"good{index}", replicas=1))
    await until(lambda: len({pod["metadata"]["ownerReferences"][0]["name"] for pod in pods_of(world)}) == 5)


async def test_an_api_that_refuses_now_and_then_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dice = random.Random(7)

    def unreliable(method: str) -> None:
        real = getattr(LocalApi, method)

        async def call(self: LocalApi, *words: Any, **options: Any) -> Any:
            if self._manager != "test" and dice.random() < 0.3:
                code, reason = dice.choice([(409, "Conflict"), (500, "InternalError"), (404, "NotFound")])
                raise KubeRefusedError("refused", "luck", "try again", code=code, reason=reason)
            return await real(self, *words, **options)

        monkeypatch.setattr(LocalApi, method, call)

    for method in ("create", "patch", "delete"):
        unreliable(method)
    async with whole(tmp_path) as lab:
        await ready(lab)
        await lab.node("a")
        await lab.create(DEPLOYMENTS, workload(replicas=5))

        async def five() -> bool:
            found = await lab.all(PODS)
            return len(found) == 5 and all(pod["spec"].get("nodeName") for pod in found)

        await lab.until(five, "five pods on the node")


ODD: list[tuple[Resource, Object]] = [
    (REPLICA_SETS, {"spec": None}),
    (REPLICA_SETS, {"spec": {"replicas": "many", "selector": [], "template": 7}}),
    (DEPLOYMENTS, {"spec": {"replicas": 1, "selector": {"matchLabels": None}, "template": None, "strategy": "x"}}),
    (JOBS, {"spec": {"completions": "x", "template": {"spec": None}}, "status": {"conditions": [None]}}),
    (JOBS, {"spec": {"template": {}}, "status": {"uncountedTerminatedPods": 5, "completedIndexes": "9-1,x"}}),
    (CRON_JOBS, {"spec": {"schedule": "rubbish"}, "status": {"active": [{}]}}),
    (CRON_JOBS, {"spec": {"schedule": "@every 999999999h"}, "status": {"lastScheduleTime": "0001-01-01T00:00:00Z"}}),
    (PODS, {"spec": {"containers": None, "affinity": 3, "tolerations": {}}, "status": {"conditions": "x"}}),
    (PODS, {"spec": {}, "status": None}),
    (NODES, {"spec": {"taints": "x"}, "status": {"allocatable": {"cpu": "lots"}, "conditions": [{}]}}),
]


@pytest.mark.parametrize(("resource", "odd"), ODD)
async def test_an_object_that_makes_no_sense_troubles_nobody_else(world: World, resource: Resource, odd: Object):
    namespace = {"namespace": "default"} if resource.namespaced else {}
    world.api.put(resource, {"metadata": {"name": "odd", "labels": {}, **namespace}, **odd})
    await world.api.create(DEPLOYMENTS, workload(replicas=2))
    await until(lambda: len(pods_of(world)) == 2, "two pods")
    await world.api.create(JOBS, workload("fine", completions=1))
    owner = "fine"
    await until(lambda: [pod for pod in pods_of(world) if pod["metadata"]["ownerReferences"][0]["name"] == owner])


@pytest.mark.parametrize(("resource", "odd"), [row for row in ODD if row[0] in (PODS, NODES)])
async def test_nor_does_it_trouble_the_scheduler(resource: Resource, odd: Object):
    api = FakeApi()
    namespace = {"namespace": "default"} if resource.namespaced else {}
    api.put(resource, {"kind": resource.kind, "metadata": {"name": "odd", **namespace}, **odd})
    sizes = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    api.put(NODES, {"kind": "Node", "metadata": {"name": "fine"}, "spec": {}, "status": {"allocatable": sizes}})
    task = asyncio.create_task(Scheduler(api).run())
    try:
        await asyncio.sleep(0)
        pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "status": {}}
        api.put(PODS, {**pod, "spec": {"containers": [{"name": "c", "image": "x"}]}})
        await until(lambda: api._objects[PODS, "default", "p"].obj["spec"].get("nodeName") == "fine", "a node")
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_while_many_pods_are_made_the_loop_goes_round_often(tmp_path: Path):
    """Counted in rounds, not in time: between a few writes and the next ones everybody else has a turn."""
    async with whole(tmp_path) as lab:
        await ready(lab)
        for index in range(20):
            await lab.node(f"n{index}")
        written = [lab.core.store.revision]

        async def look() -> None:
            while True:
                await asyncio.sleep(0)
                written.append(lab.core.store.revision)

        looking = asyncio.create_task(look())
        await lab.create(DEPLOYMENTS, workload(replicas=100))

        async def placed() -> bool:
            found = await lab.all(PODS)
            return len(found) == 100 and all(pod["spec"].get("nodeName") for pod in found)

        await lab.until(placed, "100 pods on nodes")
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        assert written[-1] - written[0] > 200, "each pod was made and placed"
        at_once = max(later - sooner for sooner, later in itertools.pairwise(written))
        assert at_once < 20
