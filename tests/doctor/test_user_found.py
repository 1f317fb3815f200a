"""What a user of a lab has found: work on broken devices that was called well, and a switch that nobody told of."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kgpu.doctor.model import Level, Report, Subject
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.example import all_examples, base, merged

TAKEN = 1767268800.0  # 2026-01-01T12:00:00Z
POD = Subject("Pod", "train", "ml")
SICK = ("HW-01", "HW-01_told", "HW-02_told", "DRV-01_agent", "DRV-06_host", "KRN-03")
"""Examples in which the devices of node gpu-1, or their driver, are broken."""
EXAMPLES = {one.name: one for one in all_examples()}


def report(objects: list[dict[str, Any]], target: Subject | None = None) -> Report:
    return diagnose(Snapshot.of(copy.deepcopy(merged(objects)), taken=TAKEN), target=target, strict=True)


def ids(found: Report) -> list[str]:
    return [one.id for one in found.findings]


def work(*, gpus: int = 1, node: str = "gpu-1", phase: str = "Running") -> list[dict[str, Any]]:
    """Pod ml/train, its ReplicaSet and its Deployment."""
    asked = {"nvidia.com/gpu": gpus} if gpus else {"cpu": 1}
    return [
        {"kind": "Deployment", "metadata": {"name": "serve", "namespace": "ml"}},
        {"kind": "ReplicaSet", "metadata": {"name": "serve-1", "namespace": "ml", "ownerReferences": [owner("Deployment", "serve")]}},
        {
            "kind": "Pod",
            "metadata": {"name": "train", "namespace": "ml", "ownerReferences": [owner("ReplicaSet", "serve-1")]},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "cuda", "resources": {"limits": asked, "requests": asked}}]},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]},
        },
    ]  # fmt: skip


def owner(kind: str, name: str) -> dict[str, Any]:
    return {"kind": kind, "name": name, "controller": True}


@pytest.mark.parametrize("name", SICK)
@pytest.mark.parametrize("target", [POD, Subject("Deployment", "serve", "ml"), Subject("ReplicaSet", "serve-1", "ml")])
def test_what_runs_on_broken_devices_is_told_of_them(name: str, target: Subject) -> None:
    found = report([*EXAMPLES[name].broken, *work()], target)
    assert ids(found)[:1] == [EXAMPLES[name].rule]
    assert found.exit_code == 1


def test_a_job_is_told_of_its_pods_devices() -> None:
    job = {"kind": "Job", "metadata": {"name": "night", "namespace": "ml"}}
    pod = work()[-1]
    pod["metadata"]["ownerReferences"] = [owner("Job", "night")]
    assert ids(report([*EXAMPLES["HW-01_told"].broken, job, pod], Subject("Job", "night", "ml"))) == ["HW-01"]


def test_a_driver_that_does_not_answer_is_told_of_whatever_it_is_called() -> None:
    """No rule knows why; the node's own words are what there is."""
    objects = [*(EXAMPLES["DRV-01_agent"].unlike or ()), *work()]
    assert ids(report(objects, POD)) == ids(report(objects)) == ["NODE-00"]


@pytest.mark.parametrize("name", SICK)
@pytest.mark.parametrize("other", [{"gpus": 0}, {"node": "gpu-2"}, {"phase": "Succeeded"}])
def test_what_has_none_of_the_broken_devices_is_not(name: str, other: dict[str, Any]) -> None:
    """A pod without accelerators, one on another node, one that has ended."""
    second = copy.deepcopy(base("gpu-node")[0])
    second["metadata"]["name"] = "gpu-2"
    assert ids(report([*EXAMPLES[name].broken, second, *work(**other)], POD)) == []


def test_what_is_well_and_what_is_noted_leaves_work_alone() -> None:
    assert ids(report([*EXAMPLES["HW-01_told"].healthy, *work()], POD)) == []
    noted = [*EXAMPLES["HW-08"].broken, *work()]
    assert [one.level for one in report(noted).findings] == [Level.NOTE]
    assert ids(report(noted, POD)) == []


def test_a_neighbours_own_trouble_with_the_driver_is_its_own() -> None:
    """An image whose CUDA is newer than the driver."""
    objects = merged(EXAMPLES["DRV-11"].broken)
    other = work()
    other[-1]["metadata"] |= {"name": "other"}
    assert "DRV-11" in ids(report([*objects, *other]))
    assert ids(report([*objects, *other], Subject("Pod", "other", "ml"))) == []


