"""Upgrades of several nodes' drivers in one rollout, killed before and after any write, once or twice.

``POINTS`` kill points are drawn from all of them: each ends with the wanted or the former driver on every node.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

import pytest

from kgpu.operations.config import OperationBudget, Share
from tests.budget import count
from tests.operations.orders import Watched
from tests.operations.sim_drivers import wanted
from tests.operations.world import Cluster, Engine

NODES_EACH = 3
PARALLEL = 2
LOOKS = 400
"""Half seconds after which a rollout is over, whatever happens to it."""
POINTS = count(200, 2_000)
BLOCKS = count(4, 10)
"""How many tests share them."""
BUDGET = OperationBudget(max_parallel=100, max_unavailable=Share(percent=100))


@dataclass(frozen=True)
class Rollout:
    """``fails`` is the phase in which the next driver fails, ``bad`` the nodes where it does; ``template`` is the digest
    that the DaemonSet asks for once the first pod was exchanged; ``results`` are those that the operations may have.
    """

    results: frozenset[str]
    fails: str = ""
    bad: tuple[str, ...] = ()
    template: str = "2"
    silent: str = ""
    """A node whose agent answers no order."""
    cancelled: bool = False
    """A person cancels the last node's once the first pod was exchanged."""


ROLLOUTS = {
    "all goes well": Rollout(frozenset({"Succeeded"})),
    "one node's driver fails": Rollout(frozenset({"Succeeded", "PermanentFailure"}), "install", ("n1",)),
    "one node's manager fails": Rollout(frozenset({"Succeeded", "PermanentFailure"}), "manager", ("n2",)),
    "the wanted driver changes midway": Rollout(frozenset({"Succeeded", "Superseded"}), template="3"),
    "an agent is silent": Rollout(frozenset({"Succeeded"}), silent="n2"),
    "one is cancelled midway": Rollout(frozenset({"Succeeded", "Cancelled"}), cancelled=True),
}


def _begin(rollout: Rollout) -> tuple[Watched, list[str]]:
    cluster = Watched()
    nodes = [f"n{number}" for number in range(1, NODES_EACH + 1)]
    cluster.names = tuple(nodes)
    for name in nodes:
        cluster.node(name)
        driver = cluster.driven(name)
        driver.fails = rollout.fails if name in rollout.bad else ""
        cluster.machines[name].agent.silent = name == rollout.silent
        cluster.pod(
            f"train-{name}",
            name,
            spec={"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        )
        given = {"name": "r", "maxParallel": PARALLEL, "maxUnavailable": "100%"}
        cluster.operation(
            f"up-{name}", name, type="DriverUpgrade", driver=wanted(), rollout=given, drain={"onlyGpuPods": True}
        )
    cluster.drivers.template = "2"
    return cluster, nodes


def _ended(cluster: Cluster, nodes: list[str]) -> bool:
    return all(cluster.status(f"up-{name}").get("phase") in {"Complete", "Failed"} for name in nodes)


async def _play(rollout: Rollout, kills: tuple[int, ...] = ()) -> Watched:
    """``kills`` are numbers of writes, ascending; a negative one is killed after the write."""
    cluster, nodes = _begin(rollout)
    left = list(kills)
    cluster.die_at = left.pop(0) if left else 0
    engine = Engine(cluster, BUDGET)
    await engine.start()
    for _ in range(LOOKS):
        await engine.run_for(0.5)
        if engine.killed:
            await engine.stop()
            cluster.die_at = left.pop(0) if left else 0
            engine = Engine(cluster, BUDGET, clock=engine.clock)
            await engine.start()
        elif _ended(cluster, nodes):
            break
        if cluster.driver_deletions:
            cluster.drivers.template = rollout.template
            if rollout.cancelled and not cluster.status(f"up-{nodes[-1]}").get("completedAt"):
                cluster.say(f"up-{nodes[-1]}", cancel=True)
    await engine.run_for(10)  # what fails may be given back by now, and pods be Ready
    await engine.stop()
    return cluster


def _check(cluster: Watched, rollout: Rollout, point: object) -> None:
    """What holds whenever the process is killed."""
    for name in cluster.machines:
        status = cluster.status(f"up-{name}")
        assert status.get("phase") in {"Complete", "Failed"}, (point, name, status)
        assert status["result"] in rollout.results, (point, name, status)
        assert cluster.drivers.digest(name) in {"1", "2", rollout.template}, (point, name)
        failed = name in rollout.bad
        assert cluster.drivers.of[name].loaded == ("" if failed else cluster.drivers.digest(name)), (point, name)
        assert not cluster.unschedulable(name), (point, name)
        assert not cluster.owners(name), (point, name)
        assert not cluster.order(name), (point, name)
        assert not cluster.machines[name].released, (point, name)
    assert cluster.most_held <= PARALLEL, point
    assert len(cluster.driver_deletions) - len(set(cluster.driver_deletions)) <= 2, point
    assert len(set(cluster.driver_deletions)) <= NODES_EACH, point


@pytest.mark.timeout(count(600, 3600))
@pytest.mark.parametrize("block", range(BLOCKS))
async def test_a_rollout_killed_at_any_write_ends_with_a_driver_everywhere(block: int) -> None:
    chance = random.Random(block)
    totals = {}
    for name, rollout in ROLLOUTS.items():
        whole = await _play(rollout)
        _check(whole, rollout, name)
        totals[name] = whole.writes
        assert whole.writes >= 8 * NODES_EACH
    every = [
        (name, number, side) for name, total in totals.items() for number in range(1, total + 1) for side in (1, -1)
    ]
    played = 0
    for _ in range(POINTS // BLOCKS):
        name, number, side = chance.choice(every)
        again = number + chance.randrange(1, 8) if played % 2 else 0
        kills = (side * number, chance.choice((1, -1)) * again) if again else (side * number,)
        _check(await _play(ROLLOUTS[name], kills), ROLLOUTS[name], (name, kills))
        played += 1
    sys.stdout.write(f"block {block}: {played} kill points of {len(every)} single ones in {len(ROLLOUTS)} rollouts\n")
    assert played == POINTS // BLOCKS
