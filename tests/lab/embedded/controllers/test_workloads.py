"""Deployments, ReplicaSets and Jobs from end to end: all controllers on the fake API."""

from __future__ import annotations

import asyncio

from kgpu.kube.port import PODS, Object, annotations_of, name_of
from kgpu.lab.embedded.controllers.kinds import DEPLOYMENTS, JOBS, NAMESPACES, REPLICA_SETS, SERVICE_ACCOUNTS
from kgpu.lab.embedded.controllers.meta import condition

from .conftest import World, ended, template, until, workload


def done(world: World, name: str = "web") -> Object | None:
    found = world.get(DEPLOYMENTS, name)
    progress = condition(found, "Progressing") if found else None
    complete = progress and progress["reason"] == "NewReplicaSetAvailable"
    return found if complete and found["status"].get("observedGeneration") == found["metadata"]["generation"] else None


def of_workloads(world: World) -> list[tuple[str, str, str]]:
    return [event for event in world.events() if event[0] != "n1"]


async def test_a_deployment_comes_up_as_the_real_one_says_it(world: World):
    await world.api.create(DEPLOYMENTS, workload(replicas=2, progressDeadlineSeconds=600))
    deployment = await until(lambda: done(world), "the rollout")
    rs = world.all(REPLICA_SETS)[0]
    pods = sorted(name_of(pod) for pod in world.all(PODS))
    assert deployment["status"] | {"conditions": []} == {
        "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "terminatingReplicas": 0, "conditions": [],
    }  # fmt: skip
    assert [
        (one["type"], one["status"], one["reason"], one["message"]) for one in deployment["status"]["conditions"]
    ] == [
        ("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
        ("Progressing", "True", "NewReplicaSetAvailable", f'ReplicaSet "{name_of(rs)}" has successfully progressed.'),
    ]
    assert annotations_of(deployment)["deployment.kubernetes.io/revision"] == "1"
    assert annotations_of(rs) == {
        "deployment.kubernetes.io/revision": "1",
        "deployment.kubernetes.io/desired-replicas": "2",
        "deployment.kubernetes.io/max-replicas": "3",
    }
    suffix = name_of(rs).removeprefix("web-")
    assert rs["spec"]["selector"]["matchLabels"] == {"app": "web", "pod-template-hash": suffix}
    await until(lambda: len(of_workloads(world)) >= 3, "the events")
    assert sorted(of_workloads(world)) == sorted(
        [
            ("web", "ScalingReplicaSet", f"Scaled up replica set {name_of(rs)} from 0 to 2"),
            *((name_of(rs), "SuccessfulCreate", f"Created pod: {pod}") for pod in pods),
        ]
    )


async def test_rolling_update_undo_and_history(world: World):
    await world.api.create(DEPLOYMENTS, workload(replicas=3, revisionHistoryLimit=1))
    await until(lambda: len([p for p in world.all(PODS) if p.get("status", {}).get("phase") == "Running"]) == 3)
    for image in ("two", "three"):
        spec = template()["spec"] | {"containers": [{"name": "c", "image": image}]}
        await world.api.patch(DEPLOYMENTS, "web", {"spec": {"template": {"spec": spec}}}, namespace="default")
        await until(
            lambda image=image: {p["spec"]["containers"][0]["image"] for p in world.all(PODS)} == {image}, image
        )
    await until(lambda: len(world.all(REPLICA_SETS)) == 2, "the oldest set to go")
    # An undo writes the old template back; its set is taken again under a new revision.
    spec = template()["spec"] | {"containers": [{"name": "c", "image": "two"}]}
    await world.api.patch(DEPLOYMENTS, "web", {"spec": {"template": {"spec": spec}}}, namespace="default")
    await until(lambda: {p["spec"]["containers"][0]["image"] for p in world.all(PODS)} == {"two"})
    again = next(
        rs for rs in world.all(REPLICA_SETS) if rs["spec"]["template"]["spec"]["containers"][0]["image"] == "two"
    )
    assert annotations_of(again)["deployment.kubernetes.io/revision"] == "4"
    assert annotations_of(again)["deployment.kubernetes.io/revision-history"] == "2"


async def test_recreate_waits_for_the_old_pods(world: World):
    await world.api.create(DEPLOYMENTS, workload(replicas=2, strategy={"type": "Recreate"}))
    await until(lambda: len(world.all(PODS)) == 2)
    seen: set[frozenset[str]] = set()

    async def watch() -> None:
        while True:
            seen.add(frozenset(p["spec"]["containers"][0]["image"] for p in world.all(PODS)))
            await asyncio.sleep(0)

    task = asyncio.create_task(watch())
    spec = {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}
    await world.api.patch(DEPLOYMENTS, "web", {"spec": spec}, namespace="default")
    await until(lambda: [p["spec"]["containers"][0]["image"] for p in world.all(PODS)] == ["two", "two"])
    task.cancel()
    assert frozenset({"one", "two"}) not in seen


async def test_scaling_down_deletes_and_says_so(world: World):
    await world.api.create(DEPLOYMENTS, workload(replicas=3))
    await until(lambda: len(world.all(PODS)) == 3)
    await world.api.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, namespace="default")
    await until(lambda: len(world.all(PODS)) == 1)
    await until(lambda: len(world.events("SuccessfulDelete")) == 2)
    await until(lambda: any("from 3 to 1" in message for _, _, message in world.events("ScalingReplicaSet")))


