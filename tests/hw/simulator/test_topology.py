"""Topology descriptions: levels from PCI trees, lanes, `nvidia-smi topo -m` texts, resizing, and hostile input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.hw.simulator import profiles
from kgpu.hw.simulator.topology import (
    HOSTBRIDGE,
    INTERNAL,
    MULTIPLE,
    NODE,
    SINGLE,
    SYSTEM,
    Topology,
    flat,
    parse_matrix,
)

TREE = """
numa: ["0-7", "8-15"]
pcie:
  - {numa: 0, gpus: [[0, 1, [2, [3]]], 4]}
  - {numa: 0, gpus: [5]}
  - {numa: 1, gpus: [[6], [7]]}
boards: [[6, 7]]
nvlink:
  pairs: [[0, 7, 3]]
"""

DGX_A100_TEXT = """
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tNV12\tPXB\t48-63,176-191\t3\t\tN/A
GPU1\tNV12\t X \tNV12\tPXB\t48-63,176-191\t3\t\tN/A
GPU2\tNV12\tNV12\t X \tSYS\t16-31,144-159\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
NIC Legend:

  NIC0: mlx5_0
"""


@pytest.mark.parametrize(
    ("a", "b", "level"),
    [
        (0, 1, SINGLE),
        (0, 2, MULTIPLE),
        (2, 3, MULTIPLE),
        (0, 4, HOSTBRIDGE),
        (0, 5, NODE),
        (4, 5, NODE),
        (0, 6, SYSTEM),
        (6, 7, INTERNAL),
    ],
)
def test_levels_follow_from_the_pci_tree(a, b, level):
    shape = profiles.parse_topology(TREE, source="tree")
    assert shape.levels[a][b] == shape.levels[b][a] == level


def test_lanes_and_numa_come_from_the_description():
    shape = profiles.parse_topology(TREE, source="tree")
    assert shape.numa == (0, 0, 0, 0, 0, 0, 1, 1)
    assert shape.cpus == ("0-7", "8-15")
    assert shape.lanes[0][7] == shape.lanes[7][0] == 3
    assert sum(map(sum, shape.lanes)) == 6


def test_topo_m_text_gives_lanes_numa_and_cpus():
    shape = profiles.parse_topology(DGX_A100_TEXT, source="topo")
    assert shape.count == 3
    assert shape.lanes == ((0, 12, 12), (12, 0, 12), (12, 12, 0))
    assert shape.numa == (3, 3, 1)
    assert (shape.cpus[3], shape.cpus[1]) == ("48-63,176-191", "16-31,144-159")
    assert (shape.levels[0][1], shape.levels[0][2]) == (NODE, SYSTEM)


def test_a_level_hidden_by_nvlink_is_no_farther_than_two_known_hops():
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV2\tPIX\nGPU1\tNV2\tX\tPHB\nGPU2\tPIX\tPHB\tX\n"
    assert parse_matrix(text, source="t").levels[0][1] == HOSTBRIDGE


def test_every_profile_survives_its_own_matrix():
    for name in profiles.names():
        shape = profiles.load(name).topology
        again = parse_matrix(shape.matrix(), source=name)
        assert again.lanes == shape.lanes
        for i in range(shape.count):
            for j in range(shape.count):
                if not shape.lanes[i][j]:
                    assert again.levels[i][j] == shape.levels[i][j]


@pytest.mark.parametrize(
    "text",
    [
        "pcie: [{gpus: [0, 0]}]",
        "pcie: [{gpus: [1]}]",
        "pcie: [{gpus: [0, x]}]",
        "pcie: [{gpus: [true]}]",
        "pcie: [{gpus: [64]}]",
        "pcie: [{gpus: [[[[[[[[[[[[[0]]]]]]]]]]]]]}]",
        "pcie: []",
        "pcie: [{gpus: [0, 1]}]\nnvlink: {pairs: [[0, 0, 1]]}",
        "pcie: [{gpus: [0, 1]}]\nnvlink: {pairs: [[0, 2, 1]]}",
        "pcie: [{gpus: [0, 1]}]\nnvlink: {pairs: [[0, 1, 1], [1, 0, 1]]}",
        "pcie: [{gpus: [0, 1]}]\nnvlink: {pairs: [[0, 1, 37]]}",
        "pcie: [{gpus: [0, 1]}]\nnvlink: {switched: true, pairs: [[0, 1, 1]]}",
        "pcie: [{gpus: [0, 1]}]\nboards: [[0, 5]]",
        "pcie: [{gpus: [0]}]\nnuma: [abc]",
        "pcie: [{gpus: [0]}]\nmatrix: x",
        "matrix: nothing",
        "\tGPU0\tGPU1\nGPU0\tX\tPIX\n",
        "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tSYS\tX\n",
        "\tGPU0\tGPU1\nGPU0\tX\tWAT\nGPU1\tWAT\tX\n",
        "GPU0",
    ],
)
def test_impossible_descriptions_are_refused(text):
    with pytest.raises(ConfigError) as caught:
        profiles.parse_topology(text, source="here")
    assert caught.value.what.startswith("here")
    assert caught.value.expected
    assert caught.value.remedy


@given(st.integers(1, 8), st.integers(1, 64))
def test_resizing_keeps_boxes_whole(size, count):
    shape = flat(size)
    bigger = shape.resized(count)
    assert bigger.count == count
    for i in range(count):
        for j in range(count):
            same_box = i // size == j // size
            assert bigger.levels[i][j] == (INTERNAL if i == j else HOSTBRIDGE if same_box else SYSTEM)
            assert (bigger.numa[i] == bigger.numa[j]) == same_box
    assert bigger.resized(min(size, count)).levels == shape.resized(min(size, count)).levels


def test_repeated_boxes_have_cpus_of_their_own():
    shape = profiles.load("rtx8000").topology.resized(6)
    assert shape.cpus == ("0-15,32-47", "16-31,48-63", "64-79,96-111", "80-95,112-127")
    assert shape.lanes[4][5] == 2
    assert shape.lanes[3][4] == 0


CELL = st.sampled_from(["X", "NV1", "NV12", "NV99", "PIX", "PXB", "PHB", "NODE", "SYS", "GPU0", "GPU1", "0-3", "", "7"])


@given(st.lists(st.lists(CELL, max_size=6), max_size=6))
def test_any_table_is_a_topology_or_a_three_part_error(rows):
    text = "\tGPU0\tGPU1\n" + "\n".join("\t".join(row) for row in rows)
    try:
        shape = parse_matrix(text, source="t")
    except ConfigError:
        return
    assert isinstance(shape, Topology)
    assert shape.count == 2
