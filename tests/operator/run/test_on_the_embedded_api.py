"""The operator on the embedded API, with its validation, defaults and garbage collection, in process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.formats.crd.definitions import crds
from kgpu.kube import kinds
from kgpu.kube.port import CONFIG_MAPS, EVENTS, NODES, PODS, Object, Resource, name_of
from kgpu.manager.run import ManagerProcess, Options
from kgpu.operator.cleanup import clean_up
from kgpu.operator.model import NodeLayout, OperatorSettings
from kgpu.operator.run import OperatorController
from tests.lab.embedded.support import Whole, whole
from tests.operator import older_definition
from tests.operator.world import FEATURES, NAMESPACE, PCI

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
SPEC: Object = {
    "operator": {}, "daemonsets": {}, "driver": {"enabled": False}, "toolkit": {}, "devicePlugin": {},
    "dcgm": {"enabled": False}, "dcgmExporter": {"enabled": False}, "gfd": {}, "nodeStatusExporter": {},
}  # fmt: skip


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Whole]:
    async with whole(tmp_path, "controllers") as found:
        for crd in crds():
            await found.api.create(CRDS, crd)
        await found.create(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for name in ("n1", "n2"):
            await found.node(name, **FEATURES, **{PCI: "true", "kubernetes.io/os": "linux"})
        account = {"metadata": {"name": "kgpu-agent", "namespace": NAMESPACE}}
        await found.api.create(kinds.SERVICE_ACCOUNTS, account)
        await found.until(lambda: found.core.kinds.stored("nvidia.com", "clusterpolicies"), "the CRD")
        yield found


@contextlib.asynccontextmanager
async def operator(found: Whole, **settings: Any) -> AsyncIterator[OperatorController]:
    told = OperatorSettings(namespace=NAMESPACE, image="kgpu:test", **settings)
    one = OperatorController(found.api, told, leave_seconds=1.0)
    manager = ManagerProcess(found.api, [one], Options(lease_namespace=NAMESPACE, identity="test"))
    task = asyncio.create_task(manager.run())
    try:
        yield one
    finally:
        manager.stop.set()
        await task


async def policy(found: Whole, **changes: Any) -> None:
    await found.api.create(
        kinds.CLUSTER_POLICIES, {"metadata": {"name": "cluster-policy"}, "spec": {**SPEC, **changes}}
    )


async def labels(found: Whole, name: str) -> dict[str, str]:
    node = await found.api.get(NODES, name)
    assert node is not None
    return dict(node["metadata"]["labels"])


async def operators(found: Whole) -> set[tuple[str, str]]:
    """What carries the operator's label, in all kinds."""
    listings = {resource: await found.api.list(resource) for resource in kinds.MANAGED if served(found, resource)}
    return {
        (resource.kind, name_of(obj))
        for resource, listing in listings.items()
        for obj in listing.items
        if names.LABEL_OPERATOR_STATE in (obj["metadata"].get("labels") or {})
    }


def served(found: Whole, resource: Resource) -> bool:
    return found.core.kinds.stored(resource.group, resource.plural) is not None


@pytest.mark.parametrize("layout", list(NodeLayout))
async def test_install_drift_and_deletion(embedded: Whole, layout: NodeLayout) -> None:
    before = {name: await labels(embedded, name) for name in ("n1", "n2")}
    async with operator(embedded, layout=layout) as one:
        await policy(embedded)
        operand = names.AGENT_DAEMON_SET if layout is NodeLayout.AGENT else "nvidia-device-plugin-daemonset"
        await embedded.until(lambda: embedded.get(kinds.DAEMON_SETS, operand, NAMESPACE), operand)
        await embedded.until(one.settled.is_set, "rest")
        assert one.last is not None
        assert await operators(embedded) == {(obj["kind"], obj["metadata"]["name"]) for obj in one.last.objects}
        for name in before:
            assert (await labels(embedded, name))[names.LABEL_GPU_PRESENT] == "true"
        status = embedded.get(kinds.CLUSTER_POLICIES, "cluster-policy")
        assert status is not None
        assert status["status"]["namespace"] == NAMESPACE

        change = {"spec": {"template": {"spec": {"priorityClassName": "none"}}}}
        await embedded.api.patch(kinds.DAEMON_SETS, operand, change, namespace=NAMESPACE)

        def put_back() -> bool:
            live = embedded.get(kinds.DAEMON_SETS, operand, NAMESPACE)
            return live is not None and live["spec"]["template"]["spec"]["priorityClassName"] != "none"

        await embedded.until(put_back, "the drift to be put back")

        async def quiet() -> bool:
            await embedded.until(one.settled.is_set, "rest")
            wrote = one.figures.writes
            one.watching.news.set()
            await asyncio.sleep(0.3)
            return one.figures.writes == wrote

        # Controllers of the cluster may still be at work on what was applied; once they are done, nothing is written.
        await embedded.until(quiet, "a look at the same cluster that writes nothing")

        await embedded.api.delete(kinds.CLUSTER_POLICIES, "cluster-policy")

        async def clean() -> bool:
            return await operators(embedded) == set() and {n: await labels(embedded, n) for n in before} == before

        await embedded.until(clean, "everything to go")


