"""A lab is broken from the side of whoever runs something on it; the doctor's first finding names each cause."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doctor.lab.breaking import Break, Ground, healthy, play
from tests.doctor.lab.breaks import hosts, scheduling, workloads
from tests.doctor.lab.labs import FIRST, brought_up


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    yield from brought_up("workloads", tmp_path_factory.mktemp("workloads"))


def test_a_healthy_lab_has_no_finding(ground: Ground) -> None:
    healthy(ground)
    healthy(ground, FIRST)


@pytest.mark.parametrize("broken", [*scheduling.BREAKS, *workloads.BREAKS, *hosts.BREAKS], ids=str)
def test_the_first_finding_names_the_cause(ground: Ground, broken: Break) -> None:
    play(ground, broken)
