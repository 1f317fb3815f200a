"""A cluster for the controllers: the fake API with generations and creation times, and a stand-in for the kubelets."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime as dt
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest

from kgpu.kube.fake import FakeApi, FakeObject
from kgpu.kube.port import (
    EVENTS,
    NODES,
    PODS,
    Change,
    KubeApi,
    KubeRefusedError,
    Object,
    Resource,
    name_of,
    namespace_of,
)
from kgpu.lab.embedded.controllers.daemonset_plan import target_node
from kgpu.lab.embedded.controllers.kinds import NAMESPACES
from kgpu.lab.embedded.controllers.run import run

T = TypeVar("T")


class Api(FakeApi):
    """With what the controllers rely on: metadata.generation and metadata.creationTimestamp."""

    def __init__(self) -> None:
        super().__init__()
        self._specs: dict[str, Any] = {}

    async def patch(
        self, resource: Resource, name: str, change: Object, *, subresource: str = "", **options: Any
    ) -> Object:
        """A status update takes annotations too, as the real one's Deployments do."""
        if subresource == "status" and "metadata" in change:
            made = await super().patch(resource, name, {"metadata": change["metadata"]}, **options)
            change = {"status": change.get("status") or made.get("status") or {}}
        return await super().patch(resource, name, change, subresource=subresource, **options)

    def _write(self, resource: Resource, stored: FakeObject, change: Change) -> Object:
        metadata = stored.obj.setdefault("metadata", {})
        metadata.setdefault("creationTimestamp", stamp())
        super_uid = metadata.get("uid")
        spec = copy.deepcopy(stored.obj.get("spec"))
        if super_uid is None or self._specs.get(super_uid) != spec:
            metadata["generation"] = metadata.get("generation", 0) + 1
        shown = super()._write(resource, stored, change)
        self._specs[stored.obj["metadata"]["uid"]] = spec
        return shown


def stamp(seconds: float = 0) -> str:
    return (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def until(condition: Callable[[], T], what: str = "it", deadline: float = 300.0) -> T:
    """The first true value of ``condition``; the deadline only ends a wait that would never end."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline
    while not (found := condition()):
        if loop.time() > end:
            pytest.fail(f"waited {deadline:.0f} s for {what}")
        await asyncio.sleep(0.01)
    return found


class World:
    """The API, and what is in it, as the tests look at it."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.behave: Callable[[Object], Object | None] = running

    def all(self, resource: Resource, namespace: str = "") -> list[Object]:
        return [
            stored.obj
            for (kind, _, _), stored in self.api._objects.items()
            if kind == resource and namespace in ("", namespace_of(stored.obj))
        ]

    def get(self, resource: Resource, name: str, namespace: str = "default") -> Object | None:
        stored = self.api._objects.get((resource, namespace if resource.namespaced else "", name))
        return stored.obj if stored else None

    def events(self, reason: str = "") -> list[tuple[str, str, str]]:
        return [
            (one["involvedObject"]["name"], one["reason"], one["message"])
            for one in self.all(EVENTS)
            if reason in ("", one["reason"])
        ]

    async def kubelets(self) -> None:
        """Give every pod a node and let it be as ``behave`` says; end what is deleted."""
        while True:
            for pod in list(self.all(PODS)):
                with contextlib.suppress(KubeRefusedError):  # it went in the meantime
                    await self._tend(pod)
            await asyncio.sleep(0.01)

    async def _tend(self, pod: Object) -> None:
        name, key = name_of(pod), {"namespace": namespace_of(pod)}
        if pod["metadata"].get("deletionTimestamp"):
            if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                await self.api.patch(PODS, name, {"status": {"phase": "Failed"}}, subresource="status", **key)
            await self.api.delete(PODS, name, grace=0, **key)
            return
        if not pod["spec"].get("nodeName"):
            await self.api.patch(PODS, name, {"spec": {"nodeName": target_node(pod) or "n1"}}, **key)
        wanted = self.behave(pod)
        if wanted is not None and pod.get("status") != wanted:
            await self.api.patch(PODS, name, {"status": wanted}, subresource="status", **key)


def running(pod: Object) -> Object | None:
    if pod.get("status", {}).get("phase") == "Running":
        return None
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp()}
    return {"phase": "Running", "conditions": [ready]}


def ended(phase: str, code: int = 0) -> Callable[[Object], Object | None]:
    """A kubelet whose pods end at once."""

    def behave(pod: Object) -> Object | None:
        if pod.get("status", {}).get("phase") == phase:
            return None
        state = {"terminated": {"exitCode": code, "finishedAt": stamp()}}
        return {"phase": phase, "containerStatuses": [{"name": "c", "state": state, "restartCount": 0}]}

    return behave


def template(**spec: Any) -> Object:
    return {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "one"}], **spec},
    }


def workload(name: str = "web", **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template(), **spec},
    }


@contextlib.asynccontextmanager
async def controllers(api: KubeApi, *more: Any, **options: Any) -> AsyncIterator[None]:
    """All controllers, and the coroutines beside them, while in the block."""
    tasks = [asyncio.create_task(one) for one in (run(api, **options), *more)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World(Api())
    world.api.put(
        NAMESPACES,
        {"metadata": {"name": "default"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}},
    )
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}
    world.api.put(NODES, {"metadata": {"name": "n1"}, "spec": {}, "status": {"conditions": [ready]}})
    async with controllers(world.api, world.kubelets()):
        yield world
