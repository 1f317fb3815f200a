"""Driver upgrades in random orders with operations of other types, people, weather, dying agents and kills.

The wanted driver changes midway, drivers fail, a node is deleted, people approve, cancel and uncordon. Neither the
budget of the rollout nor that of the engine is exceeded, and nothing is left behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES, PODS
from kgpu.operations.config import OperationBudget, Share
from tests.budget import count
from tests.operations.orders import BEGUN, Processes, Watched
from tests.operations.sim_drivers import wanted

BLOCK = count(40, 1_000)
BLOCKS = count(1, 5)
ENDED = {"Complete", "Failed"}
STOP_AFTER = 2


class Upgraded(Watched):
    """Checks at each write that a rollout begins no more than it may, and none after two failures in a row."""

    parallel = 0
    """How many of the rollout may be under way; 0 for any number."""
    most_of_rollout = 0
    begun_after_failures = 0
    stopped = 0
    """How often the rollout had stopped when something was written."""

    async def _counted(self, write: Callable[[], object]) -> object:
        before = {name: dict(self.status(name)) for name in self.upgrades}
        try:
            return await super()._counted(write)
        finally:
            now = {name: self.status(name) for name in self.upgrades}
            under_way = sum(status.get("phase") in BEGUN for status in now.values())
            self.most_of_rollout = max(self.most_of_rollout, under_way)
            for name in self.upgrades:
                if before[name].get("phase", "Pending") == "Pending" and now[name].get("phase") in BEGUN:
                    self._begins(name, before)

    def _begins(self, name: str, before: Mapping[str, Mapping[str, Any]]) -> None:
        spec = self.object(NODE_OPERATIONS, name)["spec"]
        same = [
            before[other]
            for other in self.upgrades
            if self.object(NODE_OPERATIONS, other)["spec"]["driver"]["digest"] == spec["driver"]["digest"]
        ]
        well = max((row["completedAt"] for row in same if row.get("result") == "Succeeded"), default="")
        failed = [row for row in same if row.get("phase") == "Failed" and row["completedAt"] > well]
        if len(failed) >= STOP_AFTER:
            self.stopped += 1
            self.begun_after_failures += not spec.get("evenIfStopped")

    @property
    def upgrades(self) -> tuple[str, ...]:
        """The names of the driver upgrades."""
        return tuple(name for name in self.operations if name.startswith("up-"))

    @property
    def present(self) -> list[str]:
        """The nodes that have not been deleted."""
        return [name for name in self.names if (NODES, "", name) in self._objects]

    async def remove(self, name: str) -> None:
        """A person deletes a Node; its pods go with it."""
        for pod in self._pods_now():
            if pod["spec"].get("nodeName") == name:
                metadata = pod["metadata"]
                await FakeApi.delete(self, PODS, metadata["name"], namespace=metadata["namespace"], grace=0)
        self.drivers.of.pop(name, None)
        self.machines.pop(name)
        await FakeApi.delete(self, NODES, name)


def _some_cluster(chance: random.Random) -> Upgraded:
    cluster = Upgraded()
    cluster.names = tuple(f"n{number}" for number in range(1, chance.choice((1, 3, 4, 6)) + 1))
    cluster.parallel = chance.choice((0, 1, 2))
    rollout = {"name": "r", "maxParallel": cluster.parallel, "maxUnavailable": "100%", "stopAfterFailures": STOP_AFTER}
    ill = chance.random() < 0.4
    names = []
    for name in cluster.names:
        cluster.node(name)
        fails = chance.choice(("install", "manager", "image")) if ill and chance.random() < 0.8 else ""
        cluster.driven(name, looks=chance.choice((2, 4, 12)), fails=fails)
        cluster.pod(f"web-{name}", name)
        names.append(f"up-{name}")
        cluster.operation(
            names[-1], name, type="DriverUpgrade", driver=wanted(), rollout=rollout, approved=chance.random() < 0.8,
            drain={"onlyGpuPods": chance.random() < 0.5, "timeoutSeconds": 15}, actTimeoutSeconds=60,
        )  # fmt: skip
    for number in range(3):
        kind = chance.choice(("Maintenance", "Reboot", "GpuReset", "Replace"))
        names.append(f"m{number}")
        given = {"gpus": ["GPU-1"] if kind == "GpuReset" else [], "durationSeconds": chance.choice((3, 10))}
        cluster.operation(names[-1], chance.choice(cluster.names), type=kind, **given)
    cluster.operations = tuple(names)
    cluster.drivers.template = "2"
    return cluster


def _person(cluster: Upgraded, chance: random.Random) -> None:
    """Something that people do."""
    name, operation = chance.choice(cluster.present), chance.choice(cluster.operations)
    what = chance.randrange(5)
    if what == 0:
        cluster.uncordon(name)
    elif what == 1:
        cluster.say(operation, cancel=True)
    elif what == 2:
        cluster.say(operation, approved=True, evenIfStopped=chance.random() < 0.5)
    elif what == 3:
        cluster.say(operation, resume=True)
    else:
        cluster.drivers.template = chance.choice("23")


async def _weather(cluster: Upgraded, chance: random.Random) -> None:
    """Something that happens."""
    name = chance.choice(cluster.present)
    what = chance.randrange(7)
    if what == 0:
        known = cluster.object(NODES, name)
        status = {**known["status"], "conditions": [{"type": "Ready", "status": chance.choice(("True", "False"))}]}
        cluster.put(NODES, {**known, "status": status})
    elif what == 1:
        cluster.drop_watches()
    elif what == 2:
        cluster.machines[name].agent.silent = chance.random() < 0.4
    elif what == 3:
        cluster.drivers.of[name].fails = chance.choice(("", "", "install", "manager", "image"))
    elif what == 4 and len(cluster.present) > 1 and chance.random() < 0.3:
        await cluster.remove(name)
    elif what == 5:
        cluster.repair(name)
    else:
        cluster.die_at = chance.choice((1, -1)) * (cluster.writes + 1)


@pytest.mark.timeout(count(600, 7200))
@pytest.mark.parametrize("block", range(BLOCKS))
async def test_a_rollout_keeps_its_budget_in_any_order(block: int) -> None:
    played = [await _any_order(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    assert sum(kills for kills, _ in played) >= BLOCK / 5
    assert sum(exchanged for _, exchanged in played) >= BLOCK


async def _any_order(seed: int) -> tuple[int, int]:
    """Play one; return how often the process was killed, and how many driver pods were exchanged."""
    chance = random.Random(seed)
    cluster = _some_cluster(chance)
    share = chance.choice((Share(1), Share(2), Share(percent=50)))
    budget = OperationBudget(max_parallel=chance.choice((1, 2, 5)), max_unavailable=share)
    processes = Processes(cluster, budget)
    await processes.engine.start()
    for _ in range(40):
        await processes.go_on(1)
        if chance.random() < 0.2:
            _person(cluster, chance)
        elif chance.random() < 0.3:
            await _weather(cluster, chance)
    await _all_ends(cluster, processes)
    await processes.engine.stop()
    _check(cluster, seed)
    assert cluster.most <= budget.max_parallel, seed
    assert max(cluster.most, cluster.most_held) <= share.of(len(cluster.names)), seed
    return processes.kills, len(set(cluster.driver_deletions))


async def _all_ends(cluster: Upgraded, processes: Processes) -> None:
    """Everybody lets go; what can't be cancelled any more ends by its limit."""
    for name in cluster.operations:
        cluster.say(name, cancel=True)
    cluster.die_at = 0
    await processes.go_on(15)
    for _ in range(100):
        if all(cluster.status(name)["phase"] in ENDED for name in cluster.operations):
            return
        await processes.go_on(20, step=20)


def _check(cluster: Upgraded, seed: int) -> None:
    assert not cluster.parallel or cluster.most_of_rollout <= cluster.parallel, seed
    assert not cluster.begun_after_failures, seed
    assert {cluster.status(name)["phase"] for name in cluster.operations} <= ENDED, seed
    for name in cluster.present:
        assert not cluster.unschedulable(name), (seed, name)
        left = cluster.owners(name), cluster.order(name), cluster.marked(name)
        assert left == ("", "", False), (seed, name)
        assert not cluster.machines[name].released, (seed, name)
        assert cluster.drivers.digest(name) in {"1", "2", "3"}, (seed, name)
    for machine in cluster.machines.values():
        assert len(machine.asked) == len(set(machine.asked)), seed
        assert len(machine.reset_ids) == len(set(machine.reset_ids)), seed
