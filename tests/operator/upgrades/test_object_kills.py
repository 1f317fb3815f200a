"""Operator and engine are killed before and after writes while nodes get another version, another kind of driver, or one
of another object: it ends as if they had not been.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.budget import count
from tests.operator.upgrades.live_fleet import NEW, LiveFleet
from tests.operator.upgrades.story import running_old
from tests.operator.upgrades.test_story_objects import (
    ONE_BY_ONE,
    driven_by_objects,
    rest,
    to_objects,
    to_policy,
    train_on_all,
    watched,
)

NODES = ("n1", "n2")
POINTS = count(6, 120)
LONGEST = 900
"""Seconds after which it is over, however often kgpu was killed."""
Change = Callable[..., None]


def to_version(fleet: LiveFleet, version: str, upgrade: Mapping[str, Any]) -> None:
    fleet.want(version, upgrade)


def to_precompiled(fleet: LiveFleet, version: str, upgrade: Mapping[str, Any]) -> None:
    fleet.want(version, upgrade, usePrecompiled=True)


async def _play(change: Change, version: str, kills: tuple[int, ...] = ()) -> int:
    """Return how many writes there were. ``kills`` are numbers of writes; a negative one is killed after the write."""
    before = driven_by_objects if change is to_policy else running_old
    async with before(*NODES, upgrade=ONE_BY_ONE) as told:
        fleet: LiveFleet = told.fleet
        trains = train_on_all(fleet)
        left = [*kills]
        fleet.writes, fleet.die_at = 0, left.pop(0) if left else 0
        change(fleet, version, ONE_BY_ONE)
        done = watched(fleet, version, 1)
        for _ in range(LONGEST):
            await told.run_for(1)
            if told.killed:
                await told.stop()
                fleet.writes, fleet.die_at = 0, left.pop(0) if left else 0
                await told.start()
            elif done():
                break
        else:
            pytest.fail(f"killed at {kills}: {told.told()}")
        writes = fleet.writes
        fleet.die_at = 0
        await told.run_for(60)
        pods, notes, cordoned = rest(fleet)
        assert (len(pods), notes, cordoned) == (1, set(), []), kills
        assert (set(fleet.loaded().values()), fleet.ready()) == ({version}, True), kills
        assert set(fleet.evictions) == set(trains), kills
        assert {reason for _, reason in fleet.outcomes()} == {"DriverUpgraded"}, kills
        return writes


@pytest.mark.timeout(count(600, 3600))
@pytest.mark.parametrize(
    ("change", "version"), [(to_objects, NEW), (to_policy, NEW), (to_version, NEW), (to_precompiled, "570")]
)
async def test_killed_at_writes(change: Change, version: str) -> None:
    chance = random.Random(change.__name__)
    total = await _play(change, version)
    assert total > 20
    for point in chance.sample(range(1, total + 1), min(POINTS, total)):
        again = (chance.randint(1, 10),) if chance.random() < 0.3 else ()
        await _play(change, version, (chance.choice((point, -point)), *again))
