"""The Node: our condition beside the kubelet's, and what its status says, whatever it says."""

from __future__ import annotations

import pytest

from kgpu.base.errors import KubeError
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES
from kgpu.validator.checks.plugin import NodeResources
from kgpu.validator.plan import ValidatedCondition
from kgpu.validator.publish import NodeObject

READY = {"type": "Ready", "status": "True"}


def node(**status: object) -> dict:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": status}


async def conditions(api: FakeApi) -> dict:
    found = await api.get(NODES, "n")
    return {row["type"]: row for row in found["status"]["conditions"]}


async def test_the_condition_is_ours_alone_and_keeps_its_time() -> None:
    api, now = FakeApi(), 0.0
    api.put(NODES, node(conditions=[READY]))
    publisher = NodeObject(api, node="n", now=lambda: now)
    await publisher.publish(ValidatedCondition(status="False", reason="CudaFailed", message="a"))
    now = 60.0
    await publisher.publish(ValidatedCondition(status="False", reason="DriverFailed", message="b"))
    row = (await conditions(api))["kgpu.dev/Validated"]
    assert (row["lastTransitionTime"], row["lastHeartbeatTime"]) == ("1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z")
    await publisher.publish(ValidatedCondition(status="True", reason="Validated", message="c"))
    assert (await conditions(api))["kgpu.dev/Validated"]["lastTransitionTime"] == "1970-01-01T00:01:00Z"
    await publisher.withdraw()
    assert (await conditions(api)) == {"Ready": READY}


async def test_what_the_node_shows() -> None:
    api = FakeApi()
    counts = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "x", "cpu": "4", "nvidia.com/odd": "-1"}
    api.put(NODES, node(capacity=counts, allocatable=None, nodeInfo={"containerRuntimeVersion": "containerd://2.1"}))
    facts = await NodeObject(api, node="n").facts()
    assert facts == NodeResources(capacity={"nvidia.com/gpu": 8}, allocatable={}, runtime="containerd://2.1")


@pytest.mark.parametrize("status", [None, [], "x", {"capacity": [], "nodeInfo": 3, "conditions": {"a": "b"}}])
async def test_a_status_of_another_shape_is_an_empty_one(status) -> None:
    api = FakeApi()
    api.put(NODES, {"metadata": {"name": "n"}, "status": status})
    assert await NodeObject(api, node="n").facts() == NodeResources()


async def test_a_node_that_is_not_there() -> None:
    with pytest.raises(KubeError, match='no node "n"'):
        await NodeObject(FakeApi(), node="n").facts()
