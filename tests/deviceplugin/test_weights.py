"""AMD's devices are chosen by distance: the replaced program's own cases, as rows, and any others by brute force."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.deviceplugin.allocate import AllocationError
from kgpu.deviceplugin.model import GpuUnit, PluginDevice, PluginResource
from kgpu.deviceplugin.prefer import prefer
from kgpu.deviceplugin.topology import GpuTopology
from kgpu.deviceplugin.weights import UNKNOWN, PairWeights, lightest
from kgpu.hw.port import Accelerator, Link, TopologyLevel
from kgpu.kubelet.model import PreferenceRequest
from tests.budget import tries


@dataclass(frozen=True)
class Box:
    """A node: device ids by GPU, the GPU's NUMA node and hive."""

    devices: tuple[tuple[str, ...], ...]
    numa: tuple[int, ...]
    hive: tuple[int, ...]

    def accelerators(self) -> tuple[Accelerator, ...]:
        return tuple(
            Accelerator(vendor="amd", index=i, uuid=f"gpu{i}", name="x", numa_node=numa)
            for i, numa in enumerate(self.numa)
        )

    def weights(self) -> PairWeights:
        links = [
            Link(a=f"gpu{a}", b=f"gpu{b}", level=TopologyLevel.NODE, lanes=int(self.hive[a] == self.hive[b]))
            for a, b in itertools.combinations(range(len(self.numa)), 2)
        ]
        return PairWeights({}, {}).updated(self.accelerators(), links)

    def resource(self) -> PluginResource:
        units = [
            GpuUnit(uuid=name, index=name, gpu_uuid=f"gpu{gpu}", gpu_index=gpu, vendor="amd", mode="x")
            for gpu, names in enumerate(self.devices)
            for name in names
        ]
        return PluginResource(
            name="amd.com/gpu", devices=tuple(PluginDevice(id=unit.uuid, unit=unit) for unit in units)
        )

    @property
    def names(self) -> list[str]:
        return [name for names in self.devices for name in names]


def parts(count: int, each: int) -> tuple[tuple[str, ...], ...]:
    """``testN`` is GPU N, ``amdgpu_xcp_...`` are its other parts, as the replaced program's tests number them."""
    return tuple(
        (f"test{gpu + 1}", *(f"amdgpu_xcp_{each * gpu + part}" for part in range(1, each))) for gpu in range(count)
    )


CPX = parts(8, 8)
BOXES = {
    "mi308": Box(parts(4, 8), (0, 0, 1, 1), (0,) * 4),
    "mi210": Box(tuple((f"test{n + 1}",) for n in range(8)), (0,) * 4 + (1,) * 4, (0,) * 4 + (1,) * 4),
    "mi300": Box((*CPX[:7], CPX[7][:7]), (0,) * 4 + (1,) * 4, (0,) * 8),
}
HISTOGRAMS = {
    "mi308": {30: 112, 40: 128, 50: 256},
    "mi210": {40: 12, 80: 16},
    "mi300": {30: 217, 40: 744, 50: 992},
}
PARENTS = [f"test{number}" for number in range(3, 9)]


def xcp(first: int, last: int) -> list[str]:
    return [f"amdgpu_xcp_{number}" for number in range(first, last + 1)]


# box, size, available (None: all), left out, required, expected
CASES = [
    ("mi210", 1, None, (), (), ["test1"]),
    ("mi210", 3, None, (), (), ["test1", "test2", "test3"]),
    ("mi210", 5, None, (), (), ["test1", "test2", "test3", "test4", "test5"]),
    ("mi210", 3, PARENTS, (), (), ["test5", "test6", "test7"]),
    ("mi300", 1, None, (), (), ["test8"]),
    ("mi300", 3, None, (), (), ["test8", *xcp(57, 58)]),
    ("mi300", 5, None, (), (), ["test8", *xcp(57, 60)]),
    ("mi300", 7, None, (), (), ["test8", *xcp(57, 62)]),
    ("mi300", 8, None, (), (), ["test1", *xcp(1, 7)]),
    ("mi300", 3, PARENTS, (), (), ["test5", "test6", "test7"]),
    ("mi300", 3, PARENTS, (), ("test5",), ["test5", "test6", "test7"]),
    ("mi300", 4, None, ("test8", *xcp(57, 58)), (), xcp(59, 62)),
    ("mi300", 10, None, ("test1", "test2", "test3", "test4", "test8", "amdgpu_xcp_57"), (), ["test5", *xcp(33, 39), *xcp(58, 59)]),
]  # fmt: skip


def chosen(box: Box, size: int, available=None, left_out=(), required=()) -> tuple[str, ...]:
    names = [name for name in available or box.names if name not in left_out]
    request = PreferenceRequest(available=tuple(names), must_include=tuple(required), size=size)
    resource = box.resource()
    return prefer(resource, request, GpuTopology((), ()), policy="distributed", weights=box.weights()).ids


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_the_replaced_programs_choices(case) -> None:
    name, size, available, left_out, required, expected = case
    assert chosen(BOXES[name], size, available, left_out, required) == tuple(expected)


@pytest.mark.parametrize("name", BOXES)
def test_the_weights_of_all_pairs_are_the_replaced_programs(name) -> None:
    box = BOXES[name]
    weights, owners = box.weights(), [f"gpu{gpu}" for gpu, names in enumerate(box.devices) for _ in names]
    assert Counter(weights.between(a, b) for a, b in itertools.combinations(owners, 2)) == HISTOGRAMS[name]


