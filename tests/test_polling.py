"""What is waited for is looked at at once, once more at the end, and less often the more a look costs."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests import polling


class World:
    """A clock and processor time that only move when they are used."""

    def __init__(self, cost: float) -> None:
        self.now = self.used = 0.0
        self.looks: list[float] = []
        self._cost = cost

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def look(self, until: float) -> Callable[[], bool]:
        def look() -> bool:
            self.looks.append(round(self.now, 3))
            self.used += self._cost
            return self.now >= until

        return look


@pytest.fixture
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(request.param)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(time, "sleep", made.sleep)
    monkeypatch.setattr(polling, "computed", lambda: made.used)
    return made


@pytest.mark.parametrize("world", [0.0], indirect=True)
def test_what_costs_nothing_is_looked_at_often(world: World) -> None:
    assert polling.holds(world.look(1), seconds=5, pause=0.25)
    assert world.looks == [0, 0.25, 0.5, 0.75, 1]


@pytest.mark.parametrize("world", [0.5], indirect=True)
def test_what_costs_much_is_looked_at_seldom(world: World) -> None:
    assert polling.holds(world.look(5), seconds=9)
    assert world.looks == [0, 2, 4, 6]


@pytest.mark.parametrize("world", [0.1], indirect=True)
def test_what_never_comes_ends_with_a_last_look(world: World) -> None:
    assert not polling.holds(world.look(100), seconds=1)
    assert world.looks[-1] > 1
    assert not polling.holds(world.look(100), seconds=-1)


def test_processor_time_is_what_is_used() -> None:
    before = polling.computed()
    assert polling.holds(lambda: polling.computed() > before, seconds=60, pause=0)
