"""What a Node tells of its GPUs: labels of every layout, and values that are none."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.advise.model import ModelOnNode, ResourceShares, SharingWay
from kgpu.advise.nodes import gpus_of

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"


def node(labels: Any = None, capacity: Any = None, **info: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "labels": labels},
        "status": {"capacity": capacity, "nodeInfo": info},
    }


def only(labels: Any = None, capacity: Any = None, **info: Any) -> ModelOnNode:
    (found,) = gpus_of(node(labels, capacity, **info))
    return found


def test_a_whole_gpu() -> None:
    labels = {
        f"{GPU}.product": "NVIDIA-L4", f"{GPU}.count": "4", f"{GPU}.compute.major": "8", f"{GPU}.compute.minor": "9",
        "nvidia.com/mig.capable": "false", f"{GPU}.sharing-strategy": "none", f"{GPU}.replicas": "1",
        "nvidia.com/cuda.driver-version.full": "580.65.06",
    }  # fmt: skip
    assert only(labels, {GPU: "4", "cpu": "8"}, kubeletVersion="v1.34.2+k3s1") == ModelOnNode(
        node="n1", product="NVIDIA-L4", count=4, compute=(8, 9), mig_capable=False, offered=((GPU, 4),),
        driver=(580, 65, 6), kubelet=(1, 34, 2),
    )  # fmt: skip


def test_shares_and_the_plain_product_behind_them() -> None:
    found = only(
        {f"{GPU}.product": "Tesla-T4-SHARED", f"{GPU}.sharing-strategy": "time-slicing", f"{GPU}.replicas": "10"}
    )
    assert (found.product, found.shares) == (
        "Tesla-T4", (ResourceShares(resource=GPU, way=SharingWay.TIME_SLICING, replicas=10),),
    )  # fmt: skip


def test_slices_under_strategy_single_and_shared_slices_under_mixed() -> None:
    single = only({f"{GPU}.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED", "nvidia.com/mig.strategy": "single"})
    assert (single.product, single.slices, single.mig_strategy) == ("NVIDIA-H100-80GB-HBM3", "1g.10gb", "single")
    mixed = only({f"{SLICE}.sharing-strategy": "time-slicing", f"{SLICE}.replicas": "4"}, {SLICE: 28})
    assert mixed.shares == (ResourceShares(resource=SLICE, way=SharingWay.TIME_SLICING, replicas=4),)
    assert mixed.offered == ((SLICE, 28),)


def test_several_models_are_told_apart_and_slices_are_given_to_who_can_have_them() -> None:
    a100, l4 = gpus_of(
        node(
            {
                f"{GPU}.product": "NVIDIA-A100-SXM4-80GB", "kgpu.dev/gpu.models": "2",
                "kgpu.dev/gpu.NVIDIA-A100-SXM4-80GB.count": "2", "kgpu.dev/gpu.NVIDIA-L4.count": "1",
                "kgpu.dev/gpu.NVIDIA-L4.compute.major": "8", "kgpu.dev/gpu.NVIDIA-L4.compute.minor": "9",
                f"{SLICE}.sharing-strategy": "time-slicing",
            },
            {SLICE: "7", GPU: "1"},
        )
    )  # fmt: skip
    assert (a100.product, a100.count, a100.beside, [name for name, _ in a100.offered]) == (
        "NVIDIA-A100-SXM4-80GB", 2, True, [GPU, SLICE],
    )  # fmt: skip
    assert (l4.product, l4.count, l4.compute, l4.offered, l4.shares) == ("NVIDIA-L4", 1, (8, 9), ((GPU, 1),), ())


@pytest.mark.parametrize("labels", [{"feature.node.kubernetes.io/pci-10de.present": "true"}, {f"{GPU}.product": "X"}])
def test_a_node_has_gpus_by_its_pci_bus_or_its_product(labels: dict[str, str]) -> None:
    assert only(labels).node == "n1"


@pytest.mark.parametrize(
    ("labels", "capacity"),
    [
        ({}, {"cpu": "8", "amd.com/gpu": "8", "nvidia.com/rdma": "1"}),
        ({"feature.node.kubernetes.io/pci-10de.present": "false"}, {}),
        ({}, {GPU: "0"}),
        (None, None),
        ([], "no map"),
    ],
)
def test_other_nodes_have_none(labels: Any, capacity: Any) -> None:
    assert list(gpus_of(node(labels, capacity))) == []


@pytest.mark.parametrize("value", ["", "-1", "ten", "1e9", "٣", "99999999999999999999", "1.5", " 4", None, 4, ["4"]])
def test_what_is_no_number_counts_as_absent(value: Any) -> None:
    keys = ("count", "replicas", "compute.major", "compute.minor")
    labels = {f"{GPU}.{key}": value for key in keys} | {f"{GPU}.product": "P", f"{GPU}.sharing-strategy": "mps"}
    found = only(labels)
    assert (found.count, found.compute, found.shares[0].replicas) == (0, (), 0)


@pytest.mark.parametrize("value", ["True", "yes", "", "TRUE", "1", None, True])
def test_only_true_and_false_are_the_drivers_word(value: Any) -> None:
    assert only({f"{GPU}.product": "P", "nvidia.com/mig.capable": value}).mig_capable is None


def test_strategies_that_there_are_not_count_as_absent() -> None:
    labels = {f"{GPU}.product": "P", "nvidia.com/mig.strategy": "double", f"{GPU}.sharing-strategy": "magic"}
    assert (only(labels).mig_strategy, only(labels).shares) == ("", ())


def test_text_that_drives_a_terminal_is_made_harmless_and_cut() -> None:
    found = only({f"{GPU}.product": "\x1b[31mred\nline" + "x" * 500}, {f"{SLICE}\x1b": "1"})
    assert (found.product.isprintable(), len(found.product)) == (True, 63)
    assert all(name.isprintable() for name, _ in found.offered)


@pytest.mark.parametrize("thing", [{}, {"metadata": None}, {"metadata": {"labels": {GPU: 1}}, "status": []}])
def test_a_node_of_another_shape_has_none(thing: Any) -> None:
    assert list(gpus_of(thing)) == []
