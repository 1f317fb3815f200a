"""What is told of a case, beyond its id: sentences and remedies that a person acts on."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from kgpu.doctor.model import Finding, Level, Subject
from kgpu.doctor.plan import diagnose
from tests.doctor.example import FOLDER, load, merged

SERVE = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "serve-1", "controller": True}]}


def told(name: str, *more: dict[str, Any]) -> Finding:
    """What comes first in an example's broken half, with more objects merged into it."""
    example = load(FOLDER / f"{name}.yaml")
    return diagnose(example.snapshot(merged([*example.broken, *more])), strict=True).findings[0]


def change(kind: str, path: str, **more: Any) -> dict[str, Any]:
    namespace, _, name = path.rpartition("/")
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
    return {"kind": kind, "metadata": metadata, **more}


def test_ending_one_of_a_pods_own_fellows_is_no_help() -> None:
    holder = change("Pod", "ml/serve-1-a", metadata=SERVE, spec=load(FOLDER / "SCH-01.yaml").broken[-1]["spec"])
    holder["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    found = told(
        "SCH-01", change("Pod", "home/notebook", status={"phase": "Succeeded"}), holder,
        change("Pod", "ml/train", metadata=SERVE),
    )  # fmt: skip
    assert found.id == "SCH-01"
    assert not any("delete pod" in step for step in found.remedy)
    assert any("fewer replicas" in step for step in found.remedy)


def test_only_who_shares_a_namespace_is_told_to_end_a_holder() -> None:
    """Whoever waits does not decide over others' work."""
    others = told("SCH-01").remedy
    assert "kgpu top --once -n home" in others
    assert not any("delete pod" in step for step in others)
    spec = load(FOLDER / "SCH-01.yaml").broken[-1]["spec"]
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    gone = change("Pod", "home/notebook", status={"phase": "Succeeded"})
    own = told("SCH-01", gone, change("Pod", "ml/notebook", spec=spec, status=running)).remedy
    assert "kubectl -n ml delete pod notebook" in own


def test_a_quota_that_one_pod_exceeds_is_not_used_up() -> None:
    words = "exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=1"
    event = next(one for one in load(FOLDER / "QTA-04.yaml").broken if one["kind"] == "Event")
    found = told(
        "QTA-04",
        {
            **event,
            "metadata": {"name": "later", "namespace": "ml"},
            "message": words,
            "lastTimestamp": "2026-01-01T11:00:00Z",
        },
    )
    assert "allows less than one pod asks for" in found.cause
    assert "ask for 1 at most in each pod" in found.remedy
    assert "is used up" in told("QTA-04").cause


def test_a_part_that_runs_where_it_would_not_come_back_is_a_note() -> None:
    owner = {"ownerReferences": [{"kind": "DaemonSet", "name": "nvidia-driver-daemonset", "controller": True}]}
    pod = change(
        "Pod",
        "gpu-operator/driver-x",
        metadata=owner,
        spec={"nodeName": "gpu-1", "containers": [{"name": "c", "image": "nvcr.io/nvidia/driver:570"}]},
    )
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    found = told("TNT-04", pod)
    assert (found.id, found.level) == ("TNT-04", Level.NOTE)
    assert "would not come back" in found.cause
    assert told("TNT-04").level is Level.PROBLEM


def test_a_part_whose_affinity_is_for_other_nodes_is_not_kept_off_by_a_taint() -> None:
    """As kgpu's agent on a node that has opted out, where its label is not."""
    rows = [{"matchExpressions": [{"key": "kgpu.dev/agent", "operator": "Exists"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": rows}}
    pod = {"template": {"spec": {"affinity": {"nodeAffinity": required}}}}
    example = load(FOLDER / "TNT-04.yaml")
    sets = [one for one in example.broken if one["kind"] == "DaemonSet"]
    assert sets
    elsewhere = [
        change("DaemonSet", f"{one['metadata']['namespace']}/{one['metadata']['name']}", spec=pod) for one in sets
    ]
    report = diagnose(example.snapshot(merged([*example.broken, *elsewhere])), strict=True)
    assert "TNT-04" not in [one.id for one in report.findings]


def test_without_nodes_nothing_is_said_of_them() -> None:
    example = load(FOLDER / "SCH-08.yaml")
    report = diagnose(example.snapshot([one for one in example.broken if one["kind"] != "Node"]), strict=True)
    assert [one.id for one in report.findings] == []


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("kubectl get nodes  # all of them", ("all of them:", "kubectl get nodes")),
        ("kubectl get nodes # who is it?", ("who is it?", "kubectl get nodes")),
        ('kubectl patch x -p \'{"a":" # b"}\'', ('kubectl patch x -p \'{"a":" # b"}\'',)),
        ("look at http://example.com/#anchor", ("look at http://example.com/#anchor",)),
        ("sed -i 's/a #b/c/' f  # once", ("once:", "sed -i 's/a #b/c/' f")),
        ("kubectl apply -f - <<EOF\n# kept\nEOF", ("kubectl apply -f - <<EOF\n# kept\nEOF",)),
    ],
)
def test_what_explains_a_command_stands_above_it(step: str, told: tuple[str, ...]) -> None:
    once = Finding(subject=Subject("Node", "n"), cause="c", remedy=(step,))
    assert once.remedy == told
    assert replace(once, cause="d").remedy == told


def test_no_command_has_a_comment_and_none_is_forced_on_others() -> None:
    for path in sorted(FOLDER.glob("*.yaml")):
        example = load(path)
        findings = diagnose(example.snapshot(merged(example.broken))).findings
        assert any(one.remedy for one in findings), path.name
        for one in findings:
            for step in one.remedy:
                assert not re.search(r"^(?:kubectl|helm|oc|crictl|sudo|apt|systemctl)\b[^'\"]*\s# ", step), (
                    path.name,
                    step,
                )
                assert not ("drain" in step and "--force" in step), (path.name, step)
