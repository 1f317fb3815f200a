"""What findings say and cite: the field that holds the sentence, names as they are written, and what is history."""

from __future__ import annotations

from typing import Any

import pytest
from doctor.example import FOLDER, Example, load

from kgpu.doctor import matching
from kgpu.doctor.model import Finding
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot


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
