"""A node whose driver is of another DaemonSet, or of none any more: who ends its pod, and what if nobody does."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats import names
from kgpu.formats.driver_revision import DriverRevision
from kgpu.kube.port import NODES, PODS, Object
from kgpu.operations.driver_pods import DriverPod, driver_on
from tests.operations.sim_drivers import DAEMON_SET, wanted
from tests.operations.test_driver_upgrade import cluster_with_driver, condition, until, upgrading
from tests.operations.world import Cluster

FORMER: Object = {"kind": "DaemonSet", "name": "nvidia-gpu-driver-ubuntu24.04-7", "uid": "former", "controller": True}


def cluster_of(owners: list[Object], **given: Any) -> Cluster:
    """A node with a pod with a GPU and the driver's pod of these owners."""
    cluster = cluster_with_driver(**given)
    pod = cluster.drivers.pod("n1")
    assert pod is not None
    cluster.put(PODS, {**pod, "metadata": {**pod["metadata"], "ownerReferences": owners}})
    return cluster


def is_to_move(cluster: Cluster, daemon_set: str) -> None:
    known = cluster.object(NODES, "n1")
    told = {**(known["metadata"].get("annotations") or {}), names.NEXT_DRIVER: daemon_set}
    cluster.put(NODES, {**known, "metadata": {**known["metadata"], "annotations": told}})


async def test_a_pod_that_its_daemon_set_has_left_is_deleted_like_any_other() -> None:
    cluster = cluster_of([])
    async with upgrading(cluster) as engine:
        await until(engine, "Complete")
    assert (cluster.status("m")["reason"], cluster.driver_deletions) == ("DriverUpgraded", ["driver-1"])
    assert (cluster.evictions, cluster.drivers.digest("n1")) == (["default/train"], "2")


async def test_the_same_driver_of_another_daemon_set_is_exchanged_too() -> None:
    cluster = cluster_of([])
    async with upgrading(cluster, driver=wanted("1", "1")) as engine:
        cluster.drivers.template = "1"
        await until(engine, "Complete")
    assert (cluster.status("m")["reason"], cluster.driver_deletions) == ("DriverUpgraded", ["driver-1"])


async def test_a_pod_of_another_daemon_set_goes_with_the_node_and_is_not_deleted() -> None:
    cluster = cluster_of([FORMER])
    is_to_move(cluster, DAEMON_SET)
    async with upgrading(cluster) as engine:
        await until(engine, "Acting")
        while not condition(cluster, "DriverReleased"):
            await engine.run_for(0.5)
        await engine.run_for(40)
        assert (cluster.status("m")["phase"], cluster.driver_pods("n1")) == ("Acting", ["driver-1"])
        assert "pod driver-1 goes with that" in cluster.status("m")["message"]
        pod = cluster.drivers.pod("n1")
        assert pod is not None
        await cluster.delete(PODS, "driver-1", namespace=pod["metadata"]["namespace"])
        await until(engine, "Complete")
    assert (cluster.status("m")["reason"], cluster.driver_deletions) == ("DriverUpgraded", [])


@pytest.mark.parametrize("next_one", ["", "another"])
async def test_a_node_that_is_not_to_get_that_daemon_set_is_not_emptied_for_it(next_one: str) -> None:
    cluster = cluster_of([FORMER])
    if next_one:
        is_to_move(cluster, next_one)
    async with upgrading(cluster) as engine:
        await until(engine, "Complete")
    assert (cluster.status("m")["result"], cluster.status("m")["reason"]) == ("Superseded", "NoDriverPod")
    assert (cluster.driver_pods("n1"), cluster.evictions) == (["driver-1"], [])


@pytest.mark.parametrize(
    ("next_one", "outcome"),
    [
        (DAEMON_SET, ("Failed", "TransientFailure", "NotHandedOver")),
        ("another", ("Complete", "Superseded", "DriverChanged")),
        ("", ("Complete", "Superseded", "DriverChanged")),
    ],
)
async def test_a_node_that_is_not_given_away_keeps_its_driver(next_one: str, outcome: tuple[str, ...]) -> None:
    cluster = cluster_of([FORMER])
    is_to_move(cluster, DAEMON_SET)
    async with upgrading(cluster) as engine:
        await until(engine, "Acting")
        is_to_move(cluster, next_one)
        await until(engine, outcome[0])
        status = cluster.status("m")
        assert (status["phase"], status["result"], status["reason"]) == outcome
        await engine.run_for(5)
    assert (cluster.driver_pods("n1"), cluster.driver_deletions) == (["driver-1"], [])
    assert not cluster.machines["n1"].released
    assert (cluster.unschedulable("n1"), cluster.owners("n1"), cluster.order("n1")) == (False, "", "")


async def test_a_person_can_cancel_while_the_node_is_given_away() -> None:
    cluster = cluster_of([FORMER])
    is_to_move(cluster, DAEMON_SET)
    async with upgrading(cluster) as engine:
        await until(engine, "Acting")
        while not condition(cluster, "DriverReleased"):
            await engine.run_for(0.5)
        cluster.say("m", cancel=True)
        await until(engine, "Complete")
    assert (cluster.status("m")["result"], cluster.driver_pods("n1")) == ("Cancelled", ["driver-1"])


def test_which_pod_holds_the_driver() -> None:
    def pod(name: str, daemon_set: str = "", **given: Any) -> DriverPod:
        image = DriverRevision(image="driver:570.1-ubuntu24.04")
        return DriverPod(
            namespace="n", name=name, uid=name, node="n1", daemon_set=daemon_set, revision=image, **given
        )  # fmt: skip

    own, left = pod("own", "d", created="2", placed=False), pod("left", created="1")
    former, gone = pod("former", "f", created="1"), pod("gone", "f", created="3", ending=True)
    for there, holds in (
        ((own, left), left),
        ((own, former), former),
        ((own, gone), gone),
        ((gone,), gone),
        ((), None),
    ):
        assert driver_on(there, "n1", "d") is holds
        assert driver_on(reversed(there), "n1", "d") is holds
    assert driver_on([own], "n2", "d") is None
