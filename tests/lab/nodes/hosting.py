"""A host of light nodes in this process, on an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from kgpu.formats.names import GPU_RESOURCE
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import LEASES, NODES, Object
from kgpu.lab.nodes import objects, spec
from kgpu.lab.nodes.host import NodeHost
from kgpu.lab.nodes.spec import NodeSpec
from tests.lab.nodes.support import until


def light(name: str, **fields: object) -> NodeSpec:
    """A light node of two GPUs."""
    return NodeSpec(**{"name": name, "profile": "hgx-h100", "gpus": 2, "light": True, **fields})


def write(folder: Path, *nodes: NodeSpec) -> None:
    """Put them into the lab's folder."""
    for one in nodes:
        spec.save(folder / "nodes" / one.name, one)


@contextlib.asynccontextmanager
async def hosting(folder: Path, api: FakeApi) -> AsyncIterator[NodeHost]:
    """A host that ends as a killed one does."""
    (folder / "kubeconfig").touch()
    host = NodeHost(folder / "nodes", api, folder / "kubeconfig", address="127.0.0.1", ca=b"", mode="plain")
    task = asyncio.create_task(host.run())
    try:
        yield host
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def node(api: FakeApi, name: str) -> Object | None:
    """The Node as the API server has it."""
    found = api._objects.get((NODES, "", name))
    return None if found is None else found.shown()


def lease(api: FakeApi, name: str) -> Object | None:
    """The node's Lease."""
    found = api._objects.get((LEASES, objects.LEASE_NAMESPACE, name))
    return None if found is None else found.shown()


def allocatable(api: FakeApi, name: str) -> str:
    """The node's GPUs as the API server has them; "" without the node."""
    found = node(api, name)
    return "" if found is None else found["status"]["allocatable"].get(GPU_RESOURCE, "0")


async def ready(api: FakeApi, *names: str, gpus: int = 2) -> None:
    """Return when the nodes offer their GPUs and have leases."""
    await until(
        lambda: all(allocatable(api, name) == str(gpus) and lease(api, name) for name in names),
        lambda: str({name: allocatable(api, name) for name in names}),
    )
