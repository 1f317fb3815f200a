"""What a node has been told: labels that were there and are gone are noticed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from kgpu.agent.orders import MEMORY, Orders
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, encode
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, Listing, Resource
from tests.agent.support_auto import NAMESPACE, NODE, eventually


def put(api: FakeApi, **labels: str) -> None:
    api.put(NODES, {"metadata": {"name": NODE, "labels": labels}})


@contextlib.asynccontextmanager
async def followed(api: FakeApi, folder: Path, **given: Any):
    orders = Orders(api, node=NODE, namespace=NAMESPACE, state_dir=folder, decide=lambda _: None, **given)
    task = asyncio.create_task(orders.run())
    try:
        yield orders
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_label_that_is_gone_is_noticed_only_once_it_has_been_there(tmp_path: Path) -> None:
    api = FakeApi()
    put(api, other="1")
    async with followed(api, tmp_path) as orders:
        lost = asyncio.create_task(orders.lost({"mine": "1"}))
        await eventually(lambda: orders.labels == {"other": "1"})
        early = lost.done()
        put(api, other="1", mine="1")
        await eventually(lambda: "mine" in orders.labels)
        there = lost.done()
        put(api, other="1")
        async with asyncio.timeout(60):
            await lost
        assert (early, there) == (False, False)


async def test_nobody_waits_for_the_loss_of_no_labels(tmp_path: Path) -> None:
    api = FakeApi()
    put(api, other="1")
    async with followed(api, tmp_path) as orders:
        lost = asyncio.create_task(orders.lost({}))
        await eventually(lambda: orders.labels)
        put(api)
        await eventually(lambda: not orders.labels)
        lost.cancel()
        await asyncio.wait([lost])
        assert lost.cancelled()


class HalfAway(FakeApi):
    """Lists Nodes, and hangs on everything else."""

    async def list(self, resource: Resource, **given: Any) -> Listing:
        if resource is not NODES:
            await asyncio.Event().wait()
        return await super().list(resource, **given)


async def test_with_the_last_orders_what_is_known_of_the_node_counts(tmp_path: Path) -> None:
    """An order for an operation is on the Node: it has to be known before any role starts."""
    (tmp_path / MEMORY).write_text(json.dumps({"config": encode(AgentConfig(generation=7)), "labels": {}}))
    api = HalfAway()
    annotations = {names.OPERATION_ANNOTATION: "an order", "foreign": "x"}
    api.put(NODES, {"metadata": {"name": NODE, "labels": {}, "annotations": annotations}})
    async with followed(api, tmp_path, patience=0.2) as orders:
        await eventually(lambda: orders.config is not None)
        assert orders.config is not None
        assert orders.config.generation == 7
        assert orders.reports == {names.OPERATION_ANNOTATION: "an order"}
