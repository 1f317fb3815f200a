"""Where no moves make room: which pods are in the way, and what keeps each."""

from __future__ import annotations

from kgpu.placement import render
from kgpu.placement.answer import answer
from kgpu.placement.defrag import defragment
from kgpu.placement.model import DefragPlan
from kgpu.placement.question import WhatIfQuestion
from tests.placement.clusters import GPU, Object, budget, node, pod, state


def told(plan: DefragPlan) -> list[tuple[str, str, int, str]]:
    return [(one.node, one.pod.name, one.devices, one.why) for one in plan.in_the_way]


def test_pods_that_stay_are_named_with_the_reason() -> None:
    cluster = state(node("a"), node("b"), pod("bare", 2, "a", owner=""), pod("train", 4, "b", owner="Job/train"))
    plan = defragment(cluster, GPU, 8)
    assert plan.node == ""
    assert told(plan) == [("a", "bare", 2, "has no controller"), ("b", "train", 4, "would lose its work")]


def test_a_budget_is_named() -> None:
    pods = [pod("p", 2, "a"), pod("q", 2, "a")]
    for one in pods:
        one["metadata"]["labels"] = {"app": "serve"}
    nodes = [node("a"), node("b"), pod("fix", 1, "b", owner="")]
    plan = defragment(state(*nodes, *pods, budget("serve", 1)), GPU, 8)
    why = "is of PodDisruptionBudget pdb-serve, which allows 1 disruptions now"
    assert told(plan) == [
        ("b", "fix", 1, "has no controller"), ("a", "p", 2, why), ("a", "q", 2, why),
    ]  # fmt: skip


def test_a_pod_that_fits_nowhere_else_is_told_with_what_the_others_lack() -> None:
    cluster = state(node("a"), node("b", 4), node("c", 2), pod("big", 6, "a"), pod("r", 4, "b"))
    assert told(defragment(cluster, GPU, 8)) == [("a", "big", 6, f"fits no other node (2 Insufficient {GPU})")]
    kept = {one.id: one.node for one in cluster.snapshot.pods.values()}
    assert kept == {"uid-big": "a", "uid-r": "b"}


def test_pods_for_which_there_is_not_room_together_come_last() -> None:
    cluster = state(
        node("a"), node("b", 4), pod("p", 3, "a"), pod("q", 3, "a"), pod("bare", 0, "a", owner=""),
        pod("fix", 1, "b", owner=""),
    )  # fmt: skip
    why = "could be moved by itself, but not all that would have to go"
    assert told(defragment(cluster, GPU, 8)) == [("a", "p", 3, why), ("a", "q", 3, why)]


def test_the_nodes_that_come_closest_are_told_and_no_more_than_three() -> None:
    bare = [pod(f"bare-{at}", 5 - at, f"n{at}", owner="") for at in range(5)]
    plan = defragment(state(*(node(f"n{at}") for at in range(5)), *bare), GPU, 8)
    assert [one.node for one in plan.in_the_way] == ["n4", "n3", "n2"]


def test_nothing_is_in_the_way_of_a_plan_or_where_no_node_is_large_enough() -> None:
    cluster: list[Object] = [node("a"), node("b"), pod("p", 4, "a"), pod("q", 4, "b")]
    assert defragment(state(*cluster), GPU, 8).in_the_way == ()
    assert defragment(state(*cluster), GPU, 9).in_the_way == ()


def test_text_names_some_and_data_all() -> None:
    bare = [pod(f"bare-{at}", 1, "a", owner="") for at in range(8)]
    many = [node("a", 16), *bare, pod("bare-8", 1, "a", owner=""), pod("bare-9", 1, "a", owner="")]
    found = answer(WhatIfQuestion(defrag_for=16), many)
    lines = render.as_text(found).splitlines()
    at = lines.index("  in the way on node a:")
    assert lines[at + 1] == "    ml/bare-0 (1): has no controller"
    assert lines[at + 9] == "    and 2 more (-o json has all)"
    rows = render.as_data(found)["defrag"]["inTheWay"]
    assert len(rows) == 10
    assert rows[0] == {"node": "a", "pod": "ml/bare-0", "devices": 1, "why": "has no controller"}