async def test_cleanup_while_nobody_else_works(embedded: Whole) -> None:
    before = {name: await labels(embedded, name) for name in ("n1", "n2")}
    async with operator(embedded) as one:
        await policy(embedded)
        await embedded.until(lambda: embedded.get(kinds.DAEMON_SETS, names.AGENT_DAEMON_SET, NAMESPACE), "the agents")
        await embedded.until(one.settled.is_set, "rest")
    for pod in await embedded.all(PODS):  # nobody runs them, and nobody ends them
        await embedded.api.delete(PODS, name_of(pod), namespace=NAMESPACE, grace=0)
    cleaning = asyncio.create_task(clean_up(embedded.api, NAMESPACE, say=lambda _line: None))

    async def end_pods() -> bool:
        for pod in await embedded.all(PODS):
            await embedded.api.delete(PODS, name_of(pod), namespace=NAMESPACE, grace=0)
        return cleaning.done()

    await embedded.until(end_pods, "the clean-up")
    await cleaning
    assert await operators(embedded) == set()
    assert {name: await labels(embedded, name) for name in before} == before
    listing = await embedded.api.list(CONFIG_MAPS, namespace=NAMESPACE)
    assert [name_of(obj) for obj in listing.items] == ["kube-root-ca.crt"]


async def test_a_users_value_and_a_stolen_label(embedded: Whole) -> None:
    key = f"{names.LABEL_DEPLOY_PREFIX}device-plugin"
    async with operator(embedded) as one:
        await policy(embedded)
        await embedded.until(lambda: _label(embedded, "n1", key) == "true", "the label")
        await embedded.api.patch(NODES, "n1", {"metadata": {"labels": {key: "false"}}})
        await embedded.api.patch(NODES, "n2", {"metadata": {"labels": {key: None}}})
        await embedded.until(lambda: _label(embedded, "n2", key) == "true", "the label again")
        await embedded.until(one.settled.is_set, "rest")
        assert _label(embedded, "n1", key) == "false"


def _label(found: Whole, node: str, key: str) -> str | None:
    obj = found.get(NODES, node)
    assert obj is not None
    value: str | None = obj["metadata"]["labels"].get(key)
    return value


async def test_a_definition_older_than_the_operator(embedded: Whole) -> None:
    await older_definition.the_rest_is_written(embedded.api, "older.kgpu.test")


async def test_with_an_older_definition_the_status_is_written_and_that_is_told(
    embedded: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = older_definition.older()
    live = await embedded.api.get(CRDS, older["metadata"]["name"])
    assert live is not None
    await embedded.api.delete(CRDS, older["metadata"]["name"])
    await embedded.until(lambda: embedded.core.kinds.stored("nvidia.com", "clusterpolicies") is None, "it to go")
    await embedded.api.create(CRDS, older)
    await embedded.until(lambda: embedded.core.kinds.stored("nvidia.com", "clusterpolicies"), "the older one")
    async with operator(embedded) as one:
        await policy(embedded)

        def said() -> list[str]:
            status = (embedded.get(kinds.CLUSTER_POLICIES, "cluster-policy") or {}).get("status") or {}
            return [one["type"] for one in status.get("conditions", ()) if one["status"] == "False"]

        await embedded.until(lambda: "Ready" in said(), "the status")

        async def events() -> list[str]:
            found = (await embedded.api.list(EVENTS)).items
            return [one["message"] for one in found if one["reason"] == "OldDefinition"]

        (told,) = await embedded.until(events, "the Event")
        assert ("status.nodes of ClusterPolicy" in told, "kubectl apply --server-side" in told) == (True, True)
        assert one.working is not None
        assert one.working.statuses.advice()

        newer = next(crd for crd in crds() if crd["metadata"]["name"] == older["metadata"]["name"])
        await embedded.api.patch(CRDS, older["metadata"]["name"], {"spec": newer["spec"]})
        monkeypatch.setattr("kgpu.operator.statuses.DEFINED_ANEW", 0.0)
        await embedded.api.patch(NODES, "n1", {"metadata": {"labels": {"any": "news"}}})
        found = lambda: (embedded.get(kinds.CLUSTER_POLICIES, "cluster-policy") or {}).get("status", {})  # noqa: E731
        await embedded.until(lambda: "nodes" in found(), "the whole status")
        assert one.working.statuses.advice() == ()
