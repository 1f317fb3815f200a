"""A cluster in memory for ``kgpu logs`` and ``kgpu restart``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import DAEMON_SETS
from kgpu.kube.port import PODS
from tests.workloads.making import PLUGIN, daemon_set, pod


class OperandCluster(FakeApi):
    """A device plugin on nodes a and b; a pod that is deleted comes again."""

    def __init__(self) -> None:
        super().__init__()
        for node in ("a", "b"):
            self.put(PODS, pod(PLUGIN, node))
        self.put(DAEMON_SETS, daemon_set())
        self.queries: list[dict[str, str]] = []

    async def pod_log(self, namespace: str, pod: str, query: dict[str, str], **how: int) -> bytes:
        del namespace, how
        self.queries.append(query)
        return f"hello from {pod}\n".encode()

    async def follow_pod_log(self, namespace: str, pod: str, query: dict[str, str]) -> AsyncIterator[bytes]:
        yield await self.pod_log(namespace, pod, query)

    async def delete(self, resource: Any, name: str, *, namespace: str = "", uid: str = "", **how: Any) -> bool:
        gone = await super().delete(resource, name, namespace=namespace, uid=uid, grace=0, **how)
        if resource == PODS:
            self.put(PODS, pod(PLUGIN, name.split("-")[-2], number=len(self.calls)))
        return gone
