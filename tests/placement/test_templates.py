"""The table of instance types: each row has its source and a date, and a node of it can be added."""

from __future__ import annotations

import datetime as dt

import pytest

from kgpu.placement.answer import answer
from kgpu.placement.question import WhatIfQuestion
from kgpu.placement.templates import InstanceType, instance_types
from tests.placement.clusters import node

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