async def test_refused_pods_are_told_on_the_replica_set_and_the_deployment(world: World):
    world.api.refuse["create", "pods"] = 403
    await world.api.create(DEPLOYMENTS, workload(replicas=4))
    failed = await until(lambda: condition(world.get(DEPLOYMENTS, "web") or {"metadata": {}}, "ReplicaFailure"))
    assert (failed["status"], failed["reason"]) == ("True", "FailedCreate")
    assert "refused by the test" in failed["message"]
    events = await until(lambda: world.events("FailedCreate"))
    assert events[0][2].startswith("Error creating: ")
    del world.api.refuse["create", "pods"]
    await until(lambda: len(world.all(PODS)) == 4)
    await until(lambda: condition(world.get(DEPLOYMENTS, "web"), "ReplicaFailure") is None)


async def test_a_pod_without_owner_is_adopted_and_one_that_no_longer_matches_is_released(world: World):
    pod = {"metadata": {"name": "mine", "namespace": "default", "labels": {"app": "web"}}, "spec": {}}
    await world.api.create(PODS, pod)
    await world.api.create(REPLICA_SETS, workload(replicas=1))
    await until(lambda: (world.get(PODS, "mine") or {}).get("metadata", {}).get("ownerReferences"))
    assert len(world.all(PODS)) == 1
    await world.api.patch(PODS, "mine", {"metadata": {"labels": {"app": "debug"}}}, namespace="default")
    await until(lambda: not world.get(PODS, "mine")["metadata"].get("ownerReferences") and len(world.all(PODS)) == 2)


