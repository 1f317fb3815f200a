"""A LeaderWorkerSet is one workload: leaders and workers of all groups are judged, told, stopped and resumed together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.formats import names
from kgpu.formats.usage_reclaim import decode
from kgpu.kube.kinds import STATEFUL_SETS
from kgpu.kube.owners import gang_of, owner_of
from kgpu.kube.port import PODS, Object
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.usage.reclaim.model import RECLAIM_RULES, WorkloadRef, workloads
from kgpu.usage.reclaim.owners import LEADER_WORKER_SETS
from kgpu.usage.reclaim.reading import ClusterLook
from kgpu.usage.reclaim.requests import named, resume
from tests.usage.reclaim.scene import ADMIN, HOUR, OWN, SPACE, START, Scene, core_with_kinds

IDLE = START - 5 * HOUR
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CRD: Object = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "leaderworkersets.leaderworkerset.x-k8s.io"},
    "spec": {
        "group": "leaderworkerset.x-k8s.io", "scope": "Namespaced",
        "names": {"plural": "leaderworkersets", "singular": "leaderworkerset", "kind": "LeaderWorkerSet",
                  "listKind": "LeaderWorkerSetList"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": OPEN, "status": OPEN}}},
            "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
        }],
    },
}  # fmt: skip


async def scene_with(annotations: dict[str, str] | None = None, groups: int = 2) -> Scene:
    """Each group has a leader and a worker on another node, each with a GPU."""
    scene = await Scene(LocalApi(core_with_kinds(CRD), ADMIN, manager="test")).begin()
    await scene.policy(reclaim={"after": "1h", "grace": "5m"}, budget={"maxSharePercent": 100})
    top = await scene.create(LEADER_WORKER_SETS, SPACE, "llm", annotations=annotations, spec={"replicas": groups})
    spec = {"replicas": groups, "selector": {"matchLabels": {"a": "b"}}, "serviceName": "llm",
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}  # fmt: skip
    leaders = await scene.create(STATEFUL_SETS, SPACE, "llm", owner=(LEADER_WORKER_SETS, top), spec=spec)
    for number in range(groups):
        labels = {names.LWS_NAME: "llm", names.LWS_GROUP_INDEX: str(number)}
        leader = await scene.pod(
            f"llm-{number}", owner=(STATEFUL_SETS, leaders), labels=labels, node=f"gpu-{number}", idle_since=IDLE
        )
        workers = await scene.create(STATEFUL_SETS, SPACE, f"llm-{number}", owner=(PODS, leader), spec=spec)
        await scene.pod(
            f"llm-{number}-1", owner=(STATEFUL_SETS, workers), labels=labels, node=f"gpu-w{number}", idle_since=IDLE
        )
    for one in scene.source.all:  # as agents say it
        assert one.holder is not None
        pod = await scene.got(PODS, one.holder.pod, SPACE)
        one.holder = replace(one.holder, owner=owner_of(pod))
    return scene


async def replicas(scene: Scene) -> int:
    return int((await scene.got(LEADER_WORKER_SETS, "llm", SPACE))["spec"]["replicas"])


async def test_all_its_pods_are_one_workload_and_each_group_a_gang() -> None:
    scene = await scene_with()
    (ref,) = found = workloads(scene.source.devices(RECLAIM_RULES, START))
    assert ref == WorkloadRef(SPACE, "LeaderWorkerSet", "llm")
    assert found[ref].gpus == 4
    gangs = {str(gang_of(await scene.got(PODS, name, SPACE))) for name in found[ref].pods}
    assert gangs == {"LeaderWorkerSet/llm/0", "LeaderWorkerSet/llm/1"}


async def test_it_is_only_told_about_unless_somebody_has_asked_for_more() -> None:
    scene = await scene_with()
    await scene.rounds(HOUR)
    assert await replicas(scene) == 2
    (said,) = decode(scene.controller.page().body.decode(), place="p").workloads
    assert (said.kind, said.name) == ("LeaderWorkerSet", "llm")
    assert "it is a LeaderWorkerSet: its work may be lost" in said.why
    facts = await ClusterLook(scene.api, OWN).facts(
        workloads(scene.source.devices(RECLAIM_RULES, scene.now))[WorkloadRef(SPACE, "LeaderWorkerSet", "llm")],
        (await ClusterLook(scene.api, OWN).policy(SPACE))[0], scene.now,
    )  # fmt: skip
    assert facts.unwatched == ()
    assert len(facts.pods) == 4


ASKED = {names.IDLE_POLICY: "reclaim"}


async def test_the_whole_set_is_scaled_and_brought_back_as_it_was() -> None:
    scene = await scene_with(ASKED)
    await scene.rounds(HOUR)
    assert await replicas(scene) == 0
    (action,) = (await scene.record()).actions
    assert (action.kind, action.gpus, action.target.plural) == ("LeaderWorkerSet", 4.0, "leaderworkersets")
    assert await resume(scene.api, SPACE, "llm") == "LeaderWorkerSet team-a/llm"
    assert await replicas(scene) == 2


@pytest.mark.parametrize("at", range(4))
async def test_one_that_works_keeps_all(at: int) -> None:
    scene = await scene_with(ASKED)
    scene.source.all[at].idle_since = None
    await scene.rounds(HOUR)
    assert await replicas(scene) == 2


@pytest.mark.parametrize("at", range(4))
async def test_one_of_which_nothing_is_known_keeps_all(at: int) -> None:
    scene = await scene_with(ASKED)
    del scene.source.all[at]
    await scene.rounds(HOUR)
    assert await replicas(scene) == 2


@pytest.mark.parametrize("name", ["llm", "llm-0", "llm-1-1"])
async def test_it_is_found_by_every_name_of_its_own(name: str) -> None:
    scene = await scene_with()
    resource, obj = await named(ClusterLook(scene.api, OWN), SPACE, name)
    assert (resource.kind, obj["metadata"]["name"]) == ("LeaderWorkerSet", "llm")
