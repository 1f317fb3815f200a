"""Alignment against the rule written out the long way, on random and on real topologies."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.deviceplugin import search
from kgpu.deviceplugin.search import best_set
from tests.budget import tries
from tests.deviceplugin.splits import best_by_walking, score

PCIE_SOCKET, PCIE_SWITCH, PCIE_BRIDGE, PCIE_SYSTEM = 20, 50, 30, 10


def matrix(count: int, pairs: dict[tuple[int, int], int], default: int = 0) -> list[list[int]]:
    weights = [[0 if a == b else default for b in range(count)] for a in range(count)]
    for (a, b), value in pairs.items():
        weights[a][b] = weights[b][a] = value
    return weights


def links_of(weights: list[list[int]]) -> list[list[int]]:
    return [[score // 100 for score in row] for row in weights]


def boxed(count: int, links: dict[tuple[int, int], int], *, sockets: int = 2, apart: int = 1) -> list[list[int]]:
    """PCIe switches of two GPUs that are so far ``apart``, sockets, and direct NVLinks of so many lanes."""
    per_socket = count // sockets
    pairs = {}
    for a, b in itertools.combinations(range(count), 2):
        pcie = (
            PCIE_SWITCH
            if b - a == apart and a // apart % 2 == 0
            else PCIE_BRIDGE
            if a // per_socket == b // per_socket
            else PCIE_SYSTEM
        )
        pairs[a, b] = pcie + 100 * links.get((a, b), 0)
    return matrix(count, pairs)


CUBE = [
    (0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3), (2, 6), (3, 7),
    (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7),
]  # fmt: skip
DOUBLE = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
P100 = boxed(8, dict.fromkeys(CUBE, 1), apart=2)
V100 = boxed(8, {pair: 2 if pair in DOUBLE else 1 for pair in CUBE})
RTX8000 = matrix(4, {(0, 3): 200, (1, 2): 200, (0, 2): 10, (1, 3): 10}, default=20)
NVSWITCH = boxed(8, {})
UNIFORM = matrix(8, {}, default=30)
BOXES = {"p100": P100, "v100": V100, "rtx8000": RTX8000, "nvswitch": NVSWITCH, "uniform": UNIFORM}


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("missing", [0, 1, 3])
def test_real_boxes_agree_with_walking_every_split(name: str, missing: int) -> None:
    weights = BOXES[name]
    count = max(3, len(weights) - missing)
    rng = random.Random(missing)
    available = sorted(rng.sample(range(len(weights)), count))
    for size in range(2, count + 1):
        for wanted in range(min(size, 3)):
            required = sorted(rng.sample(available, wanted))
            expected, _ = best_by_walking(weights, available, required, size, links_of(weights))
            found = best_set(weights, available, required, size, links=links_of(weights))
            assert (found.members, found.exact) == (tuple(sorted(expected)), True), (size, required)


def cases(low: int, high: int) -> st.SearchStrategy[tuple[list[list[int]], list[int], list[int], int]]:
    @st.composite
    def build(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int], int]:
        count = draw(st.integers(low, high))
        values = draw(st.sampled_from([(10, 20, 30, 50), (10, 110, 220, 320), (0, 1), (7,), tuple(range(40))]))
        pairs = {pair: draw(st.sampled_from(values)) for pair in itertools.combinations(range(count), 2)}
        available = sorted(draw(st.sets(st.integers(0, count - 1), min_size=2)))
        size = draw(st.integers(2, len(available)))
        required = sorted(draw(st.sets(st.sampled_from(available), max_size=min(3, size))))
        return matrix(count, pairs), available, required, size

    return build()


@tries(150)
@given(cases(3, 8))
def test_random_boxes_agree_with_walking_every_split(case) -> None:
    weights, available, required, size = case
    expected, _ = best_by_walking(weights, available, required, size, links_of(weights))
    found = best_set(weights, available, required, size, links=links_of(weights))
    assert found.exact
    assert found.members == tuple(sorted(expected))


@tries(25)
@given(cases(11, 12).filter(lambda case: len(case[1]) > search.SMALL and case[3] * 2 >= len(case[1])))
def test_counting_in_halves_agrees_with_walking_every_split(case) -> None:
    weights, available, required, size = case
    expected, _ = best_by_walking(weights, available, required, size, links_of(weights))
    assert best_set(weights, available, required, size, links=links_of(weights)).members == tuple(sorted(expected))


@tries(60)
@given(cases(2, 20))
def test_every_answer_is_a_set_of_that_size_with_the_required_ones(case) -> None:
    weights, available, required, size = case
    found = best_set(weights, available, required, size, links=links_of(weights))
    assert len(set(found.members)) == size == len(found.members)
    assert set(required) <= set(found.members) <= set(available)
    assert list(found.members) == sorted(found.members)


@pytest.mark.parametrize(
    ("available", "required", "size"),
    [([0, 1], [], 0), ([0, 1], [], -1), ([0, 1], [], 3), ([0, 1], [0, 1], 1), ([0, 1], [2], 2), ([], [], 1)],
)
def test_impossible_requests_have_no_answer(available: list[int], required: list[int], size: int) -> None:
    assert best_set(V100, available, required, size).members == ()


def test_the_order_of_the_available_gpus_does_not_matter() -> None:
    for size in range(1, 9):
        expected = best_set(V100, range(8), [], size)
        for seed in range(5):
            shuffled = random.Random(seed).sample(range(8), 8)
            assert best_set(V100, shuffled, [], size) == expected


def test_a_late_pair_of_fourteen_is_found() -> None:
    """The vendored search could lose its best split to a later one: 14 GPUs, one linked pair at the end."""
    weights = matrix(14, {(12, 13): 410}, default=10)
    assert best_set(weights, range(14), [], 2).members == (12, 13)


def test_of_equal_splits_the_one_whose_answer_is_connected_best_is_taken() -> None:
    """0,1,3 with 2,6 left has as many links as 0,2,3 with 1,6 left; but the pod would get one less of them."""
    found = best_set(V100, [0, 1, 2, 3, 6], [], 3, links=links_of(V100))
    assert (found.members, found.exact) == ((0, 2, 3), True)


# go-gpuallocator's table for its DGX-1 Volta: available, required, and what is chosen.
PEERS = [
    ([0, 2, 4, 5], [], [4, 5]), ([0, 4, 5, 6], [], [5, 6]), ([0, 3, 1], [], [0, 3]), ([0, 1, 4], [], [0, 4]),
    (range(8), [4], [4]), (range(8), [4], [4, 7]), (range(8), [4], [4, 5, 6, 7]), (range(8), [0, 2, 4, 6], [0, 2, 4, 6]),
]  # fmt: skip
# The sets that its allocators give one after the other, until all GPUs are taken. Of one GPU it gives the first, always.
PEERS_IN_TURN = [
    (RTX8000, [[0, 3], [1, 2]]), (RTX8000, [[0, 1, 2, 3]]),
    (P100, [[0, 2], [1, 3], [4, 6], [5, 7]]), (V100, [[0, 3], [1, 2], [4, 7], [5, 6]]),
    *((box, sets) for box in (P100, V100) for sets in ([[0, 1, 2, 3], [4, 5, 6, 7]], [list(range(8))])),
]  # fmt: skip


@pytest.mark.parametrize(("available", "required", "chosen"), PEERS)
def test_the_peers_choices(available: Sequence[int], required: list[int], chosen: list[int]) -> None:
    assert list(best_set(V100, available, required, len(chosen), links=links_of(V100)).members) == chosen


@pytest.mark.parametrize(("box", "sets"), PEERS_IN_TURN)
def test_the_peers_choices_in_turn(box: list[list[int]], sets: list[list[int]]) -> None:
    free = set(range(len(box)))
    for expected in sets:
        assert list(best_set(box, sorted(free), [], len(expected), links=links_of(box)).members) == expected
        free -= set(expected)


def test_one_gpu_is_taken_where_it_breaks_no_pair() -> None:
    assert best_set(RTX8000, [0, 1, 3], [], 1).members == (1,)
    assert best_set(RTX8000, [0, 1, 2], [], 1).members == (0,)
    assert best_set(RTX8000, range(4), [], 1).members == (0,)


def test_a_search_past_its_budget_gives_a_good_set_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BUDGET", 5)
    found = best_set(V100, range(8), [2], 3)
    assert not found.exact
    assert len(found.members) == 3
    assert 2 in found.members
    assert score(V100, found.members) >= 300


def test_more_gpus_than_can_be_searched_still_get_an_answer() -> None:
    weights = boxed(32, {})
    found = best_set(weights, range(32), [5], 8)
    assert not found.exact
    assert len(found.members) == 8
    assert {4, 5} <= set(found.members)
