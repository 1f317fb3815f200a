"""Others' GPU stacks, vendors and operators are broken on a lab; the doctor's first finding names each cause."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.budget import count
from tests.doctor.lab import pairs
from tests.doctor.lab.breaking import Break, Ground, healthy, play
from tests.doctor.lab.breaks import courses, hosts, operators, scheduling, stack, vendors, workloads
from tests.doctor.lab.labs import brought_up
from tests.doctor.lab.pairs import Pair
from tests.doctor.lab.peers import defined

STACKS = (*stack.BREAKS, *vendors.BREAKS, *operators.BREAKS, *courses.BREAKS)
CARRIED = (*STACKS, *scheduling.BREAKS, *workloads.BREAKS, *hosts.BREAKS)
"""What can be broken on this lab."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    for made in brought_up("stacks", tmp_path_factory.mktemp("stacks")):
        defined(made)
        yield made


def test_a_healthy_lab_has_no_finding(ground: Ground) -> None:
    healthy(ground)


@pytest.mark.parametrize("broken", STACKS, ids=str)
def test_the_first_finding_names_the_cause(ground: Ground, broken: Break) -> None:
    play(ground, broken)


@pytest.mark.parametrize("pair", pairs.drawn(CARRIED, 30)[: count(4, 30)], ids=str)
def test_of_two_causes_both_are_told_and_the_more_urgent_first(ground: Ground, pair: Pair) -> None:
    pairs.play(ground, pair)