def node(
    name: str = "gpu-1", *, have: str = "8", can: str = "0", labels: dict[str, str] | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = copy.deepcopy(base("gpu-node")[0])
    found["metadata"]["name"] = name
    found["metadata"]["labels"] |= labels or {}
    found["status"]["capacity"] |= {"nvidia.com/gpu": have, "nvidia.com/gpu.shared": "0"}
    found["status"]["allocatable"] |= {"nvidia.com/gpu": can, "nvidia.com/gpu.shared": "0"}
    return found


def policy(enabled: bool = False) -> dict[str, Any]:
    spec = {"driver": {"enabled": True}, "devicePlugin": {"enabled": enabled}}
    return {"kind": "ClusterPolicy", "metadata": {"name": "gpus"}, "spec": spec, "status": {"state": "ready"}}


TWO = [policy(), node("gpu-1"), node("gpu-2")]
EMPTY = [policy(), node("gpu-1", have="0"), node("gpu-2", have="0")]
ON = 'kubectl patch clusterpolicy gpus --type merge -p \'{"spec":{"devicePlugin":{"enabled":true}}}\''


@pytest.mark.parametrize("objects", [TWO, [*TWO, *base("pending")], [*EMPTY, *base("pending")]])
def test_a_device_plugin_that_is_switched_off_is_the_one_cause(objects: list[dict[str, Any]]) -> None:
    found = report(objects)
    assert ids(found) == ["TNT-12"]
    (one,) = found.findings
    assert "switched off in ClusterPolicy gpus" in one.cause
    assert one.remedy[0] == ON
    assert one.level is Level.PROBLEM
    assert set(one.nodes) == {"gpu-1", "gpu-2"}
    below = {each.id for each in one.all()}
    assert "DPL-03" not in below
    if any(each["kind"] == "Pod" for each in objects):
        assert ids(report(objects, POD)) == ["TNT-12"]


def test_where_nobody_waits_and_nothing_was_offered_the_switch_is_a_note() -> None:
    found = report(EMPTY)
    assert [(one.id, one.level) for one in found.findings] == [("TNT-12", Level.NOTE)]
    assert found.exit_code == 0


def test_the_switch_is_meant_where_claims_hand_out_the_devices() -> None:
    slices = [
        {"kind": "ResourceSlice", "metadata": {"name": name},
         "spec": {"driver": "gpu.nvidia.com", "nodeName": name, "pool": {"name": name, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}]}}
        for name in ("gpu-1", "gpu-2")
    ]  # fmt: skip
    assert "TNT-12" not in ids(report([*EMPTY, *slices]))


def test_another_plugin_does_the_work_of_the_one_that_is_switched_off() -> None:
    assert ids(report([policy(), *base("gpu-node")])) == []
    # And where that one has lost its endpoint, the switch is not the cause.
    lost: dict[str, Any] = {"kind": "Node", "metadata": {"name": "gpu-1"}}
    lost["status"] = {"capacity": {"nvidia.com/gpu": "0"}, "allocatable": {"nvidia.com/gpu": "0"}}
    assert ids(report([policy(), *base("gpu-node"), lost])) == ["DPL-03"]


def test_without_the_switch_withdrawn_devices_are_told_as_before() -> None:
    assert ids(report([policy(enabled=True), node()])) == ["SCH-03"]


@pytest.mark.parametrize("key", ["nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.operands"])
def test_a_nodes_own_switch(key: str) -> None:
    found = report([policy(enabled=True), node(labels={key: "false"})])
    assert [(one.id, one.level) for one in found.findings] == [("TNT-12", Level.PROBLEM)]
    assert found.findings[0].remedy[0] == f"kubectl label node gpu-1 {key}-"
    meant = report([policy(enabled=True), node(have="0", labels={key: "false"})])
    assert [(one.id, one.level) for one in meant.findings] == [("TNT-12", Level.NOTE)]
    waits = report([policy(enabled=True), node(have="0", labels={key: "false"}), *base("pending")])
    assert [(one.id, one.level) for one in waits.findings] == [("TNT-12", Level.PROBLEM)]


def test_what_an_earlier_configuration_has_left_is_no_lost_endpoint() -> None:
    """A name at 0 that nobody asks for, beside the one by which the node offers its devices now."""
    plugin = base("gpu-node")[1]
    assert ids(report([plugin, node(can="8")])) == []
    assert ids(report([plugin, node(can="0")])) == ["SCH-03"]
    gone = report([plugin, node(have="0")])
    assert ids(gone) == ["DPL-03"]
    assert "0 nvidia.com/gpu in" in gone.findings[0].cause
    asks = copy.deepcopy(base("pending")[0])
    asks["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu.shared": 1}}
    assert any(
        "0 nvidia.com/gpu.shared in" in each.cause
        for one in report([plugin, node(have="0"), asks]).findings
        for each in one.all()
    )
