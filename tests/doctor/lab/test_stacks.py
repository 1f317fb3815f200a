"""Others' GPU stacks, vendors and operators are broken on a lab; the doctor's first finding names each cause."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from doctor.lab.breaking import Break, Ground, healthy, play
from doctor.lab.breaks import courses, operators, stack, vendors
from doctor.lab.labs import brought_up
from doctor.lab.peers import defined

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    for made in brought_up("stacks", tmp_path_factory.mktemp("stacks")):
        defined(made)
        yield made


def test_a_healthy_lab_has_no_finding(ground: Ground) -> None:
    healthy(ground)


@pytest.mark.parametrize("broken", [*stack.BREAKS, *vendors.BREAKS, *operators.BREAKS, *courses.BREAKS], ids=str)
def test_the_first_finding_names_the_cause(ground: Ground, broken: Break) -> None:
    play(ground, broken)
