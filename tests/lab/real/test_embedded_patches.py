"""Random histories of writes on the real server and on the embedded API's functions: same objects, same owners."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.lab.real.server import ApiServerConnection
from tests.budget import count
from tests.lab.real.conftest import Cluster, until
from tests.lab.real.patch_play import History
from tests.lab.real.patch_subjects import GROUP, SUBJECTS, WIDGET_CRD

NAMESPACE = "patches"
SEQUENCES = 80  # of each kind
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[ApiServerConnection]:
    made = ApiServerConnection(cluster.lab.kubeconfig)
    made("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    made("POST", CRDS, WIDGET_CRD)
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    until(lambda: made("GET", account)[0] == 200, "the namespace's service account")
    until(lambda: established(made), "the custom kind")
    yield made
    made("DELETE", f"{CRDS}/widgets.{GROUP}")
    made("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
    made.close()


def established(server: ApiServerConnection) -> bool:
    status, crd = server("GET", f"{CRDS}/widgets.{GROUP}")
    conditions: list[dict[str, Any]] = (crd.get("status", {}).get("conditions") or []) if status == 200 else []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


@pytest.mark.parametrize("kind", SUBJECTS)
def test_histories_of_several_managers(server: ApiServerConnection, kind: str) -> None:
    steps = 0
    start = count(0, int(time.time()) % 1_000_000 * 100)  # in deep runs other seeds each time; the complaint has it
    for seed in range(start, start + SEQUENCES):
        history = History(server, SUBJECTS[kind], NAMESPACE, seed)
        history.run()
        steps += history.steps
    assert steps > 4 * SEQUENCES
