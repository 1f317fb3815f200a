"""A cluster as the page asks it: pods that wait, rights, and answers of kgpu's own commands, whatever they are."""

from __future__ import annotations

import json
import sys
import time

import pytest

from kgpu.base.errors import ConfigError, HostError, KubeError
from kgpu.base.times import stamp_of
from kgpu.doctor.model import Evidence, Finding, Report, Subject
from kgpu.doctor.render import as_json
from kgpu.formats import names
from kgpu.formats.gpu_report import ReportedGpu, encode, report
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import RESOURCE_QUOTAS
from kgpu.kube.port import EVENTS, NODES, PODS
from kgpu.overview import cluster
from kgpu.overview.cluster import ClusterWorld, decode, waiting_pod
from kgpu.overview.model import NamespaceLimit, PendingPod, ToldIdleness, ToldReport


def pod(name: str, *, phase: str = "Pending", **spec) -> dict:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "creationTimestamp": "2026-11-30T15:00:00Z"},
        "spec": {"containers": [{"name": "c", **limits}], **spec}, "status": {"phase": phase},
    }  # fmt: skip


async def test_pods_that_wait_for_accelerators_are_listed() -> None:
    api = FakeApi()
    api.put(PODS, pod("waits"))
    api.put(PODS, pod("plain", containers=[{"name": "c"}]))
    api.put(PODS, pod("claims", containers=[{"name": "c"}], resourceClaims=[{"name": "gpu"}]))
    assert await ClusterWorld(api, "").waiting() == (
        PendingPod(namespace="ml", name="claims", since="2026-11-30T15:00:00Z"),
        PendingPod(namespace="ml", name="waits", asks=(("nvidia.com/gpu", 2),), since="2026-11-30T15:00:00Z"),
    )


async def test_what_quotas_allow_of_accelerators_is_read_by_the_one_that_leaves_least() -> None:
    api = FakeApi()
    for name, hard, used in (("wide", 8, 3), ("tight", 4, 3)):
        gpus = {"requests.nvidia.com/gpu": str(hard), "pods": "10"}
        api.put(RESOURCE_QUOTAS, {
            "kind": "ResourceQuota", "metadata": {"name": name, "namespace": "ml"}, "spec": {"hard": gpus},
            "status": {"hard": gpus, "used": {"requests.nvidia.com/gpu": str(used), "pods": "1"}},
        })  # fmt: skip
    odd = {"name": "odd", "namespace": "ops"}
    api.put(RESOURCE_QUOTAS, {"kind": "ResourceQuota", "metadata": odd, "spec": 3, "status": {"hard": [1]}})
    found = await ClusterWorld(api, "").limits()
    assert found == (NamespaceLimit(namespace="ml", resource="nvidia.com/gpu", used=3, hard=4),)
    assert str(found[0]) == "3 of 4 nvidia.com/gpu"


async def test_hardware_errors_are_read_from_events_of_nodes_and_reports_of_health() -> None:
    api, now = FakeApi(), stamp_of(time.time())
    for name, kind in (("n", "Node"), ("p", "Pod")):
        api.put(EVENTS, {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"kind": kind, "name": "a"}, "message": "GPU 0: Xid 79: gone", "lastTimestamp": now,
        })  # fmt: skip
    assert [(one.node, one.code) for one in await ClusterWorld(api, "").events()] == [("a", "Xid 79")]
    assert await ClusterWorld(api, "").verdicts() == (), "without nodes there is nothing to report"
    api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
    with pytest.raises(ConfigError, match="no Node has a report of kgpu's health"):
        await ClusterWorld(api, "").verdicts()
    told = encode(report([ReportedGpu(index=1, facts=("xid:48",), since=time.time())], count=8))
    api.put(NODES, {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "b", "annotations": {names.GPUS_ANNOTATION: told}},
    })  # fmt: skip
    assert [(one.node, one.code, one.index) for one in await ClusterWorld(api, "").verdicts()] == [("b", "Xid 48", 1)]


@pytest.mark.parametrize("odd", [{}, {"spec": None}, {"metadata": None, "spec": {"containers": "x"}}])
def test_an_odd_pod_is_none_that_waits(odd) -> None:
    assert waiting_pod(odd) is None


@pytest.mark.parametrize(
    ("status", "allowed"),
    [({"allowed": True}, True), ({"allowed": False}, False), ({}, False), (None, False), ({"allowed": "yes"}, False)],
)
@pytest.mark.parametrize("namespace", ["", "ml"])
async def test_rights_are_the_api_servers(status, allowed, namespace) -> None:
    class Api(FakeApi):
        async def create(self, resource, obj, *, subresource=""):
            assert (resource.plural, subresource) == ("selfsubjectaccessreviews", "")
            assert obj["spec"]["resourceAttributes"] == {
                "verb": "get", "resource": "pods", **({"namespace": namespace} if namespace else {}),
            }  # fmt: skip
            return {**obj, "status": status}

    assert await ClusterWorld(Api(), "").may_see(namespace) is allowed


def test_what_the_doctor_prints_is_understood() -> None:
    under = Finding(subject=Subject("Pod", "x", "ml"), cause="it waits", pods=("ml/x",), id="SCH-01")
    root = Finding(
        subject=Subject("Node", "a"), cause="it is broken", id="HW-01", nodes=("a",), consequences=(under,),
        evidence=(Evidence(object="Node a", field="status", value="bad"), Evidence(file="f", line=3, value="v")),
    )  # fmt: skip
    told = decode(as_json(Report(findings=(root,))).encode(), ToldReport, of="kgpu doctor")
    (read,) = told.findings
    assert (read.id, read.subject, read.cause, read.nodes) == ("HW-01", "Node a", "it is broken", ("a",))
    assert [(one.subject, one.pods) for one in read.consequences] == [("Pod ml/x", ("ml/x",))]
    assert [row.value for row in read.evidence] == ["bad", "v"]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"findings": 3}', b'{"findings": [{}]}', b"\xff", b"[" * 100_000])
def test_an_answer_of_another_form_is_an_error_in_words(text) -> None:
    with pytest.raises(KubeError, match="kgpu doctor answers otherwise"):
        decode(text, ToldReport, of="kgpu doctor")


async def test_a_command_runs_and_what_it_says_when_it_fails_is_told(monkeypatch, tmp_path) -> None:
    world = ClusterWorld(FakeApi(), str(tmp_path / "kubeconfig"))
    with pytest.raises(HostError, match=r"kgpu idle: .*there is no file"):
        await world.idleness()
    said = json.dumps({"version": 1, "idle": [], "silent": {"a": "refused"}})
    monkeypatch.setattr(cluster, "with_defaults", lambda line: [sys.executable, "-c", f"print({said!r})"])
    assert await world.idleness() == ToldIdleness(silent={"a": "refused"})


async def test_a_command_that_does_not_end_is_ended(monkeypatch) -> None:
    monkeypatch.setattr(cluster, "DEADLINE", 0.0)
    monkeypatch.setattr(cluster, "with_defaults", lambda line: ["sleep", "1000"])
    with pytest.raises(HostError, match="did not end"):
        await ClusterWorld(FakeApi(), "").report()


async def test_what_is_not_to_be_asked_is_not_and_says_so(monkeypatch) -> None:
    monkeypatch.setattr(cluster, "with_defaults", lambda line: ["false"])
    world = ClusterWorld(FakeApi(), "", doctor=False, idle=False)
    with pytest.raises(ConfigError, match="kgpu doctor is not asked here"):
        await world.report()
    with pytest.raises(ConfigError, match="use is not counted here"):
        await world.idleness()
