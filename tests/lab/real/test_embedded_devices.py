"""Dynamic Resource Allocation on real programs: what is recorded of them is still what they say and do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from tests import budget, on_real
from tests.lab.embedded.controllers import story_claims
from tests.lab.embedded.controllers.real_claims import RealNamespace
from tests.lab.embedded.scheduler import device_play
from tests.lab.embedded.types import device_answers, device_mutants, verdicts

from . import gated, record_device_stories


@contextmanager
def own_plane(folder: Path) -> Iterator[gated.Gated]:
    try:
        with gated.running(folder) as found:
            yield found
    except LabError as error:
        on_real.unavailable(error.one_line(), what="control plane")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gated.Gated]:
    with own_plane(tmp_path_factory.mktemp("gated")) as found:
        device_answers.prepare(found.server)
        yield found


def test_the_recorded_answers_are_the_real_server_s(plane: gated.Gated) -> None:
    found = device_answers.everything(plane.server)
    recorded = device_answers.recorded()
    assert found.keys() == recorded.keys()
    assert {name: one for name, one in found.items() if one != recorded[name]} == {}


def test_what_is_changed_at_random_is_judged_alike(plane: gated.Gated) -> None:
    embedded = verdicts.core()
    unlike = []
    for row in device_mutants.mutants(random.Random(budget.count(8, None)), budget.count(500, 2000)):
        ours, real = verdicts.judged(embedded, row), plane.server.judged(row, device_answers.NAMESPACE)
        if device_mutants.alike(ours) != device_mutants.alike(real):
            unlike.append((row, ours, real))
    assert unlike == []


async def test_the_stories_of_devices_end_as_recorded(tmp_path: Path) -> None:
    recorded = device_play.recorded()
    wanted = {name: recorded[name] for name in budget.sample(sorted(recorded), "stories of devices")}
    with own_plane(tmp_path) as plane:
        ends = await record_device_stories.play(plane, wanted, only=wanted)
    assert ends.keys() == wanted.keys()
    assert {name: end for name, end in ends.items() if end != wanted[name]} == {}


async def test_the_story_of_claims_is_the_real_controller_s(plane: gated.Gated) -> None:
    plane.start_controllers()
    backend = RealNamespace(plane.server, "claims-story")
    backend.prepare()
    assert await story_claims.tell(backend) == story_claims.said()
