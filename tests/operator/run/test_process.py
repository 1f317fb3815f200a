"""The process around the loop: its pages, its figures, the Deployment that it is of."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from asyncio import to_thread

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kgpu.base import http
from kgpu.base.http import Address
from kgpu.kube import kinds
from kgpu.kube.port import PODS
from kgpu.manager.run import Options
from kgpu.operator.metrics import OPERATOR_ERROR, OperatorFigures
from kgpu.operator.run import own_deployment
from tests.operator.run.support import cluster, running
from tests.operator.world import NAMESPACE


async def page(address: Address, path: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    return await to_thread(read)


async def test_pages_say_what_it_does() -> None:
    api = cluster(nodes=2)
    async with running(api, settle_first=False) as run:
        run.manager.options = Options(
            lease_namespace=NAMESPACE, elect=False, metrics=Address("127.0.0.1", 0), health=Address("127.0.0.1", 0)
        )
        while "health" not in run.manager.addresses:
            await run.clock.advance(0.01)
        await run.settled()
        health, metrics = run.manager.addresses["health"], run.manager.addresses["metrics"]
        assert await page(health, "/healthz") == "ok\n"
        assert await page(health, "/readyz") == "ready\n"
        status = json.loads(await page(health, "/statusz"))
        assert (status["leads"], status["problem"], status["unread"], status["settled"]) == (True, "", [], True)
        assert status["writes"]["Node"] == 2
        families = {one.name: one for one in text_string_to_metric_families(await page(metrics, "/metrics"))}
        assert families["gpu_operator_gpu_nodes_total"].samples[0].value == 2
        assert families["gpu_operator_reconciliation"].samples[0].value >= 1
        writes = {one.labels["kind"]: one.value for one in families["kgpu_operator_writes"].samples}
        assert writes["Node"] == 2


async def test_the_page_that_says_all_is_for_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_host", lambda _: "10.0.0.1")
    async with running(cluster(), settle_first=False) as run:
        run.manager.options = Options(
            lease_namespace=NAMESPACE, elect=False, metrics=Address("127.0.0.1", 0), health=Address("127.0.0.1", 0)
        )
        while "health" not in run.manager.addresses:
            await run.clock.advance(0.01)
        health = run.manager.addresses["health"]
        assert await page(health, "/healthz") == "ok\n"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            await page(health, "/statusz")


def test_figures_of_good_and_bad_passes() -> None:
    figures = OperatorFigures(now=lambda: 1000.0)
    figures.passed({"gpu_operator_reconciliation_status": 1.0, "gpu_nodes_total": 2.5})
    assert (figures.passes, figures.failed, figures.last_success) == (1, 0, 1000.0)
    figures.broke()
    assert (figures.passes, figures.failed) == (2, 1)
    lines = figures.text().splitlines()
    assert f"gpu_operator_reconciliation_status {int(OPERATOR_ERROR)}" in lines
    assert "gpu_operator_gpu_nodes_total 2.5" in lines
    assert "gpu_operator_reconciliation_last_success_ts_seconds 1000" in lines


async def test_the_deployment_that_the_operators_pod_is_of() -> None:
    api = cluster()
    owner = {"kind": "ReplicaSet", "name": "op-1", "uid": "r", "controller": True}
    api.put(PODS, {"metadata": {"name": "op-1-x", "namespace": NAMESPACE, "ownerReferences": [owner]}})
    assert await own_deployment(api, NAMESPACE, "op-1-x") is None
    above = {"kind": "Deployment", "name": "op", "uid": "d", "controller": True}
    api.put(kinds.REPLICA_SETS, {"metadata": {"name": "op-1", "namespace": NAMESPACE, "ownerReferences": [above]}})
    wanted = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "op", "uid": "d"}
    assert await own_deployment(api, NAMESPACE, "op-1-x") == wanted
    assert await own_deployment(api, NAMESPACE, "nobody") is None
