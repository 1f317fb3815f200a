"""Operations that are switched off while nodes are held."""

from __future__ import annotations

import asyncio

from kgpu.base.clock import VirtualClock, settle
from kgpu.base.service import end
from kgpu.kube.port import NODES
from kgpu.operations.off import OperationsOff
from tests.operations.world import Cluster, Engine


async def held(cluster: Cluster) -> None:
    """n1 is held, n2 is somebody's own."""
    cluster.node("n1")
    cluster.node("n2", unschedulable=True)
    cluster.operation("m", "n1")
    engine = Engine(cluster)
    await engine.start()
    await engine.run_for(3)
    assert cluster.status("m")["phase"] == "Acting"
    await engine.stop()


async def test_held_nodes_are_given_back_and_others_stay() -> None:
    cluster = Cluster()
    await held(cluster)
    tasks = [asyncio.create_task(work) for work in OperationsOff(clock=VirtualClock()).term(cluster)]
    await settle()
    assert not cluster.unschedulable("n1")
    assert cluster.owners("n1") == ""
    assert cluster.unschedulable("n2")
    await end(*tasks)

    engine = Engine(cluster)
    await engine.start()
    await engine.run_for(3)
    assert (cluster.status("m")["result"], cluster.status("m")["reason"]) == ("Cancelled", "Uncordoned")
    assert not cluster.unschedulable("n1")
    await engine.stop()


async def test_what_fails_is_tried_again() -> None:
    cluster, clock = Cluster(), VirtualClock()
    await held(cluster)
    cluster.lose_at = cluster.writes + 1
    controller = OperationsOff(clock=clock)
    tasks = [asyncio.create_task(work) for work in controller.term(cluster)]
    await settle()
    cluster.put(NODES, {**cluster.object(NODES, "n1"), "spec": {"unschedulable": True}})
    assert "the answer was lost" in str(controller.status())
    cluster.lose_at = 0
    await clock.advance(5)
    await settle()
    assert cluster.owners("n1") == ""
    assert controller.status() == {"operations": {"kind": "off", "problem": ""}}
    await end(*tasks)
