"""Statuses and ``kgpu status`` on the embedded API: it takes every status that is written, and reads give the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kgpu.formats import agent_report, names
from kgpu.formats.crd.definitions import crds
from kgpu.kube import kinds
from kgpu.kube.port import NODES, PODS, Object, Resource, name_of
from kgpu.operator import conditions
from kgpu.operator.cluster_reading import read_cluster
from kgpu.operator.overview import Overview, overview
from kgpu.operator.plan import plan
from tests.lab.embedded.support import Whole, whole
from tests.operator.test_breakages import CASES
from tests.operator.world import FEATURES, NAMESPACE, PCI, SETTINGS, report

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
NOW = "2026-01-01T00:00:00Z"
SPEC: Object = {
    **{section: {} for section in ("operator", "daemonsets", "toolkit", "devicePlugin", "gfd", "nodeStatusExporter")},
    **{section: {"enabled": False} for section in ("driver", "dcgm", "dcgmExporter")},
}


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Whole]:
    async with whole(tmp_path) as found:
        for crd in crds():
            await found.api.create(CRDS, crd)
        await found.create(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await found.node("n1", **FEATURES, **{PCI: "true", "kubernetes.io/os": "linux"})
        await found.until(lambda: found.core.kinds.stored("nvidia.com", "clusterpolicies"), "the CRD")
        await found.api.create(kinds.CLUSTER_POLICIES, {"metadata": {"name": "cluster-policy"}, "spec": SPEC})
        yield found


async def write(found: Whole, status: Object) -> Object:
    body = {"metadata": {"name": "cluster-policy"}, "status": conditions.stamp(status, NOW)}
    return await found.api.apply(kinds.CLUSTER_POLICIES, body, manager="kgpu-operator-status", subresource="status")


async def seen(found: Whole) -> Overview:
    looked = await read_cluster(found.api)
    return overview(looked.observed, looked.settings)


async def carry_out(found: Whole) -> None:
    """What the operator and its agents would do, with everything well."""
    looked = await read_cluster(found.api)
    made = plan(looked.observed, SETTINGS)
    account = {"metadata": {"name": names.AGENT_DAEMON_SET, "namespace": NAMESPACE}}
    await found.api.apply(kinds.SERVICE_ACCOUNTS, account, manager="chart")
    for one in made.objects:
        resource = kinds.resource_of(one)
        assert resource is not None
        await found.api.apply(resource, one, manager=names.OPERATOR_FIELD_MANAGER)
    for change in made.nodes:
        metadata = {"name": change.name, "labels": dict(change.labels)}
        await found.api.apply(NODES, {"metadata": metadata}, manager=names.OPERATOR_FIELD_MANAGER)

    async def pods() -> list[Object]:
        return list((await found.api.list(PODS, namespace=NAMESPACE)).items)

    for pod in await found.until(pods, "the agent's pod"):
        well = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await found.api.patch(PODS, name_of(pod), well, namespace=NAMESPACE, subresource="status")
    said = {names.ROLES_ANNOTATION: agent_report.encode(report(1, gpus=2))}
    await found.api.patch(NODES, "n1", {"metadata": {"annotations": said}})
    node = await found.api.get(NODES, "n1")
    assert node is not None
    validated = {"type": names.VALIDATED_CONDITION, "status": "True", "reason": "Validated", "message": "2 GPUs"}
    every = [*node["status"]["conditions"], {**validated, "lastTransitionTime": NOW, "lastHeartbeatTime": NOW}]
    await found.api.patch(NODES, "n1", {"status": {"conditions": every}}, subresource="status")
    await write(found, plan((await read_cluster(found.api)).observed, SETTINGS).policy_status["cluster-policy"])


async def test_a_new_cluster_is_not_ready(embedded: Whole) -> None:
    assert (await seen(embedded)).ready is False


async def test_a_cluster_in_which_everything_has_been_done_is_ready(embedded: Whole) -> None:
    await carry_out(embedded)
    found = await seen(embedded)
    assert (found.ready, found.headline) == (True, "ClusterPolicy cluster-policy is ready: 1 GPU node, all validated")


async def test_once_all_is_done_nothing_is_planned(embedded: Whole) -> None:
    await carry_out(embedded)
    assert plan((await read_cluster(embedded.api)).observed, SETTINGS).nodes == ()


async def test_the_api_server_takes_the_status_of_every_breakage(embedded: Whole) -> None:
    statuses = [plan(make().observed, SETTINGS).policy_status["cluster-policy"] for make in CASES]
    wanted = [conditions.stamp(status, NOW) for status in statuses]
    assert [(await write(embedded, status))["status"] for status in wanted] == wanted
