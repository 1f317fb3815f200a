"""One row for each kind of owner: what is changed, what is remembered, and what brings it back."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.kube.port import Object
from kgpu.usage.reclaim.owners import OwnersFound, StopTarget, StopWay, stop_target


def obj(
    kind: str, *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: Any
) -> Object:
    metadata = {"name": "x", "namespace": "a", "labels": labels or {}, "annotations": annotations or {}}
    return {"kind": kind, "metadata": metadata, "spec": spec}


POD = obj("Pod")
SERVED = obj("Pod", labels={"serving.kserve.io/inferenceservice": "llm"})
REVISION = "Revision llm-predictor-00001"
LLM: Object = {
    "kind": "InferenceService",
    "metadata": {"name": "llm", "namespace": "a"},
    "spec": {"predictor": {"minReplicas": 2}},
}
SINGLE_USER = obj("Pod", labels={"component": "singleuser-server", "hub.jupyter.org/username": "u"})
QUEUED = {"kueue.x-k8s.io/queue-name": "q"}
STOPPED = "kubeflow-resource-stopped"
ROWS: tuple[tuple[str, OwnersFound, str, str, Object, Object | None], ...] = (
    ("Deployment", OwnersFound(pod=POD, chain=(obj("ReplicaSet"), obj("Deployment", replicas=3))), "scale", "3",
     {"spec": {"replicas": 0}}, {"spec": {"replicas": 3}}),
    ("replicas not given", OwnersFound(pod=POD, chain=(obj("Deployment"),)), "scale", "1",
     {"spec": {"replicas": 0}}, {"spec": {"replicas": 1}}),
    ("ReplicaSet", OwnersFound(pod=POD, chain=(obj("ReplicaSet", replicas=2),)), "scale", "2",
     {"spec": {"replicas": 0}}, {"spec": {"replicas": 2}}),
    ("StatefulSet", OwnersFound(pod=POD, chain=(obj("StatefulSet", replicas=4),)), "scale", "4",
     {"spec": {"replicas": 0}}, {"spec": {"replicas": 4}}),
    ("LeaderWorkerSet", OwnersFound(pod=POD, chain=(obj("StatefulSet", replicas=4), obj("LeaderWorkerSet", replicas=2))),
     "scale", "2", {"spec": {"replicas": 0}}, {"spec": {"replicas": 2}}),
    ("KServe", OwnersFound(pod=SERVED, unknown=REVISION, service=obj("InferenceService", predictor={"minReplicas": 2})),
     "predictor", "2", {"spec": {"predictor": {"minReplicas": 0}}}, {"spec": {"predictor": {"minReplicas": 2}}}),
    ("Notebook", OwnersFound(pod=POD, chain=(obj("StatefulSet", replicas=1), obj("Notebook"))), "notebook", "running",
     {"metadata": {"annotations": {STOPPED: "1970-01-01T00:00:00Z"}}}, {"metadata": {"annotations": {STOPPED: None}}}),
    ("Kueue", OwnersFound(pod=POD, chain=(obj("Job", labels=QUEUED),), admission=obj("Workload", active=True)),
     "workload", "active", {"spec": {"active": False}}, {"spec": {"active": True}}),
    ("Job", OwnersFound(pod=POD, chain=(obj("Job"),)), "suspend", "running", {"spec": {"suspend": True}},
     {"spec": {"suspend": False}}),
    ("Deployment with KServe's label", OwnersFound(pod=SERVED, chain=(obj("Deployment", replicas=3),), service=LLM), "scale", "3",
     {"spec": {"replicas": 0}}, {"spec": {"replicas": 3}}),
    ("Deployment with JupyterHub's labels", OwnersFound(pod=SINGLE_USER, chain=(obj("Deployment", replicas=3),)), "scale", "3",
     {"spec": {"replicas": 0}}, {"spec": {"replicas": 3}}),
    ("bare pod", OwnersFound(pod=POD), "evict", "", {}, None),
)  # fmt: skip


@pytest.mark.parametrize(
    ("found", "way", "remembered", "stop", "resume"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_how_each_is_stopped_and_brought_back(
    found: OwnersFound, way: str, remembered: str, stop: Object, resume: Object | None
) -> None:
    target = stop_target(found)
    assert isinstance(target, StopTarget)
    assert (target.way, target.remembered, target.stopped) == (StopWay(way), remembered, False)
    assert target.stop(0.0) == stop
    assert target.resume(remembered) == resume
    assert target.subresource == ("scale" if way == "scale" else "")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (OwnersFound(pod=SINGLE_USER), "JupyterHub"),
        (OwnersFound(pod=SERVED, unknown=REVISION), "its InferenceService llm is not there"),
        (OwnersFound(pod=SERVED, unknown=REVISION, service=obj(
            "InferenceService", annotations={"serving.kserve.io/deploymentMode": "RawDeployment"})), "nothing would wake it up"),
        (OwnersFound(pod=SERVED, chain=(obj("Deployment"), LLM), service=LLM), "as a Deployment: nothing would wake it up"),
        (OwnersFound(pod=SERVED, unknown="Revision other-predictor-1", service=LLM), "way to stop a Revision other-predictor-1"),
        (OwnersFound(pod=POD, chain=(obj("Job", labels=QUEUED),)), "Kueue Workload is not there"),
        (OwnersFound(pod=POD, chain=(obj("Deployment", replicas=1),), unknown="LlamaStack l"), "way to stop a LlamaStack l"),
        (OwnersFound(pod=POD, chain=(obj("PyTorchJob"),)), "way to stop a PyTorchJob"),
        (OwnersFound(pod=POD, missing="ReplicaSet r"), "its owner ReplicaSet r is not there"),
    ],
)  # fmt: skip
def test_what_can_t_be_stopped_says_why(found: OwnersFound, why: str) -> None:
    target = stop_target(found)
    assert isinstance(target, str)
    assert why in target


@pytest.mark.parametrize("old", ["0", "-1", "", "nan", "1e3", "٣", "99999999"])
def test_nothing_is_raised_to_what_is_no_number_of_replicas(old: str) -> None:
    target = stop_target(OwnersFound(pod=POD, chain=(obj("Deployment", replicas=0),)))
    assert isinstance(target, StopTarget)
    assert target.stopped
    assert target.resume(old) is None
