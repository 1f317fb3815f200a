"""Groups of pods as users have them: which start as one, with how many, what is in the way, and what would help."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.placement import render
from kgpu.placement.answer import answer
from kgpu.placement.model import GangOutcome, WhatIfAnswer
from kgpu.placement.question import WhatIfQuestion
from tests.placement.clusters import GPU, Object, by_name, node, pod

K8S, VOLCANO, KAI = "scheduling.k8s.io", "scheduling.volcano.sh", "scheduling.run.ai"
COSCHEDULING = "scheduling.x-k8s.io"
TYPE = {"node.kubernetes.io/instance-type": "p5.48xlarge"}


def ask(*objects: Object, **question: object) -> WhatIfAnswer:
    return answer(WhatIfQuestion(**question), objects)  # type: ignore[arg-type]


def group(api: str, spec: Object, *, kind: str = "PodGroup", name: str = "g") -> Object:
    return {"apiVersion": f"{api}/v1", "kind": kind, "metadata": {"name": name, "namespace": "ml"}, "spec": spec}


def member(at: int, how: Object, on: str = "", gpus: int = 8) -> Object:
    found = pod(f"m{at}", gpus, on, owner="", **how.get("spec", {}))
    found["metadata"]["labels"] |= how.get("labels", {})
    found["metadata"]["annotations"] |= how.get("annotations", {})
    return found


def only(found: WhatIfAnswer) -> GangOutcome:
    (gang,) = found.gangs
    return gang


WAYS: list[tuple[str, Object, Object]] = [
    ("Kubernetes 1.36", {"spec": {"schedulingGroup": {"podGroupName": "g"}}},
     group(K8S, {"schedulingPolicy": {"gang": {"minCount": 3}}})),
    ("Kubernetes 1.35", {"spec": {"workloadRef": {"name": "g", "podGroup": "workers"}}},
     group(K8S, {"podGroups": [{"name": "workers", "policy": {"gang": {"minCount": 3}}}]}, kind="Workload")),
    ("Volcano", {"annotations": {"scheduling.k8s.io/group-name": "g"}}, group(VOLCANO, {"minMember": 3})),
    ("KAI", {"annotations": {"pod-group-name": "g"}}, group(KAI, {"minMember": 3})),
    ("coscheduling", {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, group(COSCHEDULING, {"minMember": 3})),
]  # fmt: skip


@pytest.mark.parametrize(("how", "obj"), [row[1:] for row in WAYS], ids=[row[0] for row in WAYS])
def test_a_group_starts_with_as_many_as_its_object_says_or_with_none(how: Object, obj: Object) -> None:
    pods = [member(at, how) for at in range(4)]
    found = ask(node("a"), node("b"), obj, *pods)
    assert set(by_name(found.outcomes).values()) == {""}
    gang = only(found)
    assert (gang.starts, gang.room_for, gang.pods, gang.least) == (False, 2, 4, 3)
    assert found.after[0].free == found.before[0].free
    more = ask(node("a"), node("b"), node("c"), obj, *pods)
    assert sorted(by_name(more.outcomes).values()) == ["", "a", "b", "c"]
    assert only(more).starts
    assert not only(more).fits_whole
    assert not more.holds


@pytest.mark.parametrize(
    ("how", "obj"),
    [
        ({"spec": {"schedulingGroup": {"podGroupName": "g"}}}, group(K8S, {"schedulingPolicy": {"basic": {}}})),
        ({"spec": {"workloadRef": {"name": "g", "podGroup": "workers"}}},
         group(K8S, {"podGroups": [{"name": "workers", "policy": {"basic": {}}}]}, kind="Workload")),
    ],
)  # fmt: skip
def test_the_policy_basic_makes_no_gang(how: Object, obj: Object) -> None:
    found = ask(node("a"), obj, *(member(at, how) for at in range(2)))
    assert sorted(by_name(found.outcomes).values()) == ["", "a"]
    assert not found.gangs


def test_replicas_of_a_workloads_group_start_by_themselves() -> None:
    def replica(at: int, key: str) -> Object:
        return member(at, {"spec": {"workloadRef": {"name": "g", "podGroup": "w", "podGroupReplicaKey": key}}})

    obj = group(K8S, {"podGroups": [{"name": "w", "policy": {"gang": {"minCount": 2}}}]}, kind="Workload")
    found = ask(node("a"), node("b"), node("c"), obj, *(replica(at, str(at // 2)) for at in range(4)))
    assert {gang.name: gang.starts for gang in found.gangs} == {"ml/Workload/g/w/0": True, "ml/Workload/g/w/1": False}


LABEL: Object = {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}
PAIR = group(COSCHEDULING, {"minMember": 2})


def test_a_group_whose_object_is_not_seen_is_taken_whole_and_that_is_told() -> None:
    found = ask(node("a"), *(member(at, LABEL) for at in range(2)))
    assert only(found).least == 2
    assert not only(found).starts
    assert "PodGroup ml/g (scheduling.x-k8s.io) was not seen" in found.notes[0]
    other = {**PAIR, "apiVersion": f"{VOLCANO}/v1beta1"}
    assert ask(node("a"), other, *(member(at, LABEL) for at in range(2))).notes == found.notes


def test_pods_that_run_count_and_one_that_is_drained_needs_the_rest_no_more() -> None:
    trio = group(COSCHEDULING, {"minMember": 3})
    cluster = [node("a"), node("b"), node("c"), trio, *(member(at, LABEL, name) for at, name in enumerate("ab"))]
    started = ask(*cluster, member(2, LABEL))
    assert by_name(started.outcomes) == {"m2": "c"}
    assert (only(started).running, only(started).starts) == (2, True)
    full = ask(*cluster, pod("x", 8, "c"), member(2, LABEL))
    assert (only(full).running, only(full).starts, only(full).room_for) == (2, False, 0)
    # Where enough run, each further one is placed by itself.
    extra = ask(*cluster[:3], PAIR, *cluster[4:], member(2, LABEL), member(3, LABEL))
    assert sorted(by_name(extra.outcomes).values()) == ["", "c"]


def test_fewer_pods_than_it_needs_wait_for_the_others() -> None:
    found = ask(node("a"), node("b"), PAIR, member(0, LABEL))
    assert by_name(found.outcomes) == {"m0": ""}
    assert "needs 2 more pods to start, and 1 are there" in only(found).blocked_by


def test_what_would_help_is_tried() -> None:
    cluster = [node("a", labels=TYPE), node("b", labels=TYPE), node("small", 2)]
    found = ask(*cluster, group(COSCHEDULING, {"minMember": 5}), *(member(at, LABEL) for at in range(5)))
    assert only(found).makes_room == ("3 more nodes like a (p5.48xlarge)",)
    assert "this would help: 3 more nodes like a (p5.48xlarge)" in render.as_text(found)
    again = ask(
        *cluster, group(COSCHEDULING, {"minMember": 5}), *(member(at, LABEL) for at in range(5)), add_nodes=("a=3",)
    )
    assert only(again).fits_whole
    fewer = ask(
        *cluster, group(COSCHEDULING, {"minMember": 5}), *(member(at, LABEL) for at in range(5)), add_nodes=("a=2",)
    )
    assert not only(fewer).starts


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"kubernetes.io/hostname": "a"}},
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {}, "topologyKey": "nvidia.com/gpu.clique"}]}}},
    ],
)  # fmt: skip
def test_no_node_is_named_that_would_not_help(spec: Object) -> None:
    how = {**LABEL, "spec": spec}
    found = ask(node("a", labels={"nvidia.com/gpu.clique": "x"}), PAIR, *(member(at, how) for at in range(2)))
    assert not only(found).starts
    assert only(found).makes_room == ()


def test_a_gang_whose_pods_want_to_be_together_starts_in_any_order() -> None:
    beside = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "m1"}}, "topologyKey": "kubernetes.io/hostname"}]}}  # fmt: skip
    first = member(0, {**LABEL, "spec": {"affinity": beside}}, gpus=2)
    found = ask(node("a"), node("b"), PAIR, first, member(1, LABEL, gpus=2))
    assert by_name(found.outcomes) == {"m0": "a", "m1": "a"}


def template(gpus: int = 8) -> Object:
    return {"spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: gpus}}}]}}


def workload(kind: str, **spec: Any) -> Object:
    return {"kind": kind, "metadata": {"name": "w", "namespace": "ml"}, "spec": spec}


TWO = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template()}
INDEXED = {"parallelism": 3, "completions": 3, "completionMode": "Indexed", "template": template()}
WORKLOADS = {
    "Indexed Job": (workload("Job", **INDEXED), "ml/Job/w", ["w-0", "w-1", "w-2"]),
    "CronJob": (
        workload("CronJob", schedule="@daily", jobTemplate={"spec": INDEXED}), "ml/Job/w-0", ["w-0-0", "w-0-1", "w-0-2"],
    ),
    "JobSet": (
        workload("JobSet", replicatedJobs=[
            {"name": "driver", "template": {"spec": {"template": template()}}},
            {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 1, "template": template()}}},
        ]), "ml/JobSet/w", ["w-driver-0-0", "w-workers-0-0", "w-workers-1-0"],
    ),
    "LeaderWorkerSet": (
        workload("LeaderWorkerSet", leaderWorkerTemplate={"size": 3, "workerTemplate": template()}),
        "ml/LeaderWorkerSet/w/0", ["w-0", "w-0-0", "w-0-1"],
    ),
    "PyTorchJob": (
        workload("PyTorchJob", pytorchReplicaSpecs={
            "Master": {"template": template()}, "Worker": {"replicas": 2, "template": template()},
        }), "ml/PyTorchJob/w", ["w-master-0", "w-worker-0", "w-worker-1"],
    ),
    "XGBoostJob": (
        workload("XGBoostJob", xgbReplicaSpecs={"Master": {"replicas": 3, "template": template()}}),
        "ml/XGBoostJob/w", ["w-master-0", "w-master-1", "w-master-2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("obj", "name", "pods"), WORKLOADS.values(), ids=WORKLOADS)
def test_workloads_whose_pods_wait_for_each_other_fit_whole_or_hold_what_they_got(
    obj: Object, name: str, pods: list[str]
) -> None:
    found = ask(node("a", labels=TYPE), node("b", labels=TYPE), manifests=(obj,))
    assert sorted(by_name(found.outcomes)) == pods
    gang = only(found)
    assert (gang.name, gang.scheduled, gang.fits_whole, gang.room_for) == (name, False, False, 2)
    assert gang.makes_room == ("1 more node like a (p5.48xlarge)",)
    assert f"{name} does not fit whole: 2 of 3 pods get a node; these hold it and wait" in render.as_text(found)
    whole = ask(node("a"), node("b"), node("c"), manifests=(obj,))
    assert only(whole).fits_whole
    assert f"{name} fits whole: 3 pods on 3 nodes" in render.as_text(whole)


def test_pods_of_an_ordinary_job_are_no_gang() -> None:
    found = ask(node("a"), manifests=(workload("Job", parallelism=2, template=template()),))
    assert not found.gangs


def test_a_podgroup_of_the_manifest_counts() -> None:
    alike = [{**member(at, LABEL), "metadata": {**member(at, LABEL)["metadata"], "uid": ""}} for at in range(2)]
    found = ask(node("a"), manifests=(PAIR, *alike))
    assert (only(found).least, only(found).starts) == (2, False)


def test_kueues_pods_are_gated_until_they_are_admitted() -> None:
    how = {
        "labels": {"kueue.x-k8s.io/pod-group-name": "g"}, "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
        "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
    }  # fmt: skip
    gang = only(ask(node("a"), *(member(at, how) for at in range(2))))
    assert (gang.scheduled, gang.fits_whole) == (False, False)
    assert "kueue.x-k8s.io/admission" in gang.blocked_by


def test_a_quota_that_stops_a_gang_is_told_with_what_it_would_have_to_allow() -> None:
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "ml"},
             "status": {"hard": {f"requests.{GPU}": "20"}, "used": {f"requests.{GPU}": "8"}}}  # fmt: skip
    obj = workload("Job", **INDEXED)
    found = ask(*(node(name) for name in "abc"), quota, manifests=(obj,))
    assert only(found).room_for == 1
    assert "quota q of namespace ml allows 20" in only(found).blocked_by
    assert only(found).makes_room == (f"quota q of ml at requests.{GPU}=32",)
    raised = ask(*(node(name) for name in "abc"), quota, manifests=(obj,), quota=(("ml", f"requests.{GPU}=32"),))
    assert only(raised).fits_whole


@pytest.mark.parametrize(
    "obj",
    [
        workload("JobSet", replicatedJobs=[{"name": "w", "replicas": 10**12, "template": {"spec": {"template": template()}}}]),
        workload("LeaderWorkerSet", replicas=10**9, leaderWorkerTemplate={"size": 1, "workerTemplate": template()}),
        workload("LeaderWorkerSet", leaderWorkerTemplate={"size": 10**9, "workerTemplate": template()}),
        workload("PyTorchJob", pytorchReplicaSpecs={"Worker": {"replicas": -3, "template": template()}}),
        workload("Job", parallelism=10**9, template=template()),
    ],
)  # fmt: skip
def test_more_pods_than_can_be_asked_about_are_refused(obj: Object) -> None:
    with pytest.raises(Exception, match=r"asks for|too many parts"):
        ask(node("a"), manifests=(obj,))


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        ("PyTorchJob", None, "pytorchReplicaSpecs"),
        ("PyTorchJob", [], "pytorchReplicaSpecs"),
        ("PyTorchJob", {"pytorchReplicaSpec": {}}, "pytorchReplicaSpecs"),
        ("JobSet", {"replicatedJob": [{}]}, "replicatedJobs"),
        ("LeaderWorkerSet", {}, "leaderWorkerTemplate"),
    ],
)
def test_a_manifest_without_the_field_that_has_its_pods_is_refused(kind: str, spec: Any, field: str) -> None:
    obj = {"kind": kind, "metadata": {"name": "w"}, "spec": spec}
    with pytest.raises(ConfigError, match=f"{kind} w has no pods in it") as caught:
        ask(node("a"), manifests=(obj,))
    assert caught.value.expected == f"spec.{field}, which has them"


def test_a_manifest_whose_pods_are_no_list_of_any_asks_for_none() -> None:
    assert not ask(node("a"), manifests=(workload("PyTorchJob", pytorchReplicaSpecs=[1]),)).outcomes


def test_replicas_without_containers_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no containers"):
        ask(node("a"), manifests=(workload("PyTorchJob", pytorchReplicaSpecs={"Worker": 5}),))


def rdma(link: str, gbps: str, ports: str) -> dict[str, str]:
    return {"kgpu.dev/rdma.link-layer": link, "kgpu.dev/rdma.rate": gbps, "kgpu.dev/rdma.ports": ports}


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([rdma("infiniband", "400", "8"), rdma("infiniband", "200", "8")], "InfiniBand, 200 Gbit/s on 8 ports of each"),
        (
            [rdma("ethernet", "100", "1"), {}],
            "RDMA over Ethernet, 100 Gbit/s on 1 port of each node at least; 1 node of",
        ),
        ([rdma("infiniband", "4e9", "8"), rdma("\x1b[31m", "200", "8")], None),
        ([{}, {}], None),
    ],
    ids=["the slower counts", "one without", "hostile", "none"],
)
def test_what_connects_the_nodes_of_a_gang_is_told(labels: list[dict[str, str]], words: str | None) -> None:
    nodes = [node(name, labels=own) for name, own in zip("ab", labels, strict=True)]
    told = [line for line in only(ask(*nodes, manifests=(workload("Job", **TWO),))).quality if "between nodes" in line]
    assert len(told) == (words is not None)
    assert all(words in line for line in told if words)
    (alone,) = ask(node("a", 16, labels=labels[0]), manifests=(workload("Job", **TWO),)).gangs
    assert not any("between nodes" in line for line in alone.quality)
