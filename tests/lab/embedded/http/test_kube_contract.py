"""The API client over HTTP to the embedded server keeps the same contract as to the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kgpu.kube.client import connect
from kgpu.kube.port import KubeApi
from tests.kube.contract import Contract, Place, StrictContract, TryingContract
from tests.lab.embedded.served import Server


class TestEmbeddedServer(Contract, TryingContract, StrictContract):
    @pytest.fixture
    async def api(self, server: Server) -> AsyncIterator[KubeApi]:
        api = connect(str(server.kubeconfig))
        yield api
        await api.close()

    @pytest.fixture
    def place(self, prefix: str) -> Place:
        return Place("default", prefix)
