"""What autoscalers are told of a pool: by who makes the nodes, from what they really offer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kgpu.advise.pool_text import as_data, as_text, notes
from kgpu.advise.pools import PoolFacts, PoolKind, facts, pools
from kgpu.cli.main import main
from tests.placement.clusters import GPU, H100, PRODUCT, Object, node, pod

TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}


def of(
    label: str, *more: Object, provider: str = "", resources: dict[str, str] | None = None, **labels: str
) -> PoolFacts:
    """The facts of a pool of two alike nodes."""
    rows = []
    for name in "ab":
        one = node(name, 8, labels={label: "pool", **labels}, taints=[TAINT], providerID=provider)
        if resources is not None:
            one["status"]["allocatable"] = {"cpu": "96", "memory": "1000Gi", "pods": "110", **resources}
        rows.append(one)
    return facts("pool", pools([*rows, *more])["pool"], [one for one in more if one["kind"] == "Pod"])


def test_an_auto_scaling_group_is_told_slices_labels_and_taints_as_the_nodes_have_them() -> None:
    found = as_data(of(
        "eks.amazonaws.com/nodegroup", provider="aws:///a/i-1", resources={"nvidia.com/mig-1g.10gb": "56"},
        **{"k8s.amazonaws.com/accelerator": "nvidia-h100", "nvidia.com/mig.strategy": "mixed", "other": "x"},
    ))  # fmt: skip
    base = "k8s.io/cluster-autoscaler/node-template/"
    assert found["set"] == {
        f"{base}resources/nvidia.com/mig-1g.10gb": "56",
        f"{base}label/k8s.amazonaws.com/accelerator": "nvidia-h100",
        f"{base}label/{PRODUCT}": H100,
        f"{base}label/nvidia.com/mig.strategy": "mixed",
        f"{base}taint/{GPU}": "present:NoSchedule",
        f"{base}autoscaling-options/scaledowngpuutilizationthreshold": "0.5",
    }


def test_labels_by_which_gpu_pods_select_are_told_too_and_those_of_one_machine_are_not() -> None:
    asking = pod("p", 1, nodeSelector={"team": "x", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "a"})
    found = of("eks.amazonaws.com/nodegroup", asking, team="x", **{"kubernetes.io/arch": "amd64"})
    assert set(found.labels) == {PRODUCT, "team"}


def test_scale_sets_have_no_slashes() -> None:
    found = as_data(of("kubernetes.azure.com/agentpool", provider="azure:///x"))["set"]
    assert found["k8s.io_cluster-autoscaler_node-template_resources_nvidia.com_gpu"] == "8"
    assert not any("/" in key for key in found)


def test_cluster_api_has_annotations() -> None:
    found = as_data(of("eks.amazonaws.com/nodegroup", provider="other://x"))["set"]
    base = "capacity.cluster-autoscaler.kubernetes.io/"
    assert found == {
        f"{base}cpu": "64", f"{base}memory": "512Gi", f"{base}maxPods": "110", f"{base}gpu-type": GPU,
        f"{base}gpu-count": "8", f"{base}labels": f"{PRODUCT}={H100}", f"{base}taints": f"{GPU}=present:NoSchedule",
    }  # fmt: skip


def test_karpenter_gets_an_overlay_only_for_what_the_type_does_not_show() -> None:
    plain = as_data(of("karpenter.sh/nodepool", **{"node.kubernetes.io/instance-type": "p5.48xlarge"}))["set"]
    assert "nodeOverlay" not in plain
    assert plain["nodePool"]["spec"]["template"]["spec"]["taints"] == [TAINT]
    shared = of(
        "karpenter.sh/nodepool", resources={"nvidia.com/gpu.shared": "32"},
        **{"node.kubernetes.io/instance-type": "p5.48xlarge"},
    )  # fmt: skip
    assert as_data(shared)["set"]["nodeOverlay"]["spec"]["capacity"] == {"nvidia.com/gpu.shared": "32"}
    assert "karpenter" in as_text(shared)


def noted(*rows: Object) -> str:
    return " | ".join(notes(facts("pool", rows, ())))


def test_what_has_to_be_minded() -> None:
    bare = node("a", labels={"eks.amazonaws.com/nodegroup": "pool"}, providerID="aws:///x")
    assert "no taint keeps pods without GPUs off" in noted(bare)
    assert "lack the label k8s.amazonaws.com/accelerator" in noted(bare)
    assert "offer different things" in noted(bare, node("b", 4), node("c"))
    assert "offer no accelerators" in noted(node("a", 0))
    assert facts("p", [bare], ()).kind is PoolKind.AWS


def test_most_nodes_decide_and_the_others_are_named() -> None:
    found = facts("p", [node("a", 8), node("b", 8), node("c", 4), node("d", 0)], ())
    assert (found.resources, found.unlike) == ({GPU: 8}, ("c", "d"))


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    rows = [{"apiVersion": "v1", **node("a", labels={"karpenter.sh/nodepool": "gpus"})}]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": rows}))
    return path


def test_the_command(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["kgpu", "advise", "nodepool", "gpus", "--snapshot", str(dump)]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(
        "Pool gpus (karpenter): 1 node, each offers 8 nvidia.com/gpu\n\nFor the NodePool:\n"
    )
    assert main([*words, "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["offers"]) == ("karpenter", {GPU: 8})


def test_a_pool_that_is_not_there(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "advise", "nodepool", "gpu", "--snapshot", str(dump)]) == 2
    assert "no node is of a pool gpu; did you mean" in capsys.readouterr().err


def test_a_cluster_without_pools_is_told_by_which_labels_nodes_are_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path := tmp_path / "nodes.yaml").write_text("{apiVersion: v1, kind: Node, metadata: {name: gpu-1}}\n")
    assert main(["kgpu", "advise", "nodepool", "gpu", "--snapshot", str(path)]) == 2
    said = capsys.readouterr().err
    assert "no node is of a pool gpu, nor of any other" in said
    assert "karpenter.sh/nodepool" in said
