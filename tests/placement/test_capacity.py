"""cap_k, frag_k and what usual pods can't use: by hand, and against a count that tries every way."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from kgpu.fit import verdict
from kgpu.placement import capacity
from kgpu.placement.state import PlacementState
from tests.budget import tries
from tests.placement.clusters import GPU, drawn, node, pod, state


def most_pods(free: tuple[int, ...], size: int) -> int:
    """The most pods of so many devices that can be placed, one after another, wherever."""

    @cache
    def most(left: tuple[int, ...]) -> int:
        ways = [(*left[:at], many - size, *left[at + 1 :]) for at, many in enumerate(left) if many >= size]
        return max((1 + most(tuple(sorted(way))) for way in ways), default=0)

    return most(tuple(sorted(free)))


@tries(200)
@given(st.lists(st.integers(0, 8), max_size=4), st.integers(1, 8))
def test_what_fits_at_once_is_what_trying_every_way_finds(free: list[int], size: int) -> None:
    best = most_pods(tuple(free), size)
    assert capacity.fits_at_once(free, size) == best
    total = sum(free)
    useless = total - size * best
    assert capacity.fragmentation(free, size) == (Fraction(useless, total) if total else 0)


@tries(100)
@given(st.integers(0, 10**6))
def test_what_usual_pods_cannot_use_is_counted_pod_by_pod_and_node_by_node(seed: int) -> None:
    cluster = PlacementState(drawn(seed))
    pods = [one for one in cluster.snapshot.pods.values() if one.requests.get(GPU)]
    lost = Fraction(0)
    for one in pods:
        fits = verdict(cluster.copy_of(one, "probe"), cluster.snapshot).fits
        lost += sum(there.free(GPU) for name, there in cluster.snapshot.nodes.items() if name not in fits)
    nodes = cluster.snapshot.nodes.values()
    found = capacity.unusable(nodes, GPU, capacity.shapes_of(cluster.snapshot, GPU))
    assert found == (lost / len(pods) if pods else 0)


def test_cordoned_and_unready_nodes_have_no_room() -> None:
    dead = node("dead")
    dead["status"]["conditions"][0]["status"] = "Unknown"
    cluster = state(node("a"), node("b", unschedulable=True), dead, pod("p", 3, "a"))
    found = capacity.room(cluster.snapshot, GPU)
    assert (found.total, found.free, found.largest) == (24, 5, 5)
    assert found.fits == {1: 5, 2: 2, 3: 1, 4: 1, 8: 0}
    assert found.fragmentation[8] == 1


def test_devices_on_a_node_that_is_full_of_something_else_are_stranded() -> None:
    hungry = pod("etl", 0, "a", cpu="63")
    cluster = state(node("a"), node("b"), pod("p", 1, "b", cpu="4"), hungry)
    (found,) = capacity.stranded(cluster.snapshot, GPU)
    assert (found.node, found.free, found.holders) == ("a", 8, ("ml/etl (63)",))
    assert found.full_of == "cpu: 1 of 64 left"
    assert capacity.room(cluster.snapshot, GPU).stranded == 8
