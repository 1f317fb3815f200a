"""Driver pods on a node that its DaemonSet has not made: left over, forged, or of another controller. Nothing is made
again and again because of them, and each is exchanged or named.
"""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats import names
from kgpu.kube.port import PODS, Object
from tests.operations.sim_drivers import image
from tests.operator.upgrades.live_fleet import NEW, OLD, LiveFleet
from tests.operator.upgrades.story import AUTO, running_old, story
from tests.operator.world import NAMESPACE

LABELS = {names.COMPONENT_LABEL: names.DRIVER_COMPONENT}
REPLICAS = {"kind": "ReplicaSet", "name": "drivers", "uid": "rs", "controller": True}


def stranger(fleet: LiveFleet, *, labels: dict[str, str] | None = None, owner: Object | None = None) -> Object:
    """A pod of the operator's namespace whose container has the name of a driver's."""
    metadata: dict[str, Any] = {
        "namespace": NAMESPACE, "name": "stranger", "uid": "stranger", "labels": LABELS if labels is None else labels,
        "ownerReferences": [owner] if owner else [],
    }  # fmt: skip
    container = {"name": names.DRIVER_CONTAINER, "image": image("1")}
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return fleet.put(
        PODS, {"metadata": metadata, "spec": {"nodeName": "n1", "containers": [container]}, "status": ready}
    )


@pytest.mark.parametrize("labels", [{}, LABELS], ids=["by its container alone", "by its label too"])
async def test_a_pod_beside_the_drivers_own_changes_nothing(labels: dict[str, str]) -> None:
    """The driver's own pod is there and runs what is wanted, whatever else is on the node."""
    async with running_old("n1") as told:
        fleet = told.fleet
        stranger(fleet, labels=labels)
        await told.run_for(200)
        assert (fleet.outcomes(), fleet.loaded(), fleet.cordoned()) == ([], {"n1": OLD}, [])
        assert fleet.ready()
        fleet.want(NEW, AUTO)
        await told.run_for(400)
        # Pods with the label repel each other, so the next one finds no place: told, and not tried without end.
        assert fleet.outcomes() == [(NEW, "DriverFailed" if labels else "DriverUpgraded")]
        assert ("its place is taken by the driver's pod stranger" in fleet.said()) is bool(labels)
        assert fleet.cordoned() == []


async def test_a_driver_pod_that_nobody_owns_is_exchanged_once() -> None:
    """What a DaemonSet has left behind that was deleted with ``--cascade=orphan``."""
    fleet = LiveFleet("n1")
    stranger(fleet)
    fleet.driven_by["n1"].loaded = OLD
    fleet.want(NEW, {**AUTO, "drain": {"enable": True}})
    async with story(fleet) as told:
        await told.until(fleet.ready, "the driver is loaded", 900)
        await told.run_for(200)
        assert fleet.outcomes() == [(NEW, "DriverUpgraded")]
        assert "stranger" not in {pod["metadata"]["name"] for pod in fleet._of_drivers()}
        assert (fleet.loaded(), fleet.cordoned()) == ({"n1": NEW}, [])


async def test_a_pod_of_another_controller_is_named_and_no_operation_is_made() -> None:
    fleet = LiveFleet("n1")
    stranger(fleet, owner=REPLICAS)
    fleet.driven_by["n1"].loaded = OLD
    fleet.want(NEW, AUTO)
    async with story(fleet) as told:
        await told.run_for(300)
        assert (fleet.outcomes(), fleet.cordoned(), fleet.ready()) == ([], [], False)
        assert "stranger" in fleet.said()
