"""ReplicationControllers: what a ReplicaSet does, with a selector of labels alone."""

from __future__ import annotations

from kgpu.kube.port import PODS, Object, name_of
from kgpu.lab.embedded.controllers.kinds import DISRUPTION_BUDGETS, REPLICATION_CONTROLLERS
from kgpu.lab.embedded.controllers.meta import controller_of, deleting

from .conftest import World, template, until


def controller(replicas: int) -> Object:
    spec = {"replicas": replicas, "selector": {"app": "web"}, "template": template()}
    return {"metadata": {"name": "rc", "namespace": "default"}, "spec": spec}


def kept(world: World) -> list[Object]:
    """The pods that it controls."""
    pods = [pod for pod in world.all(PODS) if not deleting(pod)]
    return [pod for pod in pods if (controller_of(pod) or {}).get("kind") == "ReplicationController"]


def status(world: World) -> Object:
    found = world.get(REPLICATION_CONTROLLERS, "rc")
    return (found or {}).get("status") or {}


async def test_it_keeps_as_many_pods_as_asked_for(world: World) -> None:
    await world.api.create(REPLICATION_CONTROLLERS, controller(2))
    await until(lambda: status(world).get("availableReplicas") == 2, "two pods")
    assert status(world) == {
        "replicas": 2, "fullyLabeledReplicas": 2, "readyReplicas": 2, "availableReplicas": 2, "observedGeneration": 1,
    }  # fmt: skip
    [first, _] = kept(world)
    assert first["metadata"]["ownerReferences"][0] | {"uid": ""} == {
        "apiVersion": "v1", "kind": "ReplicationController", "name": "rc", "uid": "", "controller": True,
        "blockOwnerDeletion": True,
    }  # fmt: skip
    await world.api.patch(REPLICATION_CONTROLLERS, "rc", {"spec": {"replicas": 1}}, namespace="default")
    await until(lambda: len(kept(world)) == 1 and status(world).get("replicas") == 1, "one pod")
    await until(lambda: {one[0] for one in world.events("SuccessfulDelete")} == {"rc"}, "the event")


async def test_it_adopts_what_matches_and_releases_what_no_longer_does(world: World) -> None:
    orphan = {"metadata": {"name": "orphan", "namespace": "default", "labels": {"app": "web"}}, "spec": {}}
    await world.api.create(PODS, orphan)
    await world.api.create(REPLICATION_CONTROLLERS, controller(1))
    await until(lambda: [name_of(pod) for pod in kept(world)] == ["orphan"], "the adoption")
    await world.api.patch(PODS, "orphan", {"metadata": {"labels": {"app": "other"}}}, namespace="default")
    await until(lambda: len(kept(world)) == 1 and name_of(kept(world)[0]) != "orphan", "another pod in its place")


async def test_a_disruption_budget_counts_its_pods(world: World) -> None:
    await world.api.create(REPLICATION_CONTROLLERS, controller(3))
    budget = {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}
    await world.api.create(DISRUPTION_BUDGETS, {"metadata": {"name": "b", "namespace": "default"}, "spec": budget})

    def allowed() -> bool:
        found = (world.get(DISRUPTION_BUDGETS, "b") or {}).get("status") or {}
        return (found.get("expectedPods"), found.get("disruptionsAllowed")) == (3, 1)

    await until(allowed, "the budget")
