"""What findings say and cite: the field that holds the sentence, names as they are written, and what is history."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.doctor import matching
from kgpu.doctor.model import CERTAIN, Finding, Level, Place, Subject
from kgpu.doctor.plan import diagnose
from kgpu.doctor.rule import Rule
from kgpu.doctor.rules import all_rules
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.example import FOLDER, Example, load


def example(name: str) -> Example:
    return load(FOLDER / f"{name}.yaml")


def first(name: str) -> Finding:
    one = example(name)
    return diagnose(one.snapshot(one.broken), strict=True).findings[0]


@pytest.mark.parametrize(("name", "field"), [("DRV-12", "state"), ("DRV-12_back-off", "lastState")])
def test_the_state_that_holds_the_sentence_is_cited(name: str, field: str) -> None:
    evidence = first(name).evidence[0]
    assert evidence.field.split(".")[-1] == field
    assert "unsatisfied condition" in evidence.value


def test_a_resource_ends_before_the_comma() -> None:
    assert "registered nvidia.com/gpu, as" in first("DPL-11").cause


def test_the_remedy_for_two_plugins_names_both_makers() -> None:
    steps = " ; ".join(first("DPL-20_apart").remedy)
    assert "kubectl -n gpu-operator delete daemonset nvidia-device-plugin-daemonset" in steps
    assert "kubectl -n nvdp delete daemonset nvdp-nvidia-device-plugin" in steps
    assert "kube-system" not in steps


def test_kgpus_agent_is_no_device_plugin_any_more_by_a_setting() -> None:
    steps = " ; ".join(first("DPL-20_agent").remedy)
    assert "kubectl -n gpu-operator delete daemonset nvidia-device-plugin-daemonset" in steps
    assert (
        'kubectl patch clusterpolicy cluster-policy --type merge -p \'{"spec":{"devicePlugin":{"enabled":false}}}\''
        in steps
    )
    assert "delete daemonset kgpu-agent" not in steps


def test_a_class_is_named_as_the_event_names_it() -> None:
    assert "RuntimeClass nvidia-cdi," in first("RUN-02_event").cause


def test_an_event_of_what_is_gone_is_history() -> None:
    other = {"kind": "ReplicaSet", "metadata": {"name": "other", "namespace": "ml"}}
    one = example("RUN-02_event")
    assert not diagnose(one.snapshot([*one.broken, other]), strict=True).findings


def pod(
    name: str, phase: str, created: str, *, owner: str = "t", index: str = "", ready: bool = False
) -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-completion-index": index} if index else {}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "creationTimestamp": f"2026-01-01T{created}Z",
            "labels": labels,
            "ownerReferences": [{"kind": "Job", "name": owner, "controller": True}] if owner else [],
        },
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


NOW = "08:00:00"
GONE = pod("a", "Failed", NOW)
JOB_FAILED = {
    "kind": "Job",
    "metadata": {"name": "t", "namespace": "ml"},
    "status": {"conditions": [{"type": "Failed", "status": "True"}]},
}


@pytest.mark.parametrize(
    ("expected", "objects"),
    [
        pytest.param(True, [GONE, pod("b", "Succeeded", "08:00:10")], id="done later"),
        pytest.param(True, [GONE, pod("b", "Running", "08:00:10", ready=True)], id="runs later"),
        pytest.param(True, [GONE, pod("b", "Succeeded", NOW)], id="done, of the same second"),
        pytest.param(False, [GONE, pod("b", "Running", NOW, ready=True)], id="a fellow of the same second"),
        pytest.param(False, [GONE, pod("b", "Running", "08:00:10")], id="not ready"),
        pytest.param(False, [GONE, pod("b", "Succeeded", "07:59:00")], id="done before"),
        pytest.param(False, [GONE, pod("b", "Succeeded", "08:00:10", owner="u")], id="another's"),
        pytest.param(False, [GONE, pod("b", "Succeeded", "08:00:10", index="1")], id="another index"),
        pytest.param(False, [GONE, pod("b", "Succeeded", "08:00:10"), JOB_FAILED], id="the whole Job has failed"),
        pytest.param(False, [pod("a", "Running", NOW), pod("b", "Succeeded", "08:00:10")], id="not ended"),
        pytest.param(
            False, [pod("a", "Failed", NOW, owner=""), pod("b", "Succeeded", "08:00:10", owner="")], id="no owner"
        ),
        pytest.param(False, [GONE], id="alone"),
    ],
)
def test_superseded(expected: bool, objects: list[dict[str, Any]]) -> None:
    snapshot = Snapshot.of(objects, taken=1767268800)
    assert matching.superseded(snapshot, snapshot.pods["ml", "a"]) is expected


def test_waiting_for_a_new_node_is_right_and_for_an_ending_job_too() -> None:
    for name, until in (("SCH-01_scaling", "new node"), ("SCH-01_job", "Job home/night ends (in 60 minutes at most)")):
        found = first(name)
        assert found.level is Level.WAIT
        assert until in found.expected
    assert first("SCH-01").level is Level.PROBLEM


def test_why_no_node_is_added_is_the_cause() -> None:
    found = first("SCH-01_no_scaling")
    assert found.level is Level.PROBLEM
    assert "could not add a node: Node scale up in zones a" in found.cause
    assert found.evidence[0].field == "FailedScaleUp"


def test_a_move_is_proven_and_leaves_everything_as_it_was() -> None:
    one = example("SCH-07_move")
    snapshot = one.snapshot(one.broken)
    before = {name: dict(state.used) for name, state in snapshot.fit.nodes.items()}
    steps = " ; ".join(diagnose(snapshot, strict=True).findings[0].remedy)
    assert "move pod ml/small (2 nvidia.com/gpu) to node gpu-1" in steps
    assert "kubectl cordon gpu-2; kubectl -n ml delete pod small; kubectl uncordon gpu-2" in steps
    assert "delete pod alone" not in steps
    assert {name: dict(state.used) for name, state in snapshot.fit.nodes.items()} == before


def test_a_gate_names_who_takes_it_off() -> None:
    found = first("SCH-00_gate")
    assert found.level is Level.WAIT
    assert "which Kueue has to take off" in found.cause
    one = example("SCH-00_gate")
    alone = diagnose(one.snapshot([each for each in one.broken if each["metadata"]["name"] != "kueue"]), strict=True)
    assert alone.findings[0].level is Level.PROBLEM
    assert "Kueue does not seem to run here" in alone.findings[0].cause


@pytest.mark.parametrize("name", ["MIG-01", "MIG-05", "MIG-11", "MIG-13", "MIG-04", "MIG-21"])
def test_the_state_of_a_layout_alone_is_told_only_where_nothing_says_why(name: str) -> None:
    one = example(name)
    for each in one.broken:
        if each["kind"] == "Node":
            each["metadata"]["labels"]["nvidia.com/mig.config.state"] = "failed"
    report = diagnose(one.snapshot(one.broken), strict=True)
    assert report.findings[0].id == name
    assert "MIG-00" not in {root.id for root in report.findings}


def test_what_crashes_on_a_node_with_a_deeper_fault_is_below_it() -> None:
    one = example("OPR-00")
    facts = {"kind": "HostFacts", "metadata": {"name": "gpu-1"}, "kernelLog": ["NVRM: GPU at PCI:0000:03:00: fallen"]}
    deep = Finding(subject=Subject("Node", "gpu-1"), cause="deep", nodes=("gpu-1",), confidence=CERTAIN)
    rule = Rule("KRN-99", "t", Place.KERNEL, lambda _: [deep], "e")
    report = diagnose(one.snapshot([*one.broken, facts]), rules=[*all_rules(), rule], strict=True)
    assert report.findings[0].id == "KRN-99"
    assert "OPR-00" in {each.id for each in report.findings[0].all()}
    assert "OPR-00" not in {root.id for root in report.findings}


def test_a_queue_of_seconds_stays_a_note() -> None:
    one = example("SCH-01")
    report = diagnose(Snapshot.of(one.broken, taken=1767261600 + 30), strict=True)
    assert [(found.id, found.level) for found in report.findings] == [("SCH-01", Level.NOTE)]


def test_memory_that_no_node_has_is_held_by_nobody() -> None:
    never, held = first("SCH-13_never"), first("SCH-13")
    assert "empty it would not have as much" in never.cause
    assert "held by" not in never.cause
    assert not any("taint" in step for step in never.remedy)
    assert "held by shop/web (" in held.cause
    assert any("taint" in step for step in held.remedy)
