"""Label values are legal whatever goes in, and planning is the same whatever the order."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.discovery.model import (
    LabelledResource,
    LabelSettings,
    MigStrategy,
    NodeFacts,
    SharingInForce,
    SharingStrategy,
    VgpuFacts,
)
from kgpu.discovery.plan import plan
from kgpu.discovery.values import joined, legal, sanitise
from kgpu.hw.port import Accelerator, HardwareFinding, Inventory, Partition, Problem

VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)


def is_value(text: str) -> bool:
    return len(text) <= 63 and VALUE.fullmatch(text) is not None


def is_key(text: str) -> bool:
    name = text.partition("/")[2]
    return 0 < len(name) <= 63 and NAME.fullmatch(name) is not None


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("", ""), (" ", ""), ("NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"), ("a  b", "a-b"), (" a b ", "a-b"),
        ("NVIDIA-TITAN-X-(Pascal)", "NVIDIA-TITAN-X-Pascal"), ("Tesla™ T4", "Tesla-T4"), ("a\tb", "ab"),
        ("x_y.z", "x_y.z"), ("µ()/", ""),
    ],
)  # fmt: skip
def test_sanitise(text: str, clean: str) -> None:
    assert sanitise(text) == clean


@given(st.text(max_size=200))
def test_legal_values_are_legal_and_stay_what_they_are(text: str) -> None:
    value = legal(text)
    assert is_value(value)
    assert legal(value) == value


@given(st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True))
def test_what_is_legal_already_is_left_alone(text: str) -> None:
    assert legal(text) == text


@given(st.text(max_size=200), st.sampled_from(["1g.10gb", "7g.80gb.me.all"]))
def test_joined_keeps_the_ending(model: str, profile: str) -> None:
    value = joined(model, "MIG", profile, "SHARED")
    assert is_value(value)
    assert value.endswith(f"MIG-{profile}-SHARED")


findings = st.builds(
    HardwareFinding,
    subject=st.just(""), problem=st.sampled_from(Problem), what=st.text(max_size=5), expected=st.just(""), remedy=st.just(""),
)  # fmt: skip
partitions = st.builds(
    Partition,
    uuid=st.uuids().map(str), index=st.just("0:0"), parent_uuid=st.just(""),
    profile=st.sampled_from(["1g.10gb", "1c.3g.40gb", "1g.10gb+me", "", "odd"]),
    gpu_instance=st.just(0), compute_instance=st.just(0), memory_mib=st.integers(0, 2**40),
)  # fmt: skip
gpus = st.builds(
    Accelerator,
    vendor=st.just("nvidia"), index=st.integers(0, 64), uuid=st.uuids().map(str),
    name=st.sampled_from(["NVIDIA L4", "Tesla T4", "NVIDIA " + "x" * 80]) | st.text(max_size=80),
    pci_class=st.sampled_from([0, 0x030000, 0x030200]), memory_mib=st.none() | st.integers(0, 2**40),
    compute_capability=st.none() | st.tuples(st.integers(0, 20), st.integers(0, 12)),
    mig_enabled=st.booleans(), partitions=st.lists(partitions, max_size=3).map(tuple),
    fabric_cluster=st.sampled_from(["", "c"]) | st.text(max_size=70), findings=st.lists(findings, max_size=1).map(tuple),
)  # fmt: skip
inventories = st.builds(
    Inventory,
    vendor=st.just("nvidia"), driver_version=st.sampled_from(["550.54.15", "535.129"]) | st.text(max_size=80),
    accelerators=st.lists(gpus, max_size=5, unique_by=lambda gpu: gpu.index).map(tuple),
    cuda_version=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 9)),
    findings=st.lists(findings, max_size=1).map(tuple),
)  # fmt: skip
settings = st.builds(
    LabelSettings,
    mig_strategy=st.sampled_from(MigStrategy),
    sharing=st.builds(
        SharingInForce,
        st.sampled_from([SharingStrategy.TIME_SLICING, SharingStrategy.MPS]),
        st.just((LabelledResource("nvidia.com/gpu", 4), LabelledResource("nvidia.com/mig-1g.10gb", 2, renamed=True))),
    ) | st.just(SharingInForce()),
)  # fmt: skip
facts = st.builds(
    NodeFacts,
    machine=st.none() | st.text(max_size=80),
    vgpu_present=st.sampled_from([None, True, False]),
    vgpu=st.none() | st.builds(VgpuFacts, st.text(max_size=10), st.text(max_size=10)),
)


@given(inventories, settings, facts, st.randoms())
def test_any_node_has_legal_labels_that_do_not_depend_on_order(
    inventory: Inventory, chosen: LabelSettings, seen: NodeFacts, shuffler: random.Random
) -> None:
    planned = plan(inventory, chosen, seen, timestamp=1)
    assert list(planned.labels) == sorted(planned.labels)
    assert all(is_key(key) and is_value(value) for key, value in planned.labels.items()), planned.labels
    shuffled = list(inventory.accelerators)
    shuffler.shuffle(shuffled)
    again = plan(replace(inventory, accelerators=tuple(shuffled)), chosen, seen, timestamp=1)
    assert again.labels == planned.labels


@given(inventories, inventories, settings, facts)
def test_planning_twice_changes_nothing(
    first: Inventory, second: Inventory, chosen: LabelSettings, seen: NodeFacts
) -> None:
    """Whatever was retained once is retained again: labels do not flap between equal readings."""
    last = plan(first, chosen, seen, timestamp=1).labels
    once = plan(second, chosen, seen, timestamp=1, previous=last).labels
    assert plan(second, chosen, seen, timestamp=1, previous=once).labels == once
