"""Whatever is away, late or doubled: the API server for half an hour, a second leader, a clock that is an hour off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.budget import count
from tests.operations.world import Cluster, Engine

AWAY = 1800.0
KINDS: Mapping[str, Mapping[str, Any]] = {
    "Maintenance": {"durationSeconds": 5},
    "Reboot": {},
    "GpuReset": {"gpus": ["GPU-1"]},
}


class Outage(Cluster):
    """The API server goes away after the write ``gone_after``; machines that boot do so meanwhile."""

    gone_after = 0

    async def _counted(self, write: Callable[[], Any]) -> Any:
        try:
            return await super()._counted(write)
        finally:
            if self.writes == self.gone_after:
                self.set_down(True)

    async def kubelets(self) -> None:
        """Without the API server only machines go on."""
        if not self.down:
            await super().kubelets()
            return
        for machine in self.machines.values():
            machine.left = 1 if machine.left else 0


def prepared(cluster: Cluster, kind: str, **spec: Any) -> Cluster:
    """An operation ``m`` of this kind on ``n1``, where two pods hold the ill GPU."""
    cluster.node("n1")
    for name in ("web-0", "web-1"):
        cluster.pod(name, "n1")
    machine = cluster.machines["n1"]
    machine.ill["GPU-1"], machine.agent.holders = "the driver asks for a reset", ["web-0", "web-1"]
    cluster.operation("m", "n1", type=kind, **KINDS[kind], **spec)
    return cluster


def nothing_is_left(cluster: Cluster) -> None:
    assert cluster.status("m")["phase"] in {"Complete", "Failed"}
    assert not cluster.unschedulable("n1")
    assert not cluster.owners("n1")
    assert not cluster.order("n1")
    machine = cluster.machines["n1"]
    assert len(machine.asked) == len(set(machine.asked))
    assert len(machine.reset_ids) == len(set(machine.reset_ids))
    assert machine.boots <= 1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_api_server_that_is_away_for_half_an_hour(kind: str) -> None:
    """After each write: what has begun ends, and nothing is done twice."""
    results = set()
    for gone_after in range(1, 40, count(3, 1)):
        cluster = Outage()
        cluster.gone_after = gone_after
        prepared(cluster, kind)
        engine = Engine(cluster)
        await engine.start()
        await engine.run_for(20)
        if not cluster.down:
            await engine.stop()
            break
        asked = tuple(cluster.machines["n1"].asked)
        await engine.run_for(AWAY, step=300)
        assert tuple(cluster.machines["n1"].asked) == asked, "nothing begins on an order of before"
        cluster.set_down(False)
        await engine.run_for(120, step=3)
        await engine.stop()
        nothing_is_left(cluster)
        results.add(cluster.status("m")["result"])
    assert gone_after > 6
    assert "Succeeded" in results


@pytest.mark.parametrize("kind", KINDS)
async def test_two_leaders_at_once_do_nothing_twice(kind: str) -> None:
    """The lease rules it out; if it should fail, the record's version and the act's ID stand in the way."""
    cluster = prepared(Cluster(), kind)
    first = Engine(cluster)
    second = Engine(cluster, clock=first.clock)
    await first.start()
    await second.start()
    await first.run_for(60)
    assert not second.killed
    await first.stop()
    await second.stop()
    nothing_is_left(cluster)
    assert cluster.status("m")["result"] == "Succeeded"
    assert cluster.machines["n1"].boots == (kind == "Reboot")
    assert len(cluster.machines["n1"].reset_gpus) == (kind == "GpuReset")


@pytest.mark.parametrize("ahead", [-3600, 3600])
@pytest.mark.parametrize("kind", KINDS)
async def test_limits_hold_with_a_clock_that_is_an_hour_off(kind: str, ahead: float) -> None:
    """The engine measures its own steps by its own clock; boots and acts are known by their IDs."""
    cluster = prepared(Cluster(), kind)
    engine = Engine(cluster, ahead=ahead)
    await engine.start()
    await engine.run_for(30)
    await engine.stop()
    nothing_is_left(cluster)
    assert cluster.status("m")["result"] == "Succeeded"


@pytest.mark.parametrize("ahead", [-3600, 3600])
async def test_a_drain_ends_by_its_limit_with_a_clock_that_is_an_hour_off(ahead: float) -> None:
    cluster = prepared(Cluster(), "Maintenance", drain={"timeoutSeconds": 60})
    cluster.budgets["default", "web-1"] = (429, "Cannot evict pod", (("DisruptionBudget", "needs 2"),))
    engine = Engine(cluster, ahead=ahead)
    await engine.start()
    await engine.run_for(50)
    assert cluster.status("m")["phase"] == "Draining"
    await engine.run_for(20)
    await engine.stop()
    assert cluster.status("m")["reason"] == "DrainTimeout"
    nothing_is_left(cluster)
