"""Plans to make room: the fewest moves, each possible at its turn, compared with every sequence of moves there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.fit import explain
from kgpu.placement.defrag import MOST_MOVES, defragment, immovable
from kgpu.placement.state import PlacementState
from tests.budget import tries
from tests.placement.clusters import GPU, budget, drawn, node, pod, state


def fewest(free: dict[str, int], pods: dict[str, tuple[str, int]], wanted: int) -> int | None:
    """The length of the shortest sequence of moves, by trying all; None where there is none. Devices alone count."""
    level, seen = [(frozenset(pods.items()), frozenset[str]())], set()
    for length in range(MOST_MOVES + 1):
        following = []
        for placed, moved in level:
            now = dict(placed)
            left = {name: many - sum(size for at, size in now.values() if at == name) for name, many in free.items()}
            if any(many >= wanted for many in left.values()):
                return length
            for name, (at, size) in now.items():
                for target, many in left.items():
                    if name not in moved and target != at and many >= size:
                        grown = (frozenset({**now, name: (target, size)}.items()), moved | {name})
                        if grown not in seen:
                            seen.add(grown)
                            following.append(grown)
        level = following
    return None


@tries(150)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_no_sequence_of_moves_is_shorter(seed: int, wanted: int) -> None:
    objects = drawn(seed)
    cluster = PlacementState(objects)
    fixed = {one.id for one in cluster.snapshot.pods.values() if immovable(cluster, one)}
    free = {name: there.view.allocatable[GPU] for name, there in cluster.snapshot.nodes.items()}
    pods = {}
    for one in cluster.snapshot.pods.values():
        if one.id in fixed:
            free[one.node] -= one.used[GPU]
        else:
            pods[one.id] = (one.node, one.used[GPU])
    best = fewest(free, pods, wanted)
    found = defragment(cluster, GPU, wanted)
    assert (len(found.moves) if found.node else None) == best, found.why
    replay(PlacementState(objects), found.moves, found.node, wanted)


def replay(cluster: PlacementState, moves: tuple, node_name: str, wanted: int) -> None:
    """Every move fits at its turn, and then there is room."""
    for move in moves:
        cluster.snapshot.drop(move.pod)
        waiting = replace(move.pod, node="")
        assert explain(waiting, move.target, cluster.snapshot) == ()
        cluster.snapshot.put(replace(waiting, node=move.target))
    assert not node_name or cluster.snapshot.nodes[node_name].free(GPU) >= wanted


def test_a_plan_leaves_the_state_as_it_was() -> None:
    cluster = state(node("a"), node("b"), pod("p", 4, "a"), pod("q", 4, "b"))
    before = {one.id: one.node for one in cluster.snapshot.pods.values()}
    found = defragment(cluster, GPU, 8)
    assert [(str(move.pod), move.source, move.target) for move in found.moves] == [("ml/p", "a", "b")]
    assert {one.id: one.node for one in cluster.snapshot.pods.values()} == before


@pytest.mark.parametrize(
    ("stays", "why"),
    [
        ({"owner": ""}, "has no controller"),
        ({"owner": "DaemonSet/d"}, "is of a DaemonSet"),
        ({"owner": "Job/train"}, "would lose its work"),
        ({"owner": "Node/a"}, "is a static pod"),
        ({"namespace": "kube-system"}, "is in kube-system"),
        ({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}, "asks to stay by an annotation"),
        ({"annotations": {"karpenter.sh/do-not-disrupt": "4h"}}, "asks to stay by an annotation"),
        ({"annotations": {"descheduler.alpha.kubernetes.io/prefer-no-eviction": "true"}}, "asks to stay by an annotation"),
    ],
)  # fmt: skip
def test_what_must_stay_stays(stays: dict, why: str) -> None:
    cluster = state(node("a"), node("b"), pod("p", 4, "a", **stays), pod("q", 4, "b", **stays))
    found = defragment(cluster, GPU, 8)
    assert (found.node, found.fixed) == ("", {why: 2})
    assert "2 have to stay" in found.why


def test_an_annotation_that_says_no_keeps_nothing() -> None:
    said = {"karpenter.sh/do-not-disrupt": "false", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    cluster = state(pod("p", 4, "a", annotations=said))
    assert immovable(cluster, next(iter(cluster.snapshot.pods.values()))) == ""


def test_budgets_count_all_moves_together() -> None:
    nodes = [node("a"), node("b"), node("c")]
    two = [pod("p", 2, "a"), pod("q", 2, "a"), pod("r", 1, "b", owner=""), pod("s", 1, "c", owner="")]
    for one in two[:2]:
        one["metadata"]["labels"] = {"app": "serve"}
    assert len(defragment(state(*nodes, *two, budget("serve", 2)), GPU, 8).moves) == 2
    assert defragment(state(*nodes, *two, budget("serve", 1)), GPU, 8).node == ""
    assert defragment(state(*nodes, *two, budget("serve", 0)), GPU, 8).node == ""


def test_more_than_any_node_has() -> None:
    assert defragment(state(node("a")), GPU, 9).why == f"no node has 9 {GPU}: the largest that takes pods has 8"
    assert defragment(state(node("a", unschedulable=True)), GPU, 8).node == ""


def test_a_large_cluster_is_searched_where_it_promises_most() -> None:
    nodes = [node(f"n{at:02}") for at in range(60)]
    pods = [pod(f"p{at:02}", 4, f"n{at:02}") for at in range(60)]
    found = defragment(state(*nodes, *pods), GPU, 8)
    assert len(found.moves) == 1
