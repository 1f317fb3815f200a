"""Whoever may change objects of a namespace spares nobody by kgpu's own annotations, and stops nothing of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import DEPLOYMENTS, NAMESPACES, REPLICA_SETS, STATEFUL_SETS
from kgpu.kube.port import PODS, Object, Resource
from kgpu.operations.writing import evict
from kgpu.usage.asked_reclaim import ProcessWord
from kgpu.usage.now import HolderNow
from kgpu.usage.reclaim import acting, owners
from kgpu.usage.reclaim.guards import GuardFacts, obstacle
from kgpu.usage.reclaim.model import RECLAIM_RULES, HeldWorkload, ReclaimPolicy, WorkloadRef, workloads
from kgpu.usage.reclaim.reading import ClusterLook
from kgpu.usage.reclaim.record import ActionState
from kgpu.usage.reclaim.requests import reclaim
from tests.usage.reclaim.scene import HOUR, OWN, SPACE, START, Scene, SimDevice, SimDevices

IDLE = START - 3 * HOUR


@pytest.fixture
async def scene() -> Scene:
    return await Scene().begin()


def held(scene: Scene, kind: str, name: str, space: str = SPACE) -> HeldWorkload:
    return workloads(scene.source.devices(RECLAIM_RULES, scene.now))[WorkloadRef(space, kind, name)]


async def facts_of(scene: Scene, kind: str, name: str) -> GuardFacts:
    look = ClusterLook(scene.api, OWN)
    return await look.facts(held(scene, kind, name), (await look.policy(SPACE))[0], scene.now)


DEADLINES = [
    "9999-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2026-08-10T09:00:00Z", "soon", None,
]  # fmt: skip


@pytest.mark.parametrize("deadline", DEADLINES)
async def test_a_deadline_that_somebody_else_writes_moves_nothing(scene: Scene, deadline: str | None) -> None:
    """Neither does it spare the workload, nor does it end before its time, however often it is written."""
    await scene.policy()
    await scene.deployment(annotations={names.RECLAIM_AT: deadline or ""}, idle_since=IDLE)
    change = {"metadata": {"annotations": {names.RECLAIM_AT: deadline, names.RECLAIM_EPISODE: stamp_of(IDLE)}}}
    for _ in range(28):
        await scene.round()
        assert await scene.replicas() == 1
        await scene.api.patch(DEPLOYMENTS, "llama", change, namespace=SPACE)
    assert len(await scene.events("ReclaimWarned")) == 1
    await scene.rounds(300, every=60)
    assert await scene.replicas() == 0


async def test_memory_of_an_act_that_somebody_else_writes_is_forgotten(scene: Scene) -> None:
    await scene.policy()
    forged = {names.RECLAIM_ACTION: "scale", names.ORIGINAL_REPLICAS: "999999"}
    await scene.deployment(annotations=forged, idle_since=IDLE)
    await scene.rounds(2400)
    assert await scene.replicas() == 0
    assert (await scene.annotations())[names.ORIGINAL_REPLICAS] == "1"
    assert [one.state for one in (await scene.record()).actions] == [ActionState.DONE]


async def served(scene: Scene, name: str, **more: Any) -> None:
    """A pod with KServe's label, as anybody can write it on an idle Deployment of their own."""
    await scene.deployment(name, **more)
    label = {"metadata": {"labels": {owners.KSERVE_LABEL: "llm"}}}
    await scene.api.patch(PODS, f"{name}-1-0", label, namespace=SPACE)


async def test_a_label_stops_no_service_of_another(scene: Scene) -> None:
    await scene.policy()
    await served(scene, "mine", idle_since=IDLE)
    facts = await facts_of(scene, "Deployment", "mine")
    assert isinstance(facts.target, owners.StopTarget)
    assert facts.target.title == "Deployment team-a/mine", "there is no KServe here"
    await scene.rounds(2400)
    assert await scene.replicas("mine") == 0


