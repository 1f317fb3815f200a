"""What a review has found rules to say that was not so: of nodes without a GPU, of what is long over, of what works."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from kgpu.doctor import smallest_change, waiting
from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Level, Report
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats.gpu_report import ReportedGpu
from kgpu.formats.validation_report import CheckTrouble, UnpassedDevice
from kgpu.formats.xid.action import Action
from tests.doctor.gpu_words import THIRD, XID_79, checks_said, gpus_said, with_said
from tests.doctor.test_consequences import AGENT, TAKEN, UNREAD, WELL, facts, node, pod, report, roots

LOST = gpus_said(XID_79)
REPLAYS = gpus_said(
    ReportedGpu(uuid=THIRD, index=3, action=Action.INSPECT, works=True, what="2 PCIe replays", facts=("pcie:replays",))
)
CHECKS = checks_said(
    "toolkit", trouble=CheckTrouble(what="no CDI spec names a GPU of this node", expected="a CDI spec")
)


def only(found: Report, id_: str) -> Finding:
    (one,) = (one for one in found.findings if one.id == id_)
    return one


# A driver that can't be read


CPU_NODE = {
    "kind": "Node", "metadata": {"name": "cpu-1", "labels": {"kubernetes.io/hostname": "cpu-1"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}  # fmt: skip
DISPLAY = {"address": "0000:61:00.0", "vendor": "10de", "pciClass": "030200"}


def looked_at(name: str, fault: str, *bus: dict[str, Any]) -> dict[str, Any]:
    facts = {"nvmlError": "nvml init failed", "nvmlFault": fault, "pci": list(bus)}
    return {"kind": "HostFacts", "metadata": {"name": name}, **facts}


@pytest.mark.parametrize(("said", "rule"), [("driver-not-loaded", "DRV-01"), ("version-mismatch", "DRV-06")])
def test_a_node_without_a_gpu_needs_no_driver(said: str, rule: str) -> None:
    network = {"address": "0000:01:00.0", "vendor": "10de", "pciClass": "020000"}
    assert not roots(report(CPU_NODE, looked_at("cpu-1", said, network)))
    assert not roots(report(looked_at("cpu-1", said), bases=()))
    assert roots(report(CPU_NODE, looked_at("cpu-1", said, DISPLAY))) == [rule]
    assert roots(report(looked_at("cpu-1", said, DISPLAY), bases=())) == [rule]


def test_an_agent_on_a_node_without_a_gpu_says_nothing_of_a_driver() -> None:
    here = copy.deepcopy(CPU_NODE)
    here = with_said(here, UNREAD)
    assert not roots(report(here))


# An error of another node


def test_what_another_node_has_does_not_bring_back_what_is_repaired() -> None:
    """No agent is left to say again that all is well: its last word, after the error, counts."""
    said = WELL | {"lastHeartbeatTime": "2026-01-01T11:30:00Z"}
    repaired = [node(8, said), facts(toldBy="Pod g/agent-a")]
    assert not roots(report(*repaired))
    other = report(*repaired, node(7, LOST, name="gpu-2"))
    assert [(one.id, one.subject.name) for one in other.findings] == [("HW-01", "gpu-2")]


# A program that was started again once


def started_again(ready_since: str, started: str) -> dict[str, Any]:
    one = pod("serve", 1, "gpu-1")
    one["metadata"]["creationTimestamp"] = "2025-11-01T00:00:00Z"
    ready = {"type": "Ready", "status": "False"} | ({"lastTransitionTime": ready_since} if ready_since else {})
    end = {"exitCode": 1, "reason": "Error", "finishedAt": "2025-11-01T23:59:59Z"}
    main = {"name": "main", "ready": False, "restartCount": 1, "state": {"running": {"startedAt": started}},
            "lastState": {"terminated": end}}  # fmt: skip
    one["status"] = {"phase": "Running", "conditions": [ready], "containerStatuses": [main]}
    return one


def unhealthy(message: str) -> dict[str, Any]:
    about = {"kind": "Pod", "name": "serve", "namespace": "ml"}
    return {
        "kind": "Event", "metadata": {"name": "e", "namespace": "ml"}, "type": "Warning", "reason": "Unhealthy",
        "message": message, "involvedObject": about, "lastTimestamp": "2026-01-01T11:59:00Z",
    }  # fmt: skip


BEGAN = "2025-11-02T00:00:00Z"


def test_a_pod_that_was_ready_since_its_restart_stays_up() -> None:
    """It ended once, two months ago, and is not ready since ten minutes."""
    said = unhealthy("Readiness probe failed: HTTP probe failed with statuscode: 503")
    told = only(report(started_again("2026-01-01T11:50:00Z", BEGAN), said), "POD-00")
    assert "is not ready: container main: it runs, and has not been ready for 10 minutes" in told.cause
    assert "statuscode: 503" in told.cause
    assert "exit code" not in told.cause
    assert not any("lastState" in each.field for each in told.evidence)
    assert told.since == "2026-01-01T11:50:00Z"
    assert "--previous" not in " ".join(told.remedy)
    alone = only(report(started_again("2026-01-01T11:50:00Z", BEGAN)), "POD-00")
    assert "has not been ready for 10 minutes" in alone.cause
    assert not roots(report(started_again("2026-01-01T11:58:00Z", BEGAN), said)), "it may come right by itself"


@pytest.mark.parametrize("since", ["2025-11-01T23:59:59Z", ""])
def test_a_pod_that_was_never_ready_since_its_restart_does_not_stay_up(since: str) -> None:
    told = only(report(started_again(since, BEGAN)), "POD-00")
    assert "does not stay up: container main: it has ended with exit code 1" in told.cause
    assert told.level is Level.PROBLEM


# A GPU that goes on working


def test_checks_of_the_node_do_not_fail_because_of_a_gpu_that_works() -> None:
    found = report(node(8, REPLAYS, CHECKS), AGENT)
    assert sorted(roots(found)) == ["HW-10", "NODE-00"]
    assert "no CDI spec names a GPU" in only(found, "NODE-00").cause
    alone = report(node(8, WELL, CHECKS), AGENT)
    assert roots(alone) == ["NODE-00"]


def wrong(index: int, uuid: str = "") -> UnpassedDevice:
    uuid = uuid or f"GPU-{index}"
    trouble = CheckTrouble(what="the GPU computes wrong: 1 of 9", expected="the right sums", remedy=f"replace {index}")
    return UnpassedDevice(
        uuid=uuid, gpu=uuid, name=f"GPU {index} (NVIDIA A100-SXM4-80GB)", index=index, trouble=trouble
    )


def test_each_gpu_that_fails_a_check_is_told_once_as_what_it_is() -> None:
    found = report(node(8, WELL, checks_said("cuda", wrong(1), wrong(4))), AGENT)
    for one, gpu in zip(found.findings, "14", strict=True):
        assert f"GPU {gpu} of node gpu-1" in one.cause
        assert one.remedy[:2] == ("on the node:", "kgpu health; kgpu validate")
        assert not any(f"replace {gpu}" in step for step in one.remedy), "an agent's orders are not passed on"
    same = report(node(8, REPLAYS, checks_said("cuda", wrong(3, THIRD))), AGENT)
    assert sorted("computes wrong" in one.cause for one in same.findings) == [False, True]
    ill = report(node(7, LOST, checks_said("driver", wrong(3, THIRD))), AGENT)
    assert not any("computes wrong" in one.cause for one in ill.findings), "it is told as lost"


def test_a_gpu_of_an_older_agent_has_the_name_that_the_agent_gives_it() -> None:
    older = msgspec.structs.replace(wrong(1), index=None)
    found = report(node(8, WELL, checks_said("cuda", older)), AGENT)
    assert "GPU 1 (NVIDIA A100-SXM4-80GB) of node gpu-1" in found.findings[0].cause


@pytest.mark.parametrize(
    ("uuid", "gpu", "name"),
    [
        ("pci:0000:9d:00.0", "pci:0000:9d:00.0", "GPU at 0000:9d:00.0"),
        ("MIG-1", "GPU-1", "MIG 1:0 (1g.10gb)"),
    ],
)
def test_a_device_that_the_agent_does_not_name_is_not_passed_over(uuid: str, gpu: str, name: str) -> None:
    odd = UnpassedDevice(uuid=uuid, gpu=gpu, name=name, trouble=CheckTrouble(what=f"{name} fails", expected="it"))
    found = report(node(7, WELL, checks_said("driver", wrong(1), odd)), AGENT)
    assert any(name in one.cause for root in found.findings for one in root.all())


def test_of_a_validator_of_another_version_the_condition_stands_for_itself() -> None:
    older = {key: value for key, value in checks_said("cuda", wrong(1)).items() if key != "annotations"}
    found = report(node(7, WELL, older), AGENT)
    assert roots(found) == ["NODE-00"]
    assert "the GPU computes wrong" in found.findings[0].cause


POLICY = {
    "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "status": {"state": "notReady"},
}  # fmt: skip


def policy(reason: str, message: str) -> dict[str, Any]:
    one, began = copy.deepcopy(POLICY), "2026-01-01T10:00:00Z"
    one["status"]["conditions"] = [
        {"type": kind, "status": status, "reason": why, "message": message, "lastTransitionTime": began}
        for kind, status, why in (("Ready", "False", "Error"), ("Error", "True", reason))
    ]
    return one


REFUSED = "DaemonSet kgpu-agent: admission webhook policy.example.com denied the request"


@pytest.mark.parametrize(
    ("gpu", "reason", "message", "told"),
    [
        (REPLAYS, "OperandNotReady", "device-plugin is not ready", True),
        (LOST, "OperandNotReady", "device-plugin is not ready", False),
        (LOST, "ReconcileFailed", "the policy can't be applied", True),
        (LOST, "OperandNotReady", REFUSED, True),
        (UNREAD, "OperandNotReady", "device-plugin is not ready", False),
        (UNREAD, "ReconcileFailed", "the policy can't be applied", True),
    ],
)
def test_only_what_can_follow_from_a_gpu_is_put_down_to_it(
    gpu: dict[str, Any], reason: str, message: str, told: bool
) -> None:
    found = report(node(8, gpu), AGENT, policy(reason, message))
    assert ("OBJ-00" in {each.id for one in found.findings for each in one.all()}) is told


# A node that is cordoned and ill


def cordoned(*conditions: dict[str, Any], can: int = 7, name: str = "gpu-1") -> dict[str, Any]:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    return node(can, *conditions, name=name) | {"spec": {"unschedulable": True, "taints": [taint]}}


def commands(found: Report) -> list[str]:
    return [step for one in found.findings for each in one.all() for step in each.remedy]


@pytest.mark.parametrize("ill", [LOST, UNREAD])
def test_nobody_is_told_to_put_work_on_a_node_that_is_to_be_mended(ill: dict[str, Any]) -> None:
    found = report(cordoned(ill), pod("train", 1))
    assert roots(found)[0] == ("HW-01" if ill is LOST else "DRV-01")
    waits = only(found, "SCH-12")
    assert waits.confidence == LIKELY
    assert "is cordoned, and what is told of its GPUs is to be mended first" in waits.cause
    assert not any(step.startswith("kubectl uncordon") for step in commands(found))


def test_that_an_upgrade_of_its_driver_is_under_way_is_said() -> None:
    here = cordoned(UNREAD)
    here["metadata"]["labels"]["nvidia.com/gpu-driver-upgrade-state"] = "pod-restart-required"
    waits = only(report(here, pod("train", 1)), "SCH-12")
    assert "its driver upgrade is at pod-restart-required" in waits.cause


@pytest.mark.parametrize("gpu", [WELL, REPLAYS])
def test_a_node_that_works_is_uncordoned(gpu: dict[str, Any]) -> None:
    told = only(report(cordoned(gpu, can=8), pod("train", 1)), "SCH-12")
    assert (told.remedy[0], told.confidence) == ("kubectl uncordon gpu-1", CERTAIN)


def test_of_two_cordoned_nodes_the_one_that_works_is_named() -> None:
    told = only(report(cordoned(LOST), cordoned(WELL, can=8, name="gpu-2"), pod("train", 1)), "SCH-12")
    assert [step for step in told.remedy if "uncordon" in step] == ["kubectl uncordon gpu-2"]
    assert told.nodes == ("gpu-2",)


@pytest.mark.parametrize(("gpu", "kinds"), [(LOST, set()), (WELL, {smallest_change.UNCORDON})])
def test_no_change_that_is_proven_puts_work_on_it(gpu: dict[str, Any], kinds: set[str]) -> None:
    snapshot = Snapshot.of([cordoned(gpu), pod("train", 1)], taken=TAKEN)
    (one,) = waiting.waiting(snapshot)
    assert {change.kind for change in one.changes} == kinds


# Amounts that no node should have


def test_an_amount_below_nothing_without_a_capacity_breaks_no_rule() -> None:
    odd = node(8)
    del odd["status"]["capacity"]["nvidia.com/gpu"]
    odd["status"]["allocatable"]["nvidia.com/gpu"] = "-1"
    odd["metadata"]["name"] = "odd"
    told = [one for one in report(odd, pod("train", 1), bases=()).findings if "ml/train" in one.pods]
    assert told
    assert all(row.capacity == 0 for one in told for row in one.table)


def test_what_all_devices_would_do_is_asked_only_where_devices_alone_are_lacking(monkeypatch) -> None:
    asked: list[str] = []
    explain = waiting.explain

    def counted(view: Any, at: Any, fit: Any) -> Any:
        asked.append(at if isinstance(at, str) else at.name)
        return explain(view, at, fit)

    monkeypatch.setattr(waiting, "explain", counted)
    tainted = node(0, name="gpu-3") | {"spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}}
    report(node(0), node(0, name="gpu-2"), tainted, pod("train", 1), facts())
    assert {name: asked.count(name) for name in ("gpu-1", "gpu-2", "gpu-3")} == {"gpu-1": 2, "gpu-2": 2, "gpu-3": 1}
