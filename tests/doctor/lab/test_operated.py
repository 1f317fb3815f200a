"""A lab that kgpu's own operator runs is broken: GPUs, slices, settings; the doctor's first finding names each cause."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from doctor.lab.breaking import Break, Ground, healthy, play, until
from doctor.lab.breaks import operated
from doctor.lab.labs import brought_up

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    yield from brought_up("operated-doctor", tmp_path_factory.mktemp("operated"), operator=True)


def test_a_healthy_lab_has_no_finding(ground: Ground) -> None:
    until(lambda: ground.policy_state() == "ready", "the operator has nothing more to do")
    healthy(ground)


@pytest.mark.parametrize("broken", operated.BREAKS, ids=str)
def test_the_first_finding_names_the_cause(ground: Ground, broken: Break) -> None:
    play(ground, broken)