async def test_an_indexed_job_runs_each_index_once(world: World):
    world.behave = ended("Succeeded")
    job = workload("idx", completions=5, parallelism=2, completionMode="Indexed", backoffLimit=6)
    await world.api.create(JOBS, job)
    found = await until(lambda: (j := world.get(JOBS, "idx")) and condition(j, "Complete") and j)
    status = found["status"]
    assert {key: status.get(key) for key in ("succeeded", "completedIndexes", "ready", "terminating", "failed", "active")} == {
        "succeeded": 5, "completedIndexes": "0-4", "ready": 0, "terminating": 0, "failed": None, "active": None,
    }  # fmt: skip
    assert status["uncountedTerminatedPods"] == {}
    assert [one["type"] for one in status["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert {one["reason"] for one in status["conditions"]} == {"CompletionsReached"}
    pods = world.all(PODS)
    assert sorted(annotations_of(pod)["batch.kubernetes.io/job-completion-index"] for pod in pods) == list("01234")
    assert not any(pod["metadata"].get("finalizers") for pod in pods)
    assert pods[0]["spec"]["containers"][0]["env"][-1]["name"] == "JOB_COMPLETION_INDEX"
    await until(lambda: world.events("Completed") == [("idx", "Completed", "Job completed")])


async def test_a_job_that_fails_too_often_fails(world: World):
    world.behave = ended("Failed", 3)
    await world.api.create(JOBS, workload("bad", completions=1, parallelism=1, backoffLimit=0))
    found = await until(lambda: (j := world.get(JOBS, "bad")) and condition(j, "Failed") and j)
    assert [one["type"] for one in found["status"]["conditions"]] == ["FailureTarget", "Failed"]
    assert found["status"]["failed"] == 1
    message = "Job has reached the specified backoff limit"
    await until(lambda: ("bad", "BackoffLimitExceeded", message) in world.events())


async def test_a_failure_policy_ends_the_job_at_once(world: World):
    world.behave = ended("Failed", 42)
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
    policy = {"rules": rules}
    await world.api.create(JOBS, workload("picky", completions=1, backoffLimit=6, podFailurePolicy=policy))
    found = await until(lambda: (j := world.get(JOBS, "picky")) and condition(j, "Failed") and j)
    failed = condition(found, "Failed")
    assert failed["reason"] == "PodFailurePolicy"
    assert failed["message"].endswith("failed with exit code 42 matching FailJob rule at index 0")


async def test_a_suspended_job_has_no_pods_until_it_is_resumed(world: World):
    job = workload("later", completions=1, parallelism=1, backoffLimit=6, suspend=True)
    await world.api.create(JOBS, job)
    found = await until(lambda: (j := world.get(JOBS, "later")) and condition(j, "Suspended") and j)
    assert condition(found, "Suspended")["reason"] == "JobSuspended"
    assert world.all(PODS) == []
    world.behave = ended("Succeeded")
    await world.api.patch(JOBS, "later", {"spec": {"suspend": False}}, namespace="default")
    await until(lambda: condition(world.get(JOBS, "later"), "Complete"))
    reasons = {reason for _, reason, _ in await until(lambda: len(of_workloads(world)) >= 4 and world.events())}
    assert {"Suspended", "Resumed", "Completed"} <= reasons


async def test_a_namespace_gets_its_account_and_is_emptied_before_it_goes(world: World):
    space = {"metadata": {"name": "team", "finalizers": ["test/hold"]}, "spec": {"finalizers": ["kubernetes"]},
             "status": {"phase": "Active"}}  # fmt: skip
    await world.api.create(NAMESPACES, space)
    await until(lambda: world.get(SERVICE_ACCOUNTS, "default", "team"))
    job = workload("idx", completions=1, parallelism=1, backoffLimit=6)
    job["metadata"]["namespace"] = "team"
    await world.api.create(JOBS, job)
    await until(lambda: len(world.all(PODS, "team")) == 1)
    await world.api.delete(NAMESPACES, "team")
    await until(lambda: not world.get(NAMESPACES, "team")["spec"].get("finalizers"), "the namespace to be finalized")
    assert world.all(PODS, "team") == []
    assert world.all(JOBS, "team") == []
    assert world.all(SERVICE_ACCOUNTS, "team") == []
    found = {one["type"]: one["status"] for one in world.get(NAMESPACES, "team")["status"]["conditions"]}
    assert set(found.values()) == {"False"}
    assert len(found) == 5


async def test_a_job_adopts_a_pod_of_its_own_that_lost_its_owner(world: World):
    job = {"metadata": {"name": "j", "namespace": "default"}, "spec": {
        "parallelism": 1, "completions": 1, "backoffLimit": 6, "selector": {"matchLabels": {"app": "web"}},
        "template": template(),
    }}  # fmt: skip
    await world.api.create(JOBS, job)
    [pod] = await until(lambda: [one for one in world.all(PODS) if one.get("status")], "its pod")
    await world.api.patch(PODS, name_of(pod), {"metadata": {"ownerReferences": None}}, namespace="default")

    def adopted() -> bool:
        metadata = (world.get(PODS, name_of(pod)) or {"metadata": {}})["metadata"]
        owners = [one["kind"] for one in metadata.get("ownerReferences") or ()]
        return owners == ["Job"] and "batch.kubernetes.io/job-tracking" in (metadata.get("finalizers") or ())

    await until(adopted, "the adoption")
