"""The API client against the real API server keeps the same contract as the fake."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kgpu.kube.client import connect
from kgpu.kube.port import CONFIG_MAPS, KubeApi
from tests.kube.contract import Contract, Place, StrictContract, TryingContract
from tests.lab.real.conftest import Cluster


class TestRealApiServer(Contract, TryingContract, StrictContract):
    @pytest.fixture
    async def api(self, cluster: Cluster) -> AsyncIterator[KubeApi]:
        api = connect(str(cluster.lab.kubeconfig))
        yield api
        await api.close()

    @pytest.fixture
    async def place(self, api: KubeApi, prefix: str) -> AsyncIterator[Place]:
        yield Place("default", prefix)
        for item in (await api.list(CONFIG_MAPS, namespace="default")).items:
            if item["metadata"]["name"].startswith(prefix):
                await api.delete(CONFIG_MAPS, item["metadata"]["name"], namespace="default")
