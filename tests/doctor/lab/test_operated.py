"""A lab that kgpu's own operator runs is broken: GPUs, slices, settings; the doctor's first finding names each cause."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.budget import count
from tests.doctor.lab import pairs
from tests.doctor.lab.breaking import Break, Ground, healthy, play, until
from tests.doctor.lab.breaks import operated, scheduling, workloads
from tests.doctor.lab.labs import brought_up
from tests.doctor.lab.pairs import Pair

NONE_HERE = {
    "RUN-02": "the operator makes the RuntimeClass that nobody has made elsewhere",
}
"""Breakages of workloads that are none on this lab."""
CARRIED = (*operated.BREAKS, *scheduling.BREAKS, *(one for one in workloads.BREAKS if one.first not in NONE_HERE))


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    yield from brought_up("operated-doctor", tmp_path_factory.mktemp("operated"), operator=True)


def test_a_healthy_lab_has_no_finding(ground: Ground) -> None:
    until(lambda: ground.policy_state() == "ready", "the operator has nothing more to do")
    healthy(ground)


@pytest.mark.parametrize("broken", operated.BREAKS, ids=str)
def test_the_first_finding_names_the_cause(ground: Ground, broken: Break) -> None:
    play(ground, broken)


@pytest.mark.parametrize("pair", pairs.drawn(CARRIED, 20, of=operated.BREAKS)[: count(3, 20)], ids=str)
def test_of_two_causes_both_are_told_and_the_more_urgent_first(ground: Ground, pair: Pair) -> None:
    pairs.play(ground, pair)
