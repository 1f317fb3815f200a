"""The embedded controllers against kube-controller-manager: the same story, the same Events, conditions and counts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import pytest

from kgpu.base.errors import LabError
from kgpu.kube.port import Object, Resource
from tests.lab.embedded.controllers import story, story_batch
from tests.lab.embedded.controllers.test_on_the_embedded_api import embedded

from .conftest import Cluster

Tell: TypeAlias = Callable[[Any], Awaitable[story.Look]]

NAMESPACE = "controllers-story"


class Real:
    """The story's namespace on the real cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def _kubectl(self, *words: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self._cluster.lab.kubectl, "-n", NAMESPACE, *words, stdin=stdin)

    async def create(self, resource: Resource, obj: Object) -> None:
        what = {"apiVersion": resource.api_version, "kind": resource.kind}
        await self._kubectl("create", "-f", "-", stdin=json.dumps({**what, **obj}))

    async def patch(self, resource: Resource, name: str, change: Object) -> None:
        await self._kubectl("patch", resource.plural, name, "--type=merge", "-p", json.dumps(change))

    async def set_status(self, resource: Resource, name: str, status: Object) -> None:
        change = json.dumps({"status": status})
        await self._kubectl("patch", resource.plural, name, "--subresource=status", "--type=merge", "-p", change)

    async def evict(self, pod: str) -> str:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
        try:
            await self._kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
        except LabError as error:
            found = re.search(r"Error from server \(\w+\): (.*)", str(error))
            return found.group(1) if found else str(error)
        return ""

    async def list(self, resource: Resource) -> list[Object]:
        found: list[Object] = json.loads(await self._kubectl("get", resource.plural, "-o", "json"))["items"]
        return found


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[None]:
    cluster.lab.kubectl("create", "namespace", NAMESPACE)
    yield
    cluster.lab.kubectl("delete", "namespace", NAMESPACE)


@pytest.mark.parametrize("tell", [story.tell, story_batch.tell], ids=["workloads", "batch"])
async def test_both_tell_the_same(cluster: Cluster, namespace: None, tell: Tell):
    look_there = await tell(Real(cluster))
    async with embedded() as backend:
        look_here = await tell(backend)
        for _ in range(60):
            real, ours = [json.loads(json.dumps(await look())) for look in (look_there, look_here)]
            if all(ours[subject] == facts for subject, facts in real.items()):
                return
            await asyncio.sleep(0.5)  # the last Events may be still to come, on either
    for subject, facts in real.items():
        assert ours[subject] == facts, subject
