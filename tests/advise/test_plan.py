"""Kinds of GPUs, choices for needs, and what holds for any label whatever."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.advise.answer import SharingAnswer, answer, as_data
from kgpu.advise.model import DraService, GpuKind, ModelOnNode, Possibility, ResourceShares, SharingWay
from kgpu.advise.nodes import gpus_of
from kgpu.advise.plan import choices, configured, kinds, profiles
from kgpu.advise.render import as_text
from kgpu.advise.ways import FACTS, NEED_BY_KEY, NEEDS

GPU = "nvidia.com/gpu"
DRA = DraService(kubernetes=(1, 35), served="v1")
H100 = ModelOnNode(node="h1", product="NVIDIA-H100-80GB-HBM3", compute=(9, 0), mig_capable=True, offered=((GPU, 8),))
L4 = ModelOnNode(node="l1", product="NVIDIA-L4", compute=(8, 9), mig_capable=False, offered=((GPU, 4),))
P100 = ModelOnNode(node="p1", product="Tesla-P100", compute=(6, 0), mig_capable=False, offered=((GPU, 4),))


def on(gpus: ModelOnNode, node: str) -> ModelOnNode:
    import dataclasses

    return dataclasses.replace(gpus, node=node)


def test_nodes_that_are_alike_are_one_kind_and_the_most_common_comes_first() -> None:
    found = kinds([L4, on(H100, "h2"), on(H100, "h1"), on(P100, "a")], DRA)
    assert [(kind.gpus.product, kind.nodes) for kind in found] == [
        ("NVIDIA-H100-80GB-HBM3", ("h1", "h2")), ("NVIDIA-L4", ("l1",)), ("Tesla-P100", ("a",)),
    ]  # fmt: skip


def test_a_node_that_dra_publishes_is_a_kind_of_its_own() -> None:
    service = DraService(kubernetes=(1, 35), served="v1", publishers={"h1": frozenset({"gpu.nvidia.com"})})
    states = {kind.nodes: kind.of(SharingWay.DRA).state for kind in kinds([H100, on(H100, "h2")], service)}
    assert states == {("h1",): Possibility.IN_USE, ("h2",): Possibility.MISSING}


def test_mig_profiles_are_those_of_the_model_with_the_most_of_each() -> None:
    assert profiles("NVIDIA-A100-SXM4-80GB") == (
        ("1g.10gb", 7), ("1g.20gb", 4), ("2g.20gb", 3), ("3g.40gb", 2), ("4g.40gb", 1), ("7g.80gb", 1),
    )  # fmt: skip
    assert profiles("NVIDIA-A30") == (("1g.6gb", 4), ("2g.12gb", 2), ("4g.24gb", 1))
    assert [name for name, _ in profiles("NVIDIA-RTX-PRO-6000-Blackwell")] == ["1g.24gb", "2g.48gb", "4g.96gb"]
    assert (profiles("NVIDIA-L4"), profiles("")) == ((), ())


@pytest.mark.parametrize(
    ("need", "gpus", "way", "passed"),
    [
        ("isolation", H100, SharingWay.MIG, []),
        ("isolation", L4, SharingWay.WHOLE, [SharingWay.MIG]),
        ("memory-limit", L4, SharingWay.MPS, [SharingWay.MIG]),
        ("throughput", H100, SharingWay.MPS, []),
        ("throughput", P100, SharingWay.TIME_SLICING, [SharingWay.MPS, SharingWay.MIG]),
        ("many-small", P100, SharingWay.TIME_SLICING, []),
        ("whole-gpu", H100, SharingWay.WHOLE, []),
        ("by-attribute", H100, None, [SharingWay.DRA]),
    ],
)
def test_the_first_way_that_is_there_answers_a_need(
    need: str, gpus: ModelOnNode, way: SharingWay | None, passed: list[SharingWay]
) -> None:
    (choice,) = choices(NEED_BY_KEY[need], kinds([gpus], DRA))
    assert (choice.way and choice.way.way, [row.way for row in choice.passed]) == (way, passed)


def test_what_is_set_up_is_one_line() -> None:
    shares = (ResourceShares(resource=GPU, way=SharingWay.TIME_SLICING, replicas=10),)
    gpus = ModelOnNode(node="n", mig_strategy="single", slices="1g.10gb", shares=shares, offered=((GPU, 70),))
    assert configured(gpus) == (
        "nvidia.com/gpu is shared by time-slicing, 10 each; MIG strategy single; slices of 1g.10gb; "
        "offers 70 nvidia.com/gpu"
    )
    assert configured(ModelOnNode(node="n", slices="INVALID")) == "a MIG layout that does not fit"
    assert configured(ModelOnNode(node="n")) == ""


VALUES = st.one_of(
    st.text(max_size=80), st.sampled_from(["true", "false", "mps", "time-slicing", "single", "mixed", "7"])
)
KEYS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas", "nvidia.com/mig.capable",
            "nvidia.com/gpu.sharing-strategy", "nvidia.com/mig.strategy", "nvidia.com/gpu.compute.major",
            "nvidia.com/gpu.compute.minor", "kgpu.dev/gpu.A.count", "kgpu.dev/gpu.B.count", "kgpu.dev/gpu..count",
            "nvidia.com/mig-1g.10gb.sharing-strategy", "nvidia.com/cuda.driver-version.full",
        ]
    ),
)  # fmt: skip
LABELS = st.dictionaries(KEYS, st.one_of(VALUES, st.none(), st.integers()), max_size=12)
CAPACITY = st.dictionaries(
    st.sampled_from([GPU, "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-\x1b"]),
    st.one_of(st.integers(), st.text(max_size=8)),
)


@given(labels=LABELS, capacity=CAPACITY, kubelet=VALUES)
def test_whatever_labels_say_every_way_has_one_answer_and_only_what_is_usable_is_taken(
    labels: dict[str, Any], capacity: dict[str, Any], kubelet: str
) -> None:
    node = {
        "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "P", **labels}},
        "status": {"capacity": capacity, "nodeInfo": {"kubeletVersion": kubelet}},
    }
    gpus = list(gpus_of(node))
    found: tuple[GpuKind, ...] = kinds(gpus, DRA)
    assert all(
        [row.way for row in kind.ways] == list(SharingWay) and all(row.why for row in kind.ways) for kind in found
    )
    for need in NEEDS:
        for choice in choices(need, found):
            assert choice.way is None or choice.way.state.usable
            assert not any(row.state.usable for row in choice.passed)
    whole = answer(gpus, DRA, nodes=["n"], need=NEEDS[0])
    assert json.dumps(as_data(whole))
    assert all(line.isprintable() for line in as_text(whole, width=100).split("\n"))


def test_json_has_the_table_with_its_sources_and_the_cluster() -> None:
    data = as_data(answer([H100, L4], DRA, nodes=["h1", "l1", "cpu"], need=NEED_BY_KEY["isolation"]))
    assert [row["sources"] for row in data["facts"]] == [list(row.sources) for row in FACTS]
    assert (data["version"], data["cluster"]["kubernetes"], data["cluster"]["otherNodes"]) == (1, "1.35", 1)
    assert [kind["nodes"] for kind in data["cluster"]["kinds"]] == [["h1"], ["l1"]]
    assert data["cluster"]["kinds"][0]["migProfiles"][0] == {"profile": "1g.10gb", "most": 7}
    assert [kind["take"]["way"] for kind in data["advice"]["kinds"]] == ["mig", "whole"]


def test_json_without_a_cluster_says_why() -> None:
    data = as_data(SharingAnswer(why="no answer"))
    assert (data["cluster"], data["notLookedAt"], data["advice"], len(data["facts"])) == (
        None, "no answer", None, len(FACTS),
    )  # fmt: skip