async def test_an_owner_of_another_namespace_or_a_former_one_is_not_there(scene: Scene) -> None:
    """References name owners of the pod's own namespace, and by uid: a name alone is anybody's."""
    await scene.api.create(NAMESPACES, {"metadata": {"name": "team-b"}})
    await scene.deployment("theirs", space="team-b")
    theirs = await scene.got(REPLICA_SETS, "theirs-1", "team-b")
    await scene.policy(reclaim={"grace": "5m", "barePods": True})
    asked = {names.IDLE_POLICY: "reclaim"}
    await scene.pod("mine", owner=(REPLICA_SETS, theirs), top="ReplicaSet/theirs-1", annotations=asked, idle_since=IDLE)
    await scene.rounds(2 * HOUR)
    assert await scene.replicas("theirs", "team-b") == 1
    assert (await facts_of(scene, "ReplicaSet", "theirs-1")).target == "its owner ReplicaSet theirs-1 is not there"


@pytest.mark.parametrize("change", [{"uid": "of the former one"}, {"pod": "other"}], ids=["uid", "name"])
async def test_a_former_pod_or_one_of_another_node_says_nothing_of_this_one(scene: Scene, change: Object) -> None:
    await scene.policy()
    await scene.deployment(pods=2, idle_since=IDLE)
    device = scene.source.all[0]
    assert device.holder is not None
    device.holder = replace(device.holder, **change)
    await scene.rounds(2 * HOUR)
    assert await scene.replicas() == 1 + 1
    assert "nothing says that its pod llama-1-0 is idle" in obstacle(await facts_of(scene, "Deployment", "llama"))


async def test_a_node_speaks_of_its_own_pods_alone(scene: Scene) -> None:
    """An agent that was taken over says that a workload of another node is idle, whose own agent is not heard."""
    await scene.policy()
    await scene.deployment(idle_since=IDLE)
    scene.source.all[0].node = "taken-over"
    await scene.rounds(2 * HOUR)
    assert await scene.replicas() == 1


async def test_workers_of_a_leader_that_is_idle() -> None:
    """The StatefulSet of a group's workers is controlled by the pod of their leader."""
    api = FakeApi()

    def put(kind: Resource, name: str, owner: Object | None = None, **body: Any) -> Object:
        metadata: Object = {"name": name, "namespace": SPACE, "uid": name}
        if owner is not None:
            metadata["ownerReferences"] = [{**owner, "controller": True}]
        api.put(kind, {"metadata": metadata, **body})
        return {"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": name}

    spec = {"nodeName": "gpu-1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    asked = {names.IDLE_POLICY: "reclaim"}
    leaders = put(STATEFUL_SETS, "lws", put(owners.LEADER_WORKER_SETS, "lws"))
    leader = put(PODS, "lws-0", leaders, spec=spec)
    put(PODS, "lws-0-1", put(STATEFUL_SETS, "lws-0", leader), spec=spec)
    api.put(NAMESPACES, {"metadata": {"name": SPACE, "labels": {names.RECLAIM_LABEL: "enabled"}, "annotations": asked}})
    holder = HolderNow(namespace=SPACE, pod="lws-0", uid="lws-0", owner="StatefulSet/lws")
    devices = SimDevices([SimDevice(node="gpu-1", name="GPU-1", holder=holder, idle_since=IDLE)])
    (workload,) = workloads(devices.devices(RECLAIM_RULES, START)).values()
    facts = await ClusterLook(api, OWN).facts(workload, ReclaimPolicy(name="p"), START)
    assert isinstance(facts.target, owners.StopTarget)
    assert facts.target.title == "LeaderWorkerSet team-a/lws"
    assert facts.unwatched == ("lws-0-1",)


@pytest.mark.parametrize("space", ["kube-system", OWN])
async def test_nothing_of_the_system_is_stopped_by_hand_either(space: str) -> None:
    scene = await Scene().begin("kube-system")
    await scene.deployment(space=space, idle_since=IDLE)
    target, why = await reclaim(
        scene.api, held(scene, "Deployment", "llama", space), now=START, by="root", own_namespace=OWN, evict=evict,
        word=ProcessWord(),
    )  # fmt: skip
    assert why == f"{space} is never touched"
    assert target is not None
    assert await scene.replicas(space=space) == 1


async def test_who_finds_the_record_full_of_deadlines_waits(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "MOST_WARNINGS", 1)
    await scene.policy(reclaim={"grace": "5m"}, budget={"maxSharePercent": 100})
    await scene.deployment("first", idle_since=IDLE)
    await scene.deployment("second", idle_since=IDLE)
    await scene.round()
    assert [one.name for one in (await scene.record()).warnings] == ["first"]
    await scene.rounds(1200, every=60)
    assert [await scene.replicas(name) for name in ("first", "second")] == [0, 0]
