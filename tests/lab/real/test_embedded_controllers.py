"""The embedded controllers against kube-controller-manager: the same story, the same Events, conditions and counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from lab.embedded.controllers.story import tell
from lab.embedded.controllers.test_on_the_embedded_api import embedded

from kgpu.kube.port import Object, Resource

from .conftest import Cluster

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

    async def list(self, resource: Resource) -> list[Object]:
        found: list[Object] = json.loads(await self._kubectl("get", resource.plural, "-o", "json"))["items"]
        return found


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[None]:
    cluster.lab.kubectl("create", "namespace", NAMESPACE)
    yield
    cluster.lab.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


async def test_both_tell_the_same(cluster: Cluster, namespace: None):
    real: dict[str, Any] = await tell(Real(cluster))
    async with embedded() as backend:
        ours = await tell(backend)
    for subject, facts in real.items():
        assert json.loads(json.dumps(ours[subject])) == json.loads(json.dumps(facts)), subject
