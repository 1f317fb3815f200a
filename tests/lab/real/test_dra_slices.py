"""What a node publishes for DRA on the real API server, whose alpha gates are off: it drops taints and counters."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from kgpu.dra.api import served_api
from kgpu.hw.verdicts import GpuVerdict
from kgpu.kube.client import Client, connect
from kgpu.kube.port import NODES
from tests.dra.live import live
from tests.dra.samples import h100
from tests.lab.real.conftest import Cluster


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Client]:
    api = connect(str(cluster.lab.kubeconfig))
    yield api
    await api.close()


async def test_a_server_without_the_gates_gets_only_what_is_safe(api: Client) -> None:
    node = f"dra-{uuid.uuid4().hex[:8]}"
    await api.create(NODES, {"metadata": {"name": node}})
    try:
        async with live(api, await served_api(api), node, h100(3), dynamic=True) as it:
            found = await it.until(lambda found: sorted(found) == ["gpu-0", "gpu-1", "gpu-2"])
            assert not any(found.values())
            sick = h100(3).accelerators[1].uuid
            it.verdicts.put(GpuVerdict(uuid=sick, withdraws=True, causes=("xid:79",)))
            await it.until(lambda found: sorted(found) == ["gpu-0", "gpu-2"])
            it.verdicts.put()
            await it.until(lambda found: sorted(found) == ["gpu-0", "gpu-1", "gpu-2"])
            assert sorted(one.reason for one in it.told) == ["FieldsDropped", "FieldsDropped"]
    finally:
        await api.delete(NODES, node)
