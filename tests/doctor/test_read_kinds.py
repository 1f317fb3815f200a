"""Rules read the kinds that they name, and not others' of the same name."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from kgpu.doctor import snapshot as snapshots
from kgpu.doctor.read_kinds import KINDS, kind_of
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.small import node, plugin, report

SOURCE = Path(__file__).resolve().parents[2] / "src/kgpu/doctor"
FOREIGN: list[dict[str, Any]] = [
    {"apiVersion": "longhorn.io/v1beta2", "kind": "Node", "metadata": {"name": "gpu-1", "namespace": "longhorn-system"},
     "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "ManagerPodDown"}]}},
    {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "metadata": {"name": "require-labels"},
     "spec": {"validationFailureAction": "Enforce"}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "train", "namespace": "ml"},
     "spec": {"suspend": True, "template": {"spec": {"containers": [
         {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}},
]  # fmt: skip


@pytest.mark.parametrize("other", FOREIGN, ids=lambda one: one["apiVersion"])
@pytest.mark.parametrize("listed", [False, True])
def test_an_object_of_anothers_kind_changes_nothing(other: dict[str, Any], listed: bool) -> None:
    before = report(node(), plugin())
    if listed:
        bare = {key: value for key, value in other.items() if key not in ("apiVersion", "kind")}
        other = {"apiVersion": other["apiVersion"], "kind": f"{other['kind']}List", "items": [bare]}
    assert report(node(), plugin(), other).findings == before.findings == ()


def test_a_kind_is_its_groups() -> None:
    assert kind_of("Job", "batch/v1") == kind_of("Job", "") == "Job"
    assert kind_of("Job", "batch.volcano.sh/v1alpha1") == "Job.batch.volcano.sh"
    assert kind_of("Node", "v1") == "Node"
    assert kind_of("Event", "events.k8s.io/v1") == kind_of("Event", "v1") == "Event"
    assert kind_of("DaemonSet", "extensions/v1beta1") == "DaemonSet"
    assert kind_of("Whatever", "a.b/v1") == "Whatever"
    assert kind_of("Service", "serving.knative.dev/v1") == "Service.serving.knative.dev"


def test_every_kind_that_a_rule_names_is_asked_for() -> None:
    known = {row.resource.kind for row in KINDS}
    asked = set()
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            of, first = ast.unparse(call.func.value), call.args[0]
            if (
                of.endswith("snapshot")
                and call.func.attr in ("all", "get", "knows")
                and isinstance(first, ast.Constant)
            ):
                asked.add(first.value)
    assert len(asked) > 20
    assert asked - known == set()


def test_events_that_are_not_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_EVENTS", 3)
    events = [
        {"kind": "Event", "metadata": {"name": f"e{number}", "namespace": "ml"}, "reason": "Pulled",
         "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "p"}} for number in range(5)
    ]  # fmt: skip
    assert [one.what for one in Snapshot.of(events).missing] == ["events after the first 3"]
    assert Snapshot.of(events).counts()["events"] == 3
    assert Snapshot.of(events[:3]).missing == []
