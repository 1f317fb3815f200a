"""The real API server, where a definition is older than the operator."""

from __future__ import annotations

from kgpu.kube.client import connect
from tests.lab.real.conftest import Cluster
from tests.operator.older_definition import the_rest_is_written


async def test_what_it_declares_is_written(cluster: Cluster) -> None:
    api = connect(str(cluster.lab.kubeconfig))
    try:
        await the_rest_is_written(api, "older.kgpu.test")
    finally:
        await api.close()
