"""What is counted of the kubelet's calls, by Prometheus' own parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kgpu.base.clock import VirtualClock
from kgpu.base.errors import HostError
from kgpu.dra.metrics import BUCKETS, DraMetrics
from kgpu.dra.node_claims import NodeClaims
from kgpu.kube.fake import FakeApi
from kgpu.kubelet.model import ClaimRef
from kgpu.lab.nodes.claims import CLAIMS
from tests.dra.node import Node, claim
from tests.dra.test_preparing import LARGE, SLICE


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """Of a metric, by the values of its labels besides the driver, in the order of their names."""
    found = {}
    for family in parse_text(text):
        for one in family.samples:
            if one.name == name:
                assert one.labels["driver"] == "gpu.nvidia.com"
                found[tuple(v for k, v in sorted(one.labels.items()) if k != "driver")] = one.value
    return found


def made() -> tuple[DraMetrics, VirtualClock]:
    clock = VirtualClock()
    return DraMetrics(driver="gpu.nvidia.com", node="gpu-1", clock=clock), clock


def test_all_operations_are_there_from_the_start() -> None:
    metrics, _ = made()
    text = metrics.text(())
    assert values(text, "nvidia_dra_requests_total") == {("prepare",): 0, ("unprepare",): 0}
    assert values(text, "nvidia_dra_requests_inflight") == {("prepare",): 0, ("unprepare",): 0}
    assert values(text, "nvidia_dra_prepared_devices") == {("gpu", "gpu-1"): 0, ("mig", "gpu-1"): 0}
    assert values(text, "nvidia_dra_node_prepare_errors_total") == {}


async def test_requests_are_counted_with_what_they_took() -> None:
    metrics, clock = made()
    for seconds in (0.04, 0.3, 30.0):
        with metrics.request("prepare"):
            assert values(metrics.text(()), "nvidia_dra_requests_inflight")["prepare",] == 1
            await clock.advance(seconds)
    text = metrics.text(())
    assert values(text, "nvidia_dra_requests_total")["prepare",] == 3
    assert values(text, "nvidia_dra_requests_inflight")["prepare",] == 0
    buckets = values(text, "nvidia_dra_request_duration_seconds_bucket")
    bounds = ["0.05", "0.1", "0.2", "0.4", "0.8", "1.6", "3.2", "6.4", "12.8", "+Inf"]
    assert [buckets[le, "prepare"] for le in bounds] == [1, 1, 1, 2, 2, 2, 2, 2, 2, 3]
    assert len(BUCKETS) == 9
    assert values(text, "nvidia_dra_request_duration_seconds_sum")["prepare",] == pytest.approx(30.34)


async def test_calls_that_fail_are_counted_by_their_kind(tmp_path: Path) -> None:
    node, api = Node(tmp_path), FakeApi()
    metrics, _ = made()
    logic = NodeClaims(
        api=api, resource=CLAIMS, driver="gpu.nvidia.com", pool="node-1", preparations=await node.start(),
        metrics=metrics,
    )  # fmt: skip
    with pytest.raises(Exception, match="does not exist"):
        await logic.prepare(ClaimRef(namespace="team", name="none", uid="u"))
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-99"}
    api.put(CLAIMS, {
        "apiVersion": CLAIMS.api_version, "kind": "ResourceClaim",
        "metadata": {"name": "odd", "namespace": "team", "uid": "u"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    })  # fmt: skip
    with pytest.raises(Exception, match="is not on this node"):
        await logic.prepare(ClaimRef(namespace="team", name="odd", uid="u"))
    await logic.preparations.prepare(claim("a", SLICE))
    node.driver.meddle = _refuse
    with pytest.raises(HostError):
        await logic.unprepare(ClaimRef(namespace="team", name="claim-a", uid="a"))
    text = metrics.text(())
    assert values(text, "nvidia_dra_node_prepare_errors_total") == {("get_claim",): 1, ("prepare_devices",): 1}
    assert values(text, "nvidia_dra_node_unprepare_errors_total") == {("unprepare_devices",): 1}
    assert values(text, "nvidia_dra_requests_total") == {("prepare",): 0, ("unprepare",): 0}
    assert values(text, "nvidia_dra_requests_inflight") == {("prepare",): 0, ("unprepare",): 0}


def _refuse(step: str, done: bool) -> None:
    raise HostError(f"{step} fails", "a driver that does it", f"nothing: {done}")


async def test_devices_that_are_prepared_are_counted_by_type(tmp_path: Path) -> None:
    preparations = await Node(tmp_path).start()
    await preparations.prepare(claim("a", SLICE, LARGE, "gpu-1"))
    await preparations.prepare(claim("b", "gpu-2"))
    metrics, _ = made()
    found = values(metrics.text(preparations.records.all.values()), "nvidia_dra_prepared_devices")
    assert found == {("gpu", "gpu-1"): 2, ("mig", "gpu-1"): 2}
    await preparations.unprepare("a")
    found = values(metrics.text(preparations.records.all.values()), "nvidia_dra_prepared_devices")
    assert found == {("gpu", "gpu-1"): 1, ("mig", "gpu-1"): 0}