@pytest.mark.parametrize("size", [12, 30, 32, 63])
def test_many_partitions_are_whole_gpus_on_one_numa_node_first(size) -> None:
    ids = chosen(BOXES["mi300"], size)
    assert len(set(ids)) == size
    whole = [names for names in BOXES["mi300"].devices if set(names) <= set(ids)]
    assert len(whole) >= size // 8 - 1
    if size == 32:
        assert set(ids) == {name for names in CPX[:4] for name in names}


@pytest.mark.parametrize(
    ("lanes", "numa", "weight"),
    [(1, 0, 20 + 10 + 10), (1, 1, 20 + 10 + 20), (0, 0, 20 + 40 + 10), (0, 1, 20 + 40 + 20),
     (None, 0, 20 + 50 + 10), (None, 1, 20 + 50 + 20)],
)  # fmt: skip
def test_a_pairs_weight_is_the_sum_of_parent_link_and_numa_node(lanes: int | None, numa: int, weight: int) -> None:
    box = Box((("a",), ("b",)), (0, numa), (0, 0))
    links = [] if lanes is None else [Link(a="gpu0", b="gpu1", level=TopologyLevel.NODE, lanes=lanes)]
    weights = PairWeights({}, {}).updated(box.accelerators(), links)
    assert weights.between("gpu0", "gpu1") == weights.between("gpu1", "gpu0") == weight
    assert weights.between("gpu0", "gpu0") == 10 + 10 + 10


def test_a_pair_without_a_known_link_is_the_farthest() -> None:
    box = Box((("a",), ("b",), ("c",)), (0, 0, 0), (0, 0, 0))
    known = [Link(a="gpu1", b="gpu2", level=TopologyLevel.NODE, lanes=0)]
    weights = PairWeights({}, {}).updated(box.accelerators(), known)
    assert weights.between("gpu0", "gpu1") == 20 + UNKNOWN + 10
    devices = list(box.resource().devices)
    assert [device.id for device in lightest(devices, (), 2, weights).devices] == ["b", "c"]


def test_a_pair_that_can_not_be_read_any_more_keeps_its_link() -> None:
    box = BOXES["mi210"]
    before = box.weights()
    after = before.updated(box.accelerators(), ())
    assert after.between("gpu0", "gpu1") == before.between("gpu0", "gpu1") == 40


@pytest.mark.parametrize(
    ("size", "required", "what"),
    [
        (0, (), "not enough"),
        (-1, (), "not enough"),
        (9, (), "not enough"),
        (1, ("test1", "test2"), "not enough"),
        (2, ("test9",), "unknown device"),
    ],
)
def test_what_can_not_be_met_is_an_error(size, required, what) -> None:
    with pytest.raises(AllocationError, match=what):
        chosen(BOXES["mi210"], size, required=required)


@pytest.mark.parametrize(
    ("available", "required", "size"),
    [
        (["test2", "test7"], (), 2),  # all that are there
        (["test2", "test7"], ("test7",), 2),
        (["test2", "test4", "test7"], ("test2", "test7"), 2),  # the required ones are all that is asked for
        (["test3"], (), 1),
    ],
)
def test_where_there_is_no_choice_there_is_an_answer(available, required, size) -> None:
    expected = required if len(required) == size else available
    assert chosen(BOXES["mi210"], size, available=available, required=required) == tuple(expected)


def test_a_node_with_one_device_gets_it() -> None:
    assert chosen(Box((("only",),), (0,), (0,)), 1) == ("only",)


@pytest.mark.parametrize(
    ("size", "required", "what"),
    [
        (1, ("test3",), "required device is not available"),
        (2, ("test3",), "required device is not available"),
        (2, ("test1", "test3"), "required device is not available"),
        (3, ("test1", "test2", "test3"), "not enough"),
    ],
)
def test_a_required_device_has_to_be_available(size, required, what) -> None:
    with pytest.raises(AllocationError, match=what):
        chosen(BOXES["mi210"], size, available=["test1", "test2"], required=required)


@st.composite
def boxes(draw) -> tuple[Box, int]:
    gpus = draw(st.integers(1, 4))
    names = iter(f"d{number}" for number in range(100))
    devices = tuple(tuple(next(names) for _ in range(draw(st.integers(1, 3)))) for _ in range(gpus))
    numa = tuple(draw(st.integers(0, 1)) for _ in range(gpus))
    hive = tuple(draw(st.integers(0, 1)) for _ in range(gpus))
    return Box(devices, numa, hive), draw(st.integers(1, sum(map(len, devices))))


@tries(150)
@given(boxes())
def test_no_other_choice_weighs_less(made: tuple[Box, int]) -> None:
    box, size = made
    weights, devices = box.weights(), list(box.resource().devices)
    choice = lightest(devices, (), size, weights)
    assert choice.exact
    assert len(choice.devices) == size

    def weight(some) -> int:
        return sum(weights.between(a.unit.gpu_uuid, b.unit.gpu_uuid) for a, b in itertools.combinations(some, 2))

    assert weight(choice.devices) == choice.weight == min(map(weight, itertools.combinations(devices, size)))
