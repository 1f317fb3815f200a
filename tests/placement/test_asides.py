"""What is said beside where pods go: pods that ask for no accelerator, and slices that pods get for whole GPUs."""

from __future__ import annotations

import pytest

from kgpu.placement.answer import answer
from kgpu.placement.model import WhatIfAnswer
from kgpu.placement.question import WhatIfQuestion
from tests.placement.clusters import GPU, PRODUCT, Object, by_name, node, pod

SLICED = "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
MIXED = {"nvidia.com/mig.strategy": "mixed"}


def ask(*objects: Object, **question: object) -> WhatIfAnswer:
    return answer(WhatIfQuestion(**question), objects)  # type: ignore[arg-type]


def new(name: str, gpus: int, **spec: object) -> Object:
    return pod(name, gpus, owner="", **spec)


def test_pods_that_ask_for_no_accelerator_are_told_with_what_they_ask_for() -> None:
    (note,) = ask(node("a"), manifests=(new("p", 0), new("q", 0))).notes
    assert note.startswith("these pods ask for no accelerator: their containers request cpu; an accelerator is asked")
    (note,) = ask(node("a"), manifests=(new("p", 1, resource="nvidia.com/gpumem"),)).notes
    assert note.startswith("this pod asks for no accelerator: its containers request cpu, nvidia.com/gpumem; ")


def test_where_one_asks_for_an_accelerator_or_a_claim_nothing_is_told() -> None:
    assert ask(node("a"), manifests=(new("driver", 0), new("worker", 1))).notes == ()
    claim = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}
    assert not [one for one in ask(node("a"), manifests=(new("p", 0, **claim),)).notes if "no accelerator" in one]
    assert ask(node("a"), pod("p", 0, "a"), drain=("a",)).notes == ()  # nothing is submitted


def test_pods_that_would_get_a_slice_for_a_whole_gpu_are_told() -> None:
    found = ask(node("a"), pod("runs", 1, "a"), mig=("a=all-1g.10gb",), manifests=(new("comes", 2),))
    assert by_name(found.outcomes) == {"runs": "a", "comes": "a"}
    (note,) = found.notes
    assert note == (
        f"2 pods with {GPU} would get 1g.10gb slices on node a, no whole GPUs, as MIG strategy single offers slices by "
        "that name: ml/runs, ml/comes"
    )


def test_a_pod_that_leaves_a_whole_gpu_for_a_node_with_slices_is_told_and_one_that_had_such_a_slice_not() -> None:
    sliced = node("b", 56, labels={PRODUCT: SLICED})
    assert "would get 1g.10gb slices on node b" in ask(node("a"), sliced, pod("p", 1, "a"), drain=("a",)).notes[0]
    from_slices = node("a", 56, labels={PRODUCT: SLICED})
    assert ask(from_slices, sliced, pod("p", 1, "a"), drain=("a",)).notes == ()
    assert "3g.40gb slices" in ask(from_slices, pod("p", 1, "a"), mig=("a=all-3g.40gb",)).notes[0]


@pytest.mark.parametrize(
    ("strategy", "layout", "asked"),
    [(MIXED, "all-1g.10gb", "nvidia.com/mig-1g.10gb"), (MIXED, "all-1g.10gb", GPU), ({}, "all-disabled", GPU)],
    ids=["asks for the slice", "finds no whole one", "gets a whole one"],
)
def test_who_gets_what_it_asks_for_is_not_told(strategy: dict[str, str], layout: str, asked: str) -> None:
    found = ask(node("a", labels=strategy), mig=(f"a={layout}",), manifests=(new("p", 1, resource=asked),))
    assert found.notes == ()


def test_of_many_pods_five_are_named() -> None:
    found = ask(node("a"), mig=("a=all-1g.10gb",), manifests=(new("p", 1),), count=7)
    assert found.notes[0].startswith(f"7 pods with {GPU}")
    assert found.notes[0].endswith("ml/p, ml/p-1, ml/p-2, ml/p-3, ml/p-4 and 2 more")
