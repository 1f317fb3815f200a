"""Operator and agent are killed at any point of changes of MIG slices, while people change their minds: each GPU ends with a
layout that was asked for or the one of before, and the node is told which.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kgpu.formats.mig_request import MigLayout
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import Object, Resource
from kgpu.operations.config import OperationBudget, Share
from tests.budget import count
from tests.operations.orders import Processes
from tests.operations.sim_mig import LARGE, SMALL, Ends, SimMig, ask, layout, told
from tests.operations.world import Cluster

BUDGET = OperationBudget(max_parallel=100, max_unavailable=Share(percent=100))
BLOCK = count(80, 1_000)
BLOCKS = count(1, 5)
KILLS = 200
"""Killed at so many points at least, in each block."""
LAYOUTS: tuple[dict[str, int], ...] = ({}, SMALL, LARGE, {"2g.20gb": 3})


class MigCluster(Cluster):
    """Counts the creation of operations and changes of Nodes as writes, too; and watches that none is done twice."""

    most = 0
    """The most unfinished changes at a time."""

    async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        if resource != NODE_OPERATIONS:
            return await super().create(resource, obj, subresource=subresource)
        made: Object = await self._counted(lambda: super(MigCluster, self).create(resource, obj))
        open_ones = [row for row in self.changes() if row.get("status", {}).get("phase") not in ("Complete", "Failed")]
        self.most = max(self.most, len(open_ones))
        return made

    async def patch(self, resource: Resource, name: str, change: Object, **more: Any) -> Object:
        patched: Object = await self._counted(lambda: super(MigCluster, self).patch(resource, name, change, **more))
        return patched

    def changes(self) -> list[Object]:
        """The operations that there are."""
        return [stored.obj for (kind, _, _), stored in self._objects.items() if kind == NODE_OPERATIONS]


class Story:
    """One node, and what happens to it by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = MigCluster()
        self.cluster.node("n1")
        self.mig.looks = self.chance.choice((1, 2, 6))
        self.asked: dict[str, tuple[MigLayout, ...]] = {}
        self.agent_kills = 0
        for name in ("a", "b", "c"):
            self.cluster.pod(name, "n1")
        self.cluster.machines["n1"].agent.holders = ["a", "b"]

    @property
    def mig(self) -> SimMig:
        return self.cluster.machines["n1"].agent.mig

    def ask(self) -> None:
        """A person sets the label."""
        gpus = self.chance.choice((("GPU-1",), ("GPU-2",), ("GPU-1", "GPU-2")))
        rows = tuple(layout(gpu, self.chance.choice(LAYOUTS)) for gpu in gpus)
        key = f"r{len(self.asked)}"
        self.asked[key] = rows
        ask(self.cluster, "n1", key, *rows, release=self.chance.random() < 0.3)

    def happens(self) -> None:
        what, cluster = self.chance.randrange(10), self.cluster
        if what == 0:
            self.ask()
        elif what == 1:
            ask(cluster, "n1", "")
        elif what == 2:
            self.agent_kills += 1
            self.mig.die()
        elif what == 3:
            cluster.machines["n1"].agent.silent = self.chance.random() < 0.3
        elif what == 4:
            cluster.drop_watches()
        elif what == 5:
            self.mig.ends = self.chance.choice((Ends.DONE, Ends.DONE, Ends.FAILED))
        elif what == 6 and self.chance.random() < 0.3:
            cluster.machines["n1"].boot_anew()
            cluster._booted("n1", cluster.machines["n1"].boot)
        else:
            cluster.die_at = self.chance.choice((1, -1)) * (cluster.writes + self.chance.randrange(1, 4))


async def _play(seed: int) -> int:
    """Return how often operator or agent was killed."""
    story = Story(seed)
    cluster, chance = story.cluster, story.chance
    processes = Processes(cluster, BUDGET)
    await processes.engine.start()
    story.ask()
    for _ in range(40):
        await processes.go_on(0.5)
        if chance.random() < 0.4:
            story.happens()
    cluster.die_at, cluster.machines["n1"].agent.silent, story.mig.ends = 0, False, Ends.DONE
    await processes.go_on(5)
    story.ask()
    last = f"r{len(story.asked) - 1}"
    await processes.go_on(120, step=1)
    await processes.engine.stop()
    _check(story, last, seed)
    return processes.kills + story.agent_kills


def _check(story: Story, last: str, seed: int) -> None:
    cluster, word = story.cluster, told(story.cluster)
    assert word is not None, seed
    assert (word.id, word.phase, word.reason) == (last, "Complete", "MigChanged"), (seed, word)
    for row in story.asked[last]:
        assert story.mig.layouts[row.gpu] == row.devices, seed
    assert not story.mig.between, seed
    assert not cluster.order("n1"), seed
    assert not cluster.owners("n1"), seed
    assert not cluster.unschedulable("n1"), seed
    assert {row["status"]["phase"] for row in cluster.changes()} <= {"Complete", "Failed"}, seed
    assert cluster.most <= 1, seed
    assert len(story.mig.cut) == len(set(story.mig.cut)), seed
    carried_out = [
        row["spec"]["mig"]["request"] for row in cluster.changes() if row["status"]["result"] != "Superseded"
    ]
    assert len(carried_out) == len(set(carried_out)), seed


@pytest.mark.timeout(count(600, 3600))
@pytest.mark.parametrize("block", range(BLOCKS))
async def test_gpus_end_as_wanted_whoever_is_killed(block: int) -> None:
    kills = [await _play(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    print(f"\nkilled at {sum(kills)} points")
    assert sum(kills) >= KILLS
