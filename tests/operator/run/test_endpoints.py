"""EndpointSlices of the operator's Services: written when they change, taken away, and no others touched."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import ENDPOINT_SLICES
from kgpu.operator.endpoints import Endpoints
from kgpu.operator.projections import agents, pod

NAMESPACE = "gpu-operator"


def slices(name: str, *addresses: str, manager: str = "kgpu-operator") -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": {"endpointslice.kubernetes.io/managed-by": manager}
        },
        "endpoints": [{"addresses": [address]} for address in addresses],
    }  # fmt: skip


async def there(api: FakeApi) -> dict[str, list[str]]:
    found = (await api.list(ENDPOINT_SLICES, namespace=NAMESPACE)).items
    return {one["metadata"]["name"]: [end["addresses"][0] for end in one["endpoints"]] for one in found}


async def test_they_follow_the_plan_and_those_of_kubernetes_stay() -> None:
    api = FakeApi()
    api.put(ENDPOINT_SLICES, slices("kubernetes-own", "10.0.0.9", manager="endpointslice-controller.k8s.io"))
    api.put(ENDPOINT_SLICES, slices("of-an-earlier-term", "10.0.0.8"))
    writer = Endpoints(api, namespace=NAMESPACE, wanted=True)
    await writer.converge((slices("a", "10.0.0.1"),))
    assert await there(api) == {"kubernetes-own": ["10.0.0.9"], "a": ["10.0.0.1"]}
    await writer.converge((slices("a", "10.0.0.2"),))
    assert (await there(api))["a"] == ["10.0.0.2"]
    await writer.converge(())
    assert await there(api) == {"kubernetes-own": ["10.0.0.9"]}


async def test_nothing_is_asked_where_nothing_changes_or_none_are_wanted() -> None:
    api = FakeApi()
    writer = Endpoints(api, namespace=NAMESPACE, wanted=True)
    await writer.converge((slices("a", "10.0.0.1"),))
    api.set_down(True)
    await writer.converge((slices("a", "10.0.0.1"),))
    await Endpoints(api, namespace=NAMESPACE, wanted=False).converge(())


async def test_a_refusal_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()
    api.refuse[("list", "endpointslices")] = 403
    writer = Endpoints(api, namespace=NAMESPACE, wanted=True)
    for _ in range(3):
        await writer.converge((slices("a", "10.0.0.1"),))
    assert len(caplog.records) == 1
    assert writer.again_at is not None
    api.refuse.clear()
    await writer.converge((slices("a", "10.0.0.1"),))
    assert await there(api) == {"a": ["10.0.0.1"]}
    assert writer.again_at is None


def agent(node: str, **status: Any) -> dict[str, Any]:
    owner = {"kind": "DaemonSet", "name": "kgpu-agent", "controller": True}
    return {"metadata": {"name": f"a-{node}", "ownerReferences": [owner]}, "spec": {"nodeName": node}, "status": status}


def test_agents_are_known_by_their_daemon_set_and_their_address() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    going = agent("gone", podIP="10.0.0.3")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    other = agent("other", podIP="10.0.0.4")
    other["metadata"]["ownerReferences"][0]["name"] = "another"
    pods = [agent("a", podIP="10.0.0.1", conditions=ready), agent("b", podIP="10.0.0.2"), agent("new"), going, other]
    found = agents(map(pod, pods))
    assert {node: (one.address, one.ready) for node, one in found.items()} == {
        "a": ("10.0.0.1", True), "b": ("10.0.0.2", False),
    }  # fmt: skip
