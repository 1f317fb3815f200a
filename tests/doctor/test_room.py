"""Where every GPU is taken: only those who hold what would do are named, and what is proposed gives it free."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.doctor.model import Finding
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot

GPU = "nvidia.com/gpu"


def node(name: str, product: str, gpus: int) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(gpus)}
    return {
        "kind": "Node", "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def pod(
    name: str, gpus: int, *, on: str = "", owner: tuple[str, str] = ("", ""), born: str = "10", **spec: Any
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "ml", "creationTimestamp": f"2026-01-01T{born}:00:00Z"}
    if owner[0]:
        metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "controller": True}]
    placed = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    waits = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
    return {
        "kind": "Pod", "metadata": metadata,
        "spec": {**({"nodeName": on} if on else {}), **spec, "containers": [
            {"name": "a", "image": "i", "resources": {"limits": {GPU: gpus}}}]},
        "status": placed if on else waits,
    }  # fmt: skip


L4 = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"}}


def told(*objects: dict[str, Any]) -> Finding:
    nodes = [node("l4-1", "NVIDIA-L4", 2), node("h100-1", "NVIDIA-H100", 8)]
    found = diagnose(Snapshot.of([*nodes, *objects], taken=1767268800.0), strict=True)
    return next(one for root in found.findings for one in root.all() if one.id == "SCH-01")


def test_who_holds_gpus_where_the_pod_may_not_run_is_left_alone() -> None:
    mine = ("ReplicaSet", "infer")
    one = told(
        pod("train", 8, on="h100-1", born="08"), pod("infer-1", 2, on="l4-1", owner=mine),
        pod("infer-2", 1, owner=mine, born="11", **L4),
    )  # fmt: skip
    assert "train" not in one.cause
    assert not any("train" in step for step in one.remedy)
    assert "infer" in one.remedy[0]


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (("", ""), "kubectl -n ml delete pod held"),
        (("ReplicaSet", "web-1"), "kubectl -n ml scale deployment web --replicas=2"),
        (("StatefulSet", "db"), "kubectl -n ml scale statefulset db --replicas=0"),
        (("Job", "fit"), """kubectl -n ml patch job fit -p '{"spec":{"suspend":true}}'"""),
        (("PyTorchJob", "torch"), "make PyTorchJob ml/torch smaller, or end it: ml/held is"),
    ],
)
def test_what_would_be_made_again_is_made_smaller(owner: tuple[str, str], step: str) -> None:
    of = {
        "name": "web-1",
        "namespace": "ml",
        "ownerReferences": [{"kind": "Deployment", "name": "web", "controller": True}],
    }
    one = told(
        pod("held", 2, on="l4-1", owner=owner), pod("mine", 1, born="11", **L4),
        {"kind": "ReplicaSet", "metadata": of, "spec": {"replicas": 3}},
        {"kind": "Deployment", "metadata": {"name": "web", "namespace": "ml"}, "spec": {"replicas": 3}},
        {"kind": "StatefulSet", "metadata": {"name": "db", "namespace": "ml"}, "spec": {}},
        {"kind": "Job", "metadata": {"name": "fit", "namespace": "ml"}, "spec": {}},
    )  # fmt: skip
    position, _ = next(row for row in enumerate(one.remedy) if row[1].startswith(step))
    assert "ml/held is" in " ".join(one.remedy[max(position - 1, 0) : position + 1])  # who holds it, above the command


def test_a_misspelt_key_of_the_selector_is_corrected_and_not_dropped() -> None:
    wrong = pod("mine", 1, nodeSelector={"nvidia.com/gpu.products": "NVIDIA-L4"})
    nodes = [node("l4-1", "NVIDIA-L4", 2), node("h100-1", "NVIDIA-H100", 8)]
    found = diagnose(Snapshot.of([*nodes, wrong], taken=1767268800.0), strict=True).findings[0]
    assert found.id == "SCH-08"
    assert '{"nvidia.com/gpu.products":null,"nvidia.com/gpu.product":"NVIDIA-L4"}' in found.remedy[1]
    assert "then it fits node l4-1" in found.remedy[0]
