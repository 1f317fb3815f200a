"""Who may read one namespace alone sees that, is told what he does not see, and is told nothing wrong."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.errors import KubeError
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources.listing import ClusterForbiddenError
from kgpu.doctor.sources.live import collect
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import KubeRefusedError, Listing, Resource
from tests.doctor.example import Example, all_examples
from tests.doctor.test_live import FakeLogs, api_of, example

LESS = {"DRA-22": {"DRA-02"}}
"""The same, by who sees less: a claim is not in this namespace, and that it is in another can't be seen."""


class OneNamespace(FakeApi):
    """An API server for somebody who may list what is in one namespace, and nodes where that is said."""

    space, nodes = "", False

    async def list(self, resource: Resource, *, namespace: str = "", **how: Any) -> Listing:
        if namespace != self.space and not (self.nodes and not resource.namespaced):
            raise KubeRefusedError(f"{resource.plural} is forbidden", "the right to", "ask for it", code=403)
        return await super().list(resource, namespace=namespace, **how)


def tenant(one: Example, space: str, *, nodes: bool = False) -> tuple[OneNamespace, FakeLogs]:
    api, logs = api_of(one.broken)
    api.__class__ = OneNamespace
    assert isinstance(api, OneNamespace)
    api.space, api.nodes = space, nodes
    return api, logs


async def test_the_namespace_is_seen_and_what_is_not_is_told_together() -> None:
    one = example("SCH-08")
    space = next(obj["metadata"]["namespace"] for obj in one.broken if obj["kind"] == "Pod")
    api, logs = tenant(one, space)
    found = await collect(api, logs=logs, now=one.taken, namespace=space)
    assert found.pods
    assert not found.nodes
    assert not {"Pod", "Node", "ConfigMap"} & found.listed
    cluster, others = found.missing[:2]
    assert cluster.what.startswith("nodes, ")
    assert cluster.what.endswith(" more kinds of the cluster")
    assert others.what.endswith(f" of other namespaces than {space}")
    assert all("doctor-rights.yaml" in gap.how for gap in (cluster, others))


async def test_without_a_namespace_the_refusal_can_be_told_from_others() -> None:
    one = example("SCH-08")
    api, logs = tenant(one, "ml")
    with pytest.raises(ClusterForbiddenError) as caught:
        await collect(api, logs=logs)
    assert "doctor-rights.yaml" in caught.value.expected


async def test_a_namespace_that_may_not_be_read_either_is_an_error() -> None:
    api, logs = tenant(example("SCH-08"), "ml")
    with pytest.raises(KubeError, match="pods is forbidden"):
        await collect(api, logs=logs, namespace="others")


@pytest.mark.parametrize("nodes", [False, True], ids=["without-nodes", "with-nodes"])
@pytest.mark.parametrize("one", all_examples(), ids=lambda one: one.name)
async def test_nobody_is_told_another_cause_for_seeing_less(one: Example, nodes: bool) -> None:
    """What is told within a namespace is told of the whole, too, or is what says only that something is wrong."""
    whole = diagnose(await collect(api_of(one.broken)[0], logs=api_of(one.broken)[1], now=one.taken))
    from_files = diagnose(Snapshot.of(one.broken, taken=one.taken))
    known = {each.id for report in (whole, from_files) for root in report.findings for each in root.all()}
    for space in sorted({str(obj["metadata"].get("namespace")) for obj in one.broken if obj["kind"] == "Pod"}):
        api, logs = tenant(one, space, nodes=nodes)
        snapshot = await collect(api, logs=logs, now=one.taken, namespace=space)
        found = diagnose(snapshot, namespace=space)
        new = {each.id for root in found.real for each in root.all()} - known
        assert not {name for name in new - LESS.get(one.name, set()) if not name.endswith("-00")}, space
