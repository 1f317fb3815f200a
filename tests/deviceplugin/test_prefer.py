"""Which devices are preferred: aligned, distributed, packed."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.deviceplugin.allocate import AllocationError
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.plan import plan
from kgpu.deviceplugin.prefer import PreferredDevices, prefer, prefer_indices
from kgpu.deviceplugin.topology import GpuTopology, pair_score
from kgpu.hw.fake_reader import sample_inventory
from kgpu.hw.port import Accelerator, Link, TopologyLevel
from kgpu.kubelet.model import PreferenceRequest
from tests.deviceplugin.nodes import GPU, broken, entry, gpus, shared, with_mig

NODES = gpus(4)


def links(lanes: dict[tuple[int, int], int], nodes=NODES) -> list[Link]:
    return [
        Link(a=nodes[a].uuid, b=nodes[b].uuid, level=TopologyLevel.NODE, lanes=lanes.get((a, b), 0))
        for a, b in itertools.combinations(range(len(nodes)), 2)
    ]


PAIRS = GpuTopology((), ()).updated(NODES, links({(0, 3): 2, (1, 2): 2}))


def choose(
    settings: PluginSettings,
    available: list[str],
    size: int,
    must: tuple[str, ...] = (),
    *,
    nodes: tuple[Accelerator, ...] = NODES,
    policy: str = "distributed",
) -> PreferredDevices:
    (resource,) = plan(nodes, settings).resources
    request = PreferenceRequest(available=tuple(available), must_include=must, size=size)
    return prefer(resource, request, PAIRS, policy=policy)


@pytest.mark.parametrize(
    ("level", "lanes", "score"),
    [
        (TopologyLevel.INTERNAL, 0, 60), (TopologyLevel.SINGLE, 0, 50), (TopologyLevel.MULTIPLE, 0, 40), (TopologyLevel.HOSTBRIDGE, 0, 30),
        (TopologyLevel.NODE, 0, 20), (TopologyLevel.SYSTEM, 0, 10), (TopologyLevel.SYSTEM, 4, 410), (TopologyLevel.NODE, 18, 1820),
        (TopologyLevel.NODE, 19, 1820),
    ],
)  # fmt: skip
def test_pair_scores(level: TopologyLevel, lanes: int, score: int) -> None:
    assert pair_score(Link(a="a", b="b", level=level, lanes=lanes)) == score


def test_linked_pairs_stay_together() -> None:
    ids = [gpu.uuid for gpu in NODES]
    assert choose(PluginSettings(), ids, 2).ids == (ids[0], ids[3])
    assert choose(PluginSettings(), ids, 2, (ids[1],)).ids == (ids[1], ids[2])
    assert choose(PluginSettings(), [ids[0], ids[1], ids[2]], 2).ids == (ids[1], ids[2])
    assert choose(PluginSettings(), ids, 2).score == 220


def test_one_gpu_is_a_leftover() -> None:
    ids = [gpu.uuid for gpu in NODES]
    choice = choose(PluginSettings(), [ids[0], ids[1], ids[3]], 1)
    assert choice.ids == (ids[1],)
    assert "lose least" in choice.why


@pytest.mark.parametrize("must", [("x",), tuple(gpu.uuid for gpu in NODES[:3])])
def test_what_can_not_be_met_is_left_to_the_kubelet(must: tuple[str, ...]) -> None:
    ids = [gpu.uuid for gpu in NODES]
    if must == ("x",):
        with pytest.raises(AllocationError, match="unknown device"):
            choose(PluginSettings(), ids, 2, must)
    else:
        assert choose(PluginSettings(), ids, 2, must).ids == ()


def test_a_lost_gpu_keeps_its_old_links_and_blocks_nobody() -> None:
    lost = (broken(NODES[0]), *NODES[1:])
    seen = [link for link in links({}) if NODES[0].uuid not in {link.a, link.b}]
    later = PAIRS.updated(lost, seen)
    assert later.score([NODES[0].uuid, NODES[3].uuid]) == 220
    assert later.align([gpu.uuid for gpu in NODES[1:]], [], 2).uuids
    assert PAIRS.updated(NODES, links({(0, 3): 2, (1, 2): 2})) is PAIRS


def replicas(*wanted: tuple[int, int]) -> list[str]:
    return [f"{NODES[gpu].uuid}::{number}" for gpu, number in wanted]


SHARED = shared(entry(4))


def test_distributed_takes_from_the_gpu_with_fewest_in_use() -> None:
    # GPU 0 has two of four in use, GPU 1 one, GPU 2 none, GPU 3 all.
    free = replicas((0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3))
    assert choose(SHARED, free, 1).ids == tuple(replicas((2, 0)))
    # Picks count as use: 2; then 1 and 2 are equal and 1 was picked less; then 2; then all are equal, 0 was not picked.
    picked = [name.split("::")[0] for name in choose(SHARED, free, 4).ids]
    assert picked == [NODES[2].uuid, NODES[1].uuid, NODES[2].uuid, NODES[0].uuid]


def test_packed_takes_from_the_gpu_with_most_in_use() -> None:
    free = replicas((0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 0))
    (first,) = choose(SHARED, free, 1, policy="packed").ids
    # GPU 2 has three of four in use.
    assert first == f"{NODES[2].uuid}::0"


def test_without_a_policy_the_first_are_taken() -> None:
    free = replicas((0, 3), (1, 1), (1, 2), (2, 0), (2, 1))
    assert choose(SHARED, free[::-1], 3, policy="none").ids == tuple(free[:3])
    assert choose(SHARED, free, 2, (free[4],), policy="none").ids == (free[4], free[0])
    for size, must in ((0, ()), (6, ()), (1, tuple(free[:2]))):
        with pytest.raises(AllocationError, match="not enough available devices to satisfy allocation"):
            choose(SHARED, free, size, must, policy="none")


def test_required_ones_come_first_and_too_few_is_an_error() -> None:
    free = replicas((0, 0), (1, 0))
    assert choose(SHARED, free, 2, (free[1],)).ids == (free[1], free[0])
    with pytest.raises(AllocationError, match="not enough available devices to satisfy allocation"):
        choose(SHARED, free, 3)


def test_mig_devices_are_spread_over_their_gpus() -> None:
    node = tuple(with_mig(gpu, ("1g.10gb", 4)) for gpu in NODES[:2])
    ids = [part.uuid for gpu in node for part in gpu.partitions]
    settings = PluginSettings(mig_strategy="single")
    picked = choose(settings, ids, 2, nodes=node).ids
    assert picked == (ids[0], ids[4])
    assert choose(settings, ids, 2, nodes=node, policy="packed").ids == (ids[0], ids[1])


@given(
    free=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1),
    data=st.data(),
    policy=st.sampled_from(["distributed", "packed"]),
)
def test_spread_choices_are_valid_and_greedy(free, data, policy) -> None:
    available = replicas(*sorted(free))
    size = data.draw(st.integers(1, len(available)))
    must = tuple(data.draw(st.lists(st.sampled_from(available), unique=True, max_size=size)))
    choice = choose(SHARED, available, size, must, policy=policy)
    assert len(set(choice.ids)) == size
    assert set(must) <= set(choice.ids) <= set(available)
    assert choice == choose(SHARED, available[::-1], size, must, policy=policy)
    # Replay: each pick comes from a GPU with the least (most) in use of those that still have a free one.
    candidates = [name for name in available if name not in must]
    for pick in choice.ids[len(must) :]:
        left = Counter(name.split("::")[0] for name in candidates)
        used = {gpu: 4 - count for gpu, count in left.items()}
        best = min(used.values()) if policy == "distributed" else max(used.values())
        assert used[pick.split("::")[0]] == best
        candidates.remove(pick)


def test_indices_for_people() -> None:
    inventory = replace(sample_inventory(4), accelerators=NODES)
    choice = prefer_indices(inventory, links({(0, 3): 2, (1, 2): 2}), available=[0, 1, 2], required=[1], size=2)
    assert choice.indices == (1, 2)
    assert choice.score == 220
    assert choice.why
    for available, required, size in (([0, 9], [], 1), ([0, 1], [2], 1), ([0], [], 3), ([0, 1], [], 0)):
        with pytest.raises(ConfigError):
            prefer_indices(inventory, [], available=available, required=required, size=size)


def test_shares_prefer_by_resource_even_when_partly_shared() -> None:
    settings = shared(entry(2, refs=["0"]))
    free = [f"{NODES[0].uuid}::0", NODES[1].uuid, NODES[2].uuid]
    choice = choose(settings, free, 2)
    assert set(choice.ids) <= set(free)
    assert GPU in {resource.name for resource in plan(NODES, settings).resources}
