"""Slices and whole GPUs: which of them is missing, and what it costs to ask for the other."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kgpu.doctor.model import Finding, Level, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.example import base, merged

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
PRODUCT, STRATEGY = "nvidia.com/gpu.product", "nvidia.com/mig.strategy"
H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-40GB"
APART: dict[str, Any] = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "serve"}}, "topologyKey": PRODUCT}
            ]
        }
    }
}
SECTIONS: dict[str, Any] = {
    key: {} for key in ("operator", "daemonsets", "driver", "toolkit", "devicePlugin", "dcgmExporter", "gfd", "dcgm")
}
POLICY = {
    "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": {**SECTIONS, "mig": {"strategy": "none"}},
}  # fmt: skip
PATCH = """kubectl patch clusterpolicy cluster-policy --type merge -p '{"spec":{"mig":{"strategy":"mixed"}}}'"""


def node(name: str, product: str, amounts: dict[str, int], taints: tuple[str, ...] = ()) -> dict[str, Any]:
    has = {"cpu": "64", "memory": "512Gi", "pods": "110", **{key: str(count) for key, count in amounts.items()}}
    known = {
        "feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/gpu.present": "true",
        "nvidia.com/mig.capable": "true", "kubernetes.io/hostname": name, PRODUCT: product,
    }  # fmt: skip
    return {
        "kind": "Node", "metadata": {"name": name, "labels": known},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def labelled(obj: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    made = copy.deepcopy(obj)
    made["metadata"]["labels"] |= labels
    return made


MIXED = labelled(node("mig-1", "NVIDIA-A100X", {GPU: 0, SLICE: 7}), {STRATEGY: "mixed"})
PLAIN = (node("a", H100, {GPU: 8}), node("b", A100, {GPU: 8}))
CUT = labelled(node("mig-1", H100, {GPU: 2}), {STRATEGY: "none"})
FACTS = {
    "kind": "HostFacts", "metadata": {"name": "mig-1"}, "node": "mig-1",
    "gpus": [
        {"index": 0, "uuid": "GPU-1", "migCapable": True, "migEnabled": True, "instances": ["1g.10gb"] * 7},
        {"index": 1, "uuid": "GPU-2", "migCapable": True},
    ],
}  # fmt: skip


def pod(resource: str = GPU, name: str = "train", **spec: Any) -> dict[str, Any]:
    amounts = {"limits": {resource: 1}, "requests": {resource: 1}}
    reason = "SchedulingGated" if "schedulingGates" in spec else "Unschedulable"
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ml", "labels": {"app": "serve"}, "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "main", "image": "cuda", "resources": amounts}], **spec,
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}]},
    }  # fmt: skip


def placed(name: str, where: str) -> dict[str, Any]:
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {**pod(name=name, nodeName=where), "status": ready}


def report(*objects: dict[str, Any]) -> Report:
    return diagnose(Snapshot.of(copy.deepcopy(merged(list(objects))), taken=1767268800.0), strict=True)


def told(*objects: dict[str, Any]) -> Finding:
    """The one that is told of the pod that waits."""
    (found,) = [one for one in report(*objects).findings if str(one.subject) == "Pod ml/train"]
    return found


def test_gpus_that_anti_affinity_forbids_are_not_partitioned() -> None:
    found = told(MIXED, *PLAIN, placed("serve-a", "a"), placed("serve-b", "b"), pod(**APART))
    assert found.id == "SCH-00"
    assert "must not run in a nvidia.com/gpu.product that has pods matching" in found.cause
    (step,) = [step for step in found.remedy if f"ask for {SLICE} instead" in step]
    assert "gives up the whole GPU: a slice has 1 of its compute slices and 10 GB of its memory" in step


@pytest.mark.parametrize("nodes", [(MIXED, *PLAIN), (MIXED,)], ids=["GPUs free", "all cut"])
def test_a_pod_with_a_gate_waits_for_the_gate(nodes: tuple[dict[str, Any], ...]) -> None:
    found = told(*nodes, pod(schedulingGates=[{"name": "example.com/hold"}]))
    assert (found.id, found.level) == ("SCH-00", Level.WAIT)
    assert "waits for its scheduling gate example.com/hold" in found.cause


def test_a_gate_comes_before_the_name_of_a_slice() -> None:
    single = labelled(node("mig-1", f"{H100}-MIG-1g.10gb", {GPU: 7}), {STRATEGY: "single"})
    assert told(single, pod(SLICE)).id == "SCH-05"
    assert told(single, pod(SLICE, schedulingGates=[{"name": "example.com/hold"}])).id == "SCH-00"


def test_a_slice_in_a_gpus_place_says_what_is_given_up() -> None:
    found = told(MIXED, pod())
    assert found.id == "SCH-06"
    assert "which no node offers" in found.cause
    assert "gives up the whole GPU" in found.remedy[0]
    assert "a process sees one slice only; then it fits node mig-1" in found.remedy[0]


@pytest.mark.parametrize(
    ("keys", "wanted", "id_"),
    [
        ((), {"kubernetes.io/hostname": "mig-1"}, "SCH-06"),
        (("example.com/kept",), {}, "SCH-06"),
        (("node.kubernetes.io/not-ready",), {}, ""),
        (("node.kubernetes.io/memory-pressure",), {}, ""),
    ],
    ids=["selector", "taint", "not ready", "pressure"],
)
def test_only_nodes_where_it_may_run_count(keys: tuple[str, ...], wanted: dict[str, str], id_: str) -> None:
    """What a node's state has put there passes: its GPUs are there."""
    found = report(MIXED, node("a", H100, {GPU: 8}, keys), pod(nodeSelector=wanted)).findings
    ids = {each.id for root in found for each in root.all()}
    assert ("SCH-06" in ids) is bool(id_)
    assert found


