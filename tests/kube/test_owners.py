"""Which pods work together, by whose word: a row for each way in which pods say so."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.kube.owners import PodGang, gang_of, owner_of

QUEUED = {"kueue.x-k8s.io/pod-group-name": "g"}


def pod(owner: str = "", *, labels: Any = None, annotations: Any = None, **spec: Any) -> dict[str, Any]:
    kind, _, name = owner.partition("/")
    owners = [{"kind": kind, "name": name, "controller": True}] if owner else []
    metadata = {"name": "p", "labels": labels, "annotations": annotations, "ownerReferences": owners}
    return {"kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("found", "gang"),
    [
        (pod(schedulingGroup={"podGroupName": "g"}), PodGang("PodGroup", "g", "scheduling.k8s.io", scheduled=True)),
        (pod(workloadRef={"name": "w", "podGroup": "workers"}),
         PodGang("Workload", "w/workers", "scheduling.k8s.io", scheduled=True)),
        (pod(workloadRef={"name": "w", "podGroup": "workers", "podGroupReplicaKey": "1"}),
         PodGang("Workload", "w/workers/1", "scheduling.k8s.io", scheduled=True)),
        (pod(annotations={"scheduling.k8s.io/group-name": "g"}),
         PodGang("PodGroup", "g", "scheduling.volcano.sh", scheduled=True)),
        (pod(annotations={"scheduling.volcano.sh/group-name": "g"}),
         PodGang("PodGroup", "g", "scheduling.volcano.sh", scheduled=True)),
        (pod(annotations={"pod-group-name": "g"}), PodGang("PodGroup", "g", "scheduling.run.ai", scheduled=True)),
        (pod(labels={"scheduling.x-k8s.io/pod-group": "g"}),
         PodGang("PodGroup", "g", "scheduling.x-k8s.io", scheduled=True)),
        (pod(labels={"pod-group.scheduling.sigs.k8s.io": "g"}),
         PodGang("PodGroup", "g", "scheduling.x-k8s.io", scheduled=True)),
        (pod(labels=QUEUED, annotations={"kueue.x-k8s.io/pod-group-total-count": "4"}),
         PodGang("PodGroup", "g", pods=4)),
        (pod(labels=QUEUED, annotations={"kueue.x-k8s.io/pod-group-total-count": "-4"}), PodGang("PodGroup", "g")),
        (pod("StatefulSet/llm-0", labels={
            "leaderworkerset.sigs.k8s.io/name": "llm", "leaderworkerset.sigs.k8s.io/group-index": "0"}),
         PodGang("LeaderWorkerSet", "llm/0")),
        (pod("Job/js-workers-0", labels={"jobset.sigs.k8s.io/jobset-name": "js"}), PodGang("JobSet", "js")),
        (pod("PyTorchJob/train"), PodGang("PyTorchJob", "train")),
        (pod("Job/train", annotations={"batch.kubernetes.io/job-completion-index": "3"}), PodGang("Job", "train")),
        (pod("Job/queue-of-work"), None),
        (pod("ReplicaSet/serve"), None),
        (pod(), None),
        # Who schedules it says more than who made it.
        (pod("PyTorchJob/train", annotations={"scheduling.k8s.io/group-name": "g"}),
         PodGang("PodGroup", "g", "scheduling.volcano.sh", scheduled=True)),
        # Nonsense is no gang, and no error.
        ({"metadata": {"labels": [1], "annotations": "x", "ownerReferences": [None, {"kind": 3}]}, "spec": 5}, None),
        (pod(schedulingGroup=["g"], workloadRef={"name": ""}), None),
    ],
)  # fmt: skip
def test_with_whom_a_pod_works(found: Any, gang: PodGang | None) -> None:
    assert gang_of(found) == gang


def test_a_gang_as_text() -> None:
    assert str(gang_of(pod("PyTorchJob/train"))) == "PyTorchJob/train"


def test_the_owner_of_a_deployments_pod_is_the_deployment() -> None:
    assert owner_of(pod("ReplicaSet/serve-6f9", labels={"pod-template-hash": "6f9"})) == "Deployment/serve"
    assert owner_of(pod("ReplicaSet/serve-6f9")) == "ReplicaSet/serve-6f9"
    assert owner_of(pod()) == ""


def of_set(owner: str, *, name: str = "llm", index: str = "0", leader: str = "", pod_hash: str = "") -> Any:
    labels = {"leaderworkerset.sigs.k8s.io/name": name, "leaderworkerset.sigs.k8s.io/group-index": index}
    notes = {"leaderworkerset.sigs.k8s.io/leader-name": leader} if leader else {}
    return pod(owner, labels={**labels, **({"pod-template-hash": pod_hash} if pod_hash else {})}, annotations=notes)


@pytest.mark.parametrize(
    ("found", "owner"),
    [
        (of_set("StatefulSet/llm", index="1"), "LeaderWorkerSet/llm"),
        (of_set("StatefulSet/llm-1", index="1"), "LeaderWorkerSet/llm"),
        (of_set("ReplicaSet/llm-5f6", index="0a1b", pod_hash="5f6"), "LeaderWorkerSet/llm"),
        (of_set("StatefulSet/llm-0a1b2c3d", index="0a1b2c3d4e", leader="llm-0a1b2c3d"), "LeaderWorkerSet/llm"),
        # The labels are anybody's: who is not called as the set's own are is not of it.
        (of_set("StatefulSet/other", index="1"), "StatefulSet/other"),
        (of_set("StatefulSet/llm-2", index="1"), "StatefulSet/llm-2"),
        (of_set("StatefulSet/web-0", leader="web-0"), "StatefulSet/web-0"),
        (of_set("StatefulSet/llm-", index=""), "StatefulSet/llm-"),
        (of_set("Deployment/llm-0"), "Deployment/llm-0"),
        (of_set("Job/llm"), "Job/llm"),
        (of_set("StatefulSet/llm", name=""), "StatefulSet/llm"),
        (of_set(""), ""),
    ],
)
def test_leaders_and_workers_are_of_their_set(found: Any, owner: str) -> None:
    assert owner_of(found) == owner
