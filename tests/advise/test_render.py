"""The answer as text: what is on it, how wide it gets, and that large clusters stay readable."""

from __future__ import annotations

import pytest

from kgpu.advise.answer import SharingAnswer, answer
from kgpu.advise.model import DraService, ModelOnNode, SharingWay
from kgpu.advise.render import MOST_KINDS, as_text
from kgpu.advise.ways import FACTS, NEED_BY_KEY

DRA = DraService(kubernetes=(1, 35), served="v1")


def h100(node: str = "n1", **changes: object) -> ModelOnNode:
    shape = {"product": "NVIDIA-H100-80GB-HBM3", "count": 8, "compute": (9, 0), "offered": (("nvidia.com/gpu", 8),)}
    return ModelOnNode(node=node, **{**shape, **changes})  # type: ignore[arg-type]


def said(*gpus: ModelOnNode, **changes: object) -> str:
    found = answer(gpus, DRA, nodes=[one.node for one in gpus], table=False, **changes)  # type: ignore[arg-type]
    return " ".join(as_text(found, width=120).split())


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_table_has_every_cell_and_keeps_to_the_width(width: int) -> None:
    shown = as_text(SharingAnswer(why="--no-cluster"), width=width)
    assert max(map(len, shown.splitlines())) <= width
    letters = "".join(shown.split())
    missing = [row.key for row in FACTS if row.title.split()[0] not in letters]
    assert missing == []
    assert "…" not in shown
    assert shown.endswith("Nodes were not looked at: --no-cluster")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_word_of_the_table_is_cut(width: int) -> None:
    words = set(as_text(SharingAnswer(why="--no-cluster"), width=width).split())
    assert {word for row in FACTS for way in SharingWay for word in row.of(way).split()} <= words


def test_at_a_wide_screen_each_cell_stands_as_it_is() -> None:
    shown = as_text(SharingAnswer(), width=900)
    assert [(row.key, way) for row in FACTS for way in SharingWay if row.of(way) not in shown] == []


def test_a_kind_shows_now_every_way_and_the_profiles() -> None:
    shown = said(h100("a"), h100("b"))
    assert "2 nodes with NVIDIA GPUs" in shown
    assert "8 x NVIDIA-H100-80GB-HBM3 on each of 2 nodes: a, b" in shown
    assert "now: offers 8 nvidia.com/gpu" in shown
    assert "whole GPU in use the node offers nvidia.com/gpu" in shown
    assert "MPS yes up to 48 clients" in shown
    assert "MIG profiles, the most of each on one GPU: 7 x 1g.10gb, 4 x 1g.20gb" in shown


def test_no_profiles_where_there_can_be_no_slices() -> None:
    assert "profiles" not in said(h100(mig_capable=False))


def test_slices_are_not_counted_as_gpus() -> None:
    assert "x NVIDIA" not in said(h100(slices="1g.10gb", count=56))


def test_a_need_is_answered_and_what_is_better_is_told() -> None:
    shown = said(h100(mig_capable=False), need=NEED_BY_KEY["isolation"])
    assert "Need: users must neither see nor disturb each other (isolation) take MIG, else whole GPU" in shown
    assert "take: whole GPU (in use)" in shown
    assert "not: MIG (no): nvidia.com/mig.capable=false" in shown
    assert "none of these is there" in said(h100(), need=NEED_BY_KEY["by-attribute"])


def test_a_cluster_without_gpus_is_told() -> None:
    found = answer([], DRA, nodes=["a", "b"], table=False)
    shown = as_text(found, width=100)
    assert "0 nodes with NVIDIA GPUs, 2 not known to have any" in shown
    assert "kgpu doctor" in shown


def test_a_thousand_kinds_fit_and_names_are_cut() -> None:
    many = [h100(f"{'n' * 200}{index}", count=index + 1) for index in range(1000)]
    shown = said(*many)
    assert f"and {1000 - MOST_KINDS} more kinds; -o json has them all" in shown
    assert "n" * 60 not in shown
    alike = said(*(h100(f"n{index}") for index in range(1000)))
    assert "on each of 1000 nodes: n0, n1, n10 and 997 more" in alike