def test_gpus_that_are_withdrawn_are_not_partitioned() -> None:
    ill = node("a", H100, {GPU: 1})
    ill["status"] = {**ill["status"], "allocatable": {**ill["status"]["allocatable"], GPU: "0"}}
    ids = {each.id for root in report(MIXED, ill, pod()).findings for each in root.all()}
    assert "DPL-03" in ids  # no plugin is ready there
    assert "SCH-06" not in ids


def test_a_count_left_from_before_the_cut_does_not_hide_it() -> None:
    """The kubelet forgets a resource that nobody offers any more only after minutes."""
    lately = copy.deepcopy(MIXED)
    lately["status"]["capacity"] = {**lately["status"]["capacity"], GPU: "1"}
    ids = {each.id for root in report(lately, pod()).findings for each in root.all()}
    assert "SCH-06" in ids


WAYS = {
    "driver": ((CUT, FACTS), "node mig-1 has 7 slices of that size", "gpus"),
    "count": (
        (labelled(CUT, {"nvidia.com/mig-1g.10gb.count": "7"}),),
        "node mig-1 has 7 slices of that size", "nvidia.com/mig-1g.10gb.count",
    ),
    "layout": (
        (*base("mig"), labelled(CUT, {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "success"})),
        "node mig-1 has slices of that size", "nvidia.com/mig.config",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_slices_that_nobody_offers_are_found(way: str) -> None:
    objects, words, shown = WAYS[way]
    found = told(*objects, POLICY, *PLAIN, pod(SLICE))
    assert found.id == "SCH-00"
    assert f"{words}, which nobody offers because mig.strategy is none" in found.cause
    assert "could be" not in found.cause
    assert any(shown in str(one) for one in found.evidence)
    assert found.remedy[1].startswith(PATCH)
    assert not any("nvidia-smi" in step for step in found.remedy)
    assert "ask for nvidia.com/gpu instead" in found.remedy[-4]
    assert "takes a whole GPU for each slice (on node mig-1 it may be one that is cut)" in found.remedy[-4]


def test_without_a_policy_the_plugin_is_to_be_told() -> None:
    found = told(CUT, FACTS, pod(SLICE))
    assert found.remedy[0].startswith("give the device plugin the MIG strategy mixed")


def test_slices_of_another_size_are_not_taken_for_it() -> None:
    found = told(CUT, FACTS, *PLAIN, pod("nvidia.com/mig-3g.40gb"))
    assert "no GPU is cut into 3g.40gb yet" in found.cause


def test_a_whole_gpu_is_the_last_way_also_where_none_is_cut() -> None:
    found = told(PLAIN[0], pod(SLICE))
    assert "nvidia-smi mig -i INDEX" in found.remedy[1]
    assert "takes a whole GPU for each slice" in found.remedy[-4]
    assert "it may be one that is cut" not in found.remedy[-4]


def test_slices_behind_a_taint_are_named_too() -> None:
    kept = copy.deepcopy(CUT)
    kept["spec"]["taints"] = [{"key": "example.com/kept", "effect": "NoSchedule"}]
    found = told(kept, FACTS, POLICY, PLAIN[0], pod(SLICE))
    assert "node mig-1 has 7 slices of that size" in found.cause
    assert found.remedy[1].startswith(PATCH)
    assert "then it fits node a" in found.remedy[-4]
