"""Dynamic Resource Allocation on the real API server: the recorded answers are still its answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kgpu.base.errors import LabError
from tests import on_real
from tests.lab.embedded.types import device_answers

from . import gated


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gated.Gated]:
    try:
        with gated.running(tmp_path_factory.mktemp("gated")) as found:
            yield found
    except LabError as error:
        on_real.unavailable(error.one_line(), what="control plane")


def test_the_recorded_answers_are_the_real_server_s(plane: gated.Gated) -> None:
    found = device_answers.everything(plane.server)
    recorded = device_answers.recorded()
    assert found.keys() == recorded.keys()
    assert {name: one for name, one in found.items() if one != recorded[name]} == {}
