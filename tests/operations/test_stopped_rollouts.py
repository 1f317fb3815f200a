"""What has ended counts in the engine's own rounds: a rollout stops after failures, and maxPerHour counts what is over."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from kgpu.formats.crd.nodeoperation import ROLLOUT_STOPPED
from kgpu.operations.config import OperationBudget, Share
from tests.operations.sim_drivers import wanted
from tests.operations.world import Cluster, Engine

NODES = ("n1", "n2", "n3", "n4")


def _upgrade(cluster: Cluster, name: str, digest: str = "2") -> None:
    rollout = {"name": "r", "maxParallel": 1, "maxUnavailable": 1}
    cluster.operation(f"up-{name}-{digest}", name, type="DriverUpgrade", driver=wanted(digest), rollout=rollout)


@contextlib.asynccontextmanager
async def failing() -> AsyncIterator[Engine]:
    """A rollout on four nodes that has failed on the first two."""
    cluster = Cluster()
    for name in NODES:
        cluster.node(name)
        cluster.driven(name, fails="install")
        _upgrade(cluster, name)
    cluster.drivers.template = "2"
    engine = Engine(cluster)
    await engine.start()
    try:
        await engine.run_for(120)
        yield engine
    finally:
        await engine.stop()


def _phases(cluster: Cluster, digest: str = "2") -> list[str]:
    return [cluster.status(f"up-{name}-{digest}")["phase"] for name in NODES]


async def test_after_two_failures_in_a_row_no_other_begins_and_nodes_and_cause_are_named() -> None:
    async with failing() as engine:
        cluster = engine.cluster
        assert _phases(cluster) == ["Failed", "Failed", "Pending", "Pending"]
        status = cluster.status("up-n3-2")
        assert status["reason"] == ROLLOUT_STOPPED
        for words in ("n1: ", "n2: ", "no headers", "kgpu operations approve up-n3-2"):
            assert words in status["message"]
        assert [cluster.drivers.digest(name) for name in NODES] == ["2", "2", "1", "1"]


async def test_a_new_leader_knows_that_it_has_stopped() -> None:
    async with failing() as engine:
        await engine.stop()
        again = Engine(engine.cluster, clock=engine.clock)
        await again.start()
        await again.run_for(60)
        await again.stop()
        assert _phases(engine.cluster) == ["Failed", "Failed", "Pending", "Pending"]


async def test_a_person_lets_one_begin_and_its_success_sets_the_rollout_going_again() -> None:
    async with failing() as engine:
        cluster = engine.cluster
        for name in NODES[2:]:
            cluster.drivers.of[name].fails = ""
        await engine.run_for(60)
        assert _phases(cluster)[2:] == ["Pending", "Pending"]
        cluster.say("up-n3-2", evenIfStopped=True)
        await engine.run_for(60)
        assert _phases(cluster)[2:] == ["Complete", "Complete"]


async def test_one_that_was_let_begin_and_fails_lets_no_other_begin() -> None:
    async with failing() as engine:
        engine.cluster.say("up-n3-2", evenIfStopped=True)
        await engine.run_for(120)
        assert _phases(engine.cluster) == ["Failed", "Failed", "Failed", "Pending"]


async def test_another_driver_begins_although_the_one_before_has_failed() -> None:
    async with failing() as engine:
        cluster = engine.cluster
        cluster.drivers.template = "3"
        for name in NODES:
            cluster.drivers.of[name].fails = ""
            cluster.say(f"up-{name}-2", cancel=True)
            _upgrade(cluster, name, "3")
        await engine.run_for(200)
        assert _phases(cluster, "3") == ["Complete"] * 4


async def test_max_per_hour_counts_operations_that_are_over() -> None:
    cluster = Cluster()
    for name in NODES:
        cluster.node(name)
        cluster.operation(f"m-{name}", name, durationSeconds=1)
    budget = OperationBudget(max_parallel=100, max_unavailable=Share(percent=100), max_per_hour=2)
    engine = Engine(cluster, budget)
    await engine.start()
    await engine.run_for(60)
    phases = [cluster.status(f"m-{name}")["phase"] for name in NODES]
    reason = cluster.status("m-n3")["reason"]
    await engine.run_for(3600, step=20)
    later = [cluster.status(f"m-{name}")["phase"] for name in NODES]
    await engine.stop()
    assert (phases, reason) == (["Complete", "Complete", "Pending", "Pending"], "WaitsForRate")
    assert later == ["Complete"] * 4
