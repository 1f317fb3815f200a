"""Nodes to add: each row of the table of types has its source and a date; what a copy of a node has of it."""

from __future__ import annotations

import datetime as dt

import pytest

from kgpu.placement.answer import answer
from kgpu.placement.question import WhatIfQuestion
from kgpu.placement.state import PlacementState
from kgpu.placement.templates import InstanceType, instance_types, template
from tests.placement.clusters import node, pod

TYPES = instance_types()


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_each_row_says_who_says_so_and_when(kind: InstanceType) -> None:
    assert kind.source
    assert dt.date.fromisoformat(kind.date) <= dt.datetime.now(dt.UTC).date()
    assert kind.provider in {"aws", "gcp", "azure"}
    assert 1 <= kind.gpus <= 8
    assert kind.cpus >= 4 * kind.gpus
    assert kind.memory_gib >= 2 * kind.cpus


@pytest.mark.parametrize("name", TYPES)
def test_a_node_of_each_type_can_be_added_and_its_source_is_told(name: str) -> None:
    found = answer(WhatIfQuestion(add_nodes=(f"{name}=1",)), [node("a", 0)])
    (room,) = found.after
    assert room.total == TYPES[name].gpus
    assert f"({TYPES[name].source}, {TYPES[name].date})" in found.notes[0]


def test_a_copy_has_what_describes_its_kind_of_machine_and_not_what_is_of_one() -> None:
    kind = {
        "kgpu.dev/rdma.link-layer": "infiniband", "kgpu.dev/rdma.rate": "400", "kgpu.dev/rdma.ports": "8",
        "kgpu.dev/gpu.models": "2", "kgpu.dev/gpu.total": "8", "kgpu.dev/gpu.L4.count": "4",
        "kgpu.dev/vendor": "amd", "kgpu.dev/device-config": "all", "kgpu.dev/allocation": "dra",
    }  # fmt: skip
    one = {
        "kgpu.dev/node-host": "h", "kgpu.dev/remediation": "disabled", "kgpu.dev/needs-replacement": "true",
        "kgpu.dev/next-driver": "d", "kgpu.dev/light": "true", "kgpu.dev/agent": "leaving",
    }  # fmt: skip
    there = node("a", labels={**kind, **one, "pool": "train"})
    copied = template(PlacementState([there]), "a").view.labels
    assert {key: value for key, value in copied.items() if key.startswith("kgpu.dev/")} == kind
    assert copied["pool"] == "train"
    assert "kubernetes.io/hostname" not in copied
    new_job = {
        "kind": "Job", "metadata": {"name": "j"},
        "spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": pod("x", 8, owner="")},
    }  # fmt: skip
    (gang,) = answer(WhatIfQuestion(add_nodes=("a=1",), manifests=(new_job,)), [there]).gangs
    assert "InfiniBand, 400 Gbit/s on 8 ports of each" in " ".join(gang.quality)
