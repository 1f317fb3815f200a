"""Verdicts and messages of ``kgpu.fit``; the wording was seen on a real kube-scheduler 1.35."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.fit import ClusterSnapshot, ClusterView, explain, explain_pod, read, verdict
from tests.budget import tries
from tests.fit.generate import GPU, HOST, ZONE, Generator, Object, backdrop

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def node(name: str, *, gpus: int = 2, labels: Object | None = None, **spec: object) -> Object:
    sizes = {"cpu": "4", "memory": "8Gi", "pods": "10", GPU: str(gpus)}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOST: name, **(labels or {})}},
        "spec": spec,
        "status": {"capacity": sizes, "allocatable": sizes},
    }


def pod(name: str, *, gpus: int = 0, cpu: str = "100m", labels: Object | None = None, **spec: object) -> Object:
    resources = {"requests": {"cpu": cpu}, "limits": {GPU: gpus} if gpus else {}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels or {}},
        "spec": {"containers": [{"name": "c", "resources": resources}], **spec},
    }


def asked(wanted: Object, *objects: Object):
    view = read.pod(wanted)
    assert view is not None
    return verdict(view, ClusterView.of(objects))


def tail(inner: str) -> str:
    return f" no new claims to deallocate, preemption: {inner}"


def test_counts_are_sorted_as_text_and_both_ways_out_are_told():
    found = asked(
        pod("p", gpus=2),
        node("a", unschedulable=True),
        *(node(name) for name in "bcd"),
        *(pod(f"on-{name}", gpus=1, nodeName=name) for name in "bcd"),
    )
    assert found.message == (
        "0/4 nodes are available: 1 node(s) were unschedulable, 3 Insufficient nvidia.com/gpu."
        + tail(
            "0/4 nodes are available: 1 Preemption is not helpful for scheduling, "
            "3 No preemption victims found for incoming pod."
        )
    )


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            pod("p", schedulingGates=[{"name": "a"}]),
            "Scheduling is blocked due to non-empty scheduling gates",
        ),
        (
            pod("p", volumes=[{"persistentVolumeClaim": {"claimName": "nope"}}]),
            '0/1 nodes are available: persistentvolumeclaim "nope" not found. not found',
        ),
        (
            pod("p", gpus=9, preemptionPolicy="Never"),
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
            + tail("not eligible due to preemptionPolicy=Never."),
        ),
    ],
)
def test_messages_of_pods_that_no_node_can_help(wanted, message):
    assert asked(wanted, node("a")).message == message


def named(*names: str) -> Object:
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in names]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def test_affinity_to_names_narrows_the_search_and_can_contradict_itself():
    nowhere = asked(pod("p", affinity=named("zzz")), node("a")).message
    assert nowhere == (
        "0/1 nodes are available: 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."
        + tail("0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
    )
    both = asked(pod("p", affinity=named("a", "b")), node("a")).message
    assert both == "0/1 nodes are available: pod affinity terms conflict. not found"


def test_no_nodes():
    assert asked(pod("p")).message == "no nodes available to schedule pods"


def test_init_containers_sidecars_overhead_and_pod_level_requests_add_up():
    request = {"resources": {"requests": {"cpu": "1"}}}
    wanted = pod("p", cpu="500m", overhead={"cpu": "1m"})
    wanted["spec"]["initContainers"] = [
        {"name": "s", "restartPolicy": "Always", **request},
        {"name": "i", "resources": {"requests": {"cpu": "2"}}},
    ]
    view = read.pod(wanted)
    assert view is not None
    assert view.requests["cpu"] == 3001  # the sidecar beside the init container, and the overhead
    wanted["spec"]["resources"] = {"requests": {"cpu": "4"}}
    view = read.pod(wanted)
    assert view is not None
    assert view.requests["cpu"] == 4001


def test_the_least_important_victims_are_chosen():
    objects = [
        node("a"),
        pod("old", gpus=1, nodeName="a", priority=1),
        pod("low", gpus=1, nodeName="a", priority=0),
        node("b"),
        pod("high", gpus=2, nodeName="b", priority=9),
    ]
    found = asked(pod("p", gpus=1, priority=10), *objects)
    assert found.preemption is not None
    assert (found.preemption.node, [one.name for one in found.preemption.victims]) == ("a", ["low"])
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}},
        "status": {"disruptionsAllowed": 0},
    }
    objects[2]["metadata"]["labels"] = {"app": "x"}
    kept = asked(pod("p", gpus=1, priority=10), *objects, budget)
    assert kept.preemption is not None
    assert ([one.name for one in kept.preemption.victims], kept.preemption.violations) == (["old"], 0)


def test_room_that_is_kept_for_another_is_not_given_away():
    waiting = pod("waiting", gpus=2, priority=5)
    waiting["status"] = {"nominatedNodeName": "a"}
    wanted = pod("p", gpus=1)
    assert not asked(wanted, node("a"), waiting).schedulable
    assert asked(pod("p", gpus=1, priority=9), node("a"), waiting).schedulable
    view = read.pod(wanted)
    assert view is not None
    assert "default/waiting" in explain(view, "a", ClusterView.of([node("a"), waiting]))[0].sentence


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ([{"matchExpressions": [{"key": ZONE, "operator": None}]}], "can be used nowhere; its node affinity can't be parsed"),
        ([], "can be used nowhere; its node affinity has no term"),
        (
            [{"matchExpressions": [{"key": ZONE, "values": ["z"]}]},
             {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z"]}]}],
            f"can be used where {ZONE} In [z]; node a has no such label",
        ),
    ],
)  # fmt: skip
def test_a_volume_whose_affinity_can_not_be_read_is_explained(terms: list[Object], says: str):
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c", "namespace": "default", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "v"}, "status": {"phase": "Bound"},
    }  # fmt: skip
    wants = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    held = {"kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": wants}
    mounts = pod("p", volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}])
    view = read.pod(mounts)
    assert view is not None
    found = explain(view, "a", ClusterView.of([node("a"), claim, held]))
    assert any(says in one.sentence for one in found)


def spread(key: str, skew: int = 1, **more: object) -> Object:
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
        **more,
    }


def test_spreading_over_zones():
    nodes = [node("a", labels={ZONE: "1"}), node("b", labels={ZONE: "2"}), node("c")]
    there = pod("there", labels={"app": "x"}, nodeName="a")
    assert asked(pod("p", labels={"app": "x"}, topologySpreadConstraints=[spread(ZONE)]), *nodes, there).fits == ("b",)
    few = spread(ZONE, minDomains=3)
    assert asked(pod("p", labels={"app": "x"}, topologySpreadConstraints=[few]), *nodes, there).fits == ("b",)


def near(kind: str) -> Object:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "x"}}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_affinity_lets_the_first_of_a_group_in_and_anti_affinity_works_both_ways():
    nodes = [node("a"), node("b")]
    first = pod("p", labels={"app": "x"}, affinity=near("podAffinity"))
    assert asked(first, *nodes).fits == ("a", "b")
    assert asked(pod("p", affinity=near("podAffinity")), *nodes).fits == ()
    there = pod("there", labels={"app": "x"}, nodeName="a")
    assert asked(first, *nodes, there).fits == ("a",)
    assert asked(pod("p", affinity=near("podAntiAffinity")), *nodes, there).fits == ("b",)
    grumpy = pod("grumpy", nodeName="a", affinity=near("podAntiAffinity"))
    assert asked(pod("p", labels={"app": "x"}), *nodes, grumpy).fits == ("b",)


def test_every_reason_is_given_with_its_evidence():
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    product = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    objects = [node("a", labels=product, taints=[taint]), pod("holder", gpus=2, nodeName="a")]
    view = read.pod(pod("p", gpus=1, nodeSelector={"nvidia.com/gpu.product": "A100-SXM4-80GB"}))
    assert view is not None
    reasons = explain(view, "a", ClusterView.of(objects))
    assert [one.filter for one in reasons] == ["TaintToleration", "NodeAffinity", "NodeResourcesFit"]
    assert "nvidia.com/gpu=present:NoSchedule" in reasons[0].sentence
    assert "NVIDIA-A100-SXM4-80GB" in reasons[1].sentence
    assert (
        "1 nvidia.com/gpu; node a has 2 allocatable, 2 in use, 0 free; held by default/holder (2)"
        in reasons[2].sentence
    )
    assert reasons[2].holders == ("default/holder",)


@pytest.mark.parametrize(("gpus", "said"), [(1, True), (0, False)])
def test_of_a_node_that_has_none_it_is_not_said_that_an_empty_one_would_not_do(gpus: int, said: bool) -> None:
    view = read.pod(pod("p", gpus=2))
    assert view is not None
    (reason,) = explain(view, "a", ClusterView.of([node("a", gpus=gpus)]))
    assert ("an empty node of this kind would not do (1 at most)" in reason.sentence) is said
    assert "(0 at most)" not in reason.sentence


def test_what_no_scheduler_says():
    quota = {
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "default"},
        "status": {"hard": {"requests.nvidia.com/gpu": "4"}, "used": {"requests.nvidia.com/gpu": "4"}},
    }
    view = read.pod(pod("p", gpus=1, schedulerName="default-schedular", schedulingGates=[{"name": "g"}]))
    assert view is not None
    found = explain_pod(view, ClusterView.of([quota], schedulers=["default-scheduler"]))
    assert [one.filter for one in found] == ["SchedulingGates", "kgpu", "ResourceQuota"]
    assert 'did you mean "default-scheduler"?' in found[1].sentence
    assert found[2].phrase == (
        "exceeded quota: q, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, "
        "limited: requests.nvidia.com/gpu=4"
    )


def drawn(seed: int) -> tuple[ClusterSnapshot, list[Object], Generator]:
    draw = Generator(random.Random(seed))
    nodes = draw.nodes()
    objects = [*nodes, *draw.pods_on(nodes), *(obj for obj in backdrop() if "ersistent" in obj["kind"])]
    for number, obj in enumerate(objects):
        obj["metadata"]["uid"] = f"u{number}"
    return ClusterSnapshot.of(ClusterView.of(objects)), objects, draw


@tries(150)
@given(st.integers(0, 10**6))
def test_explaining_and_deciding_agree(seed):
    snapshot, _, draw = drawn(seed)
    for _ in range(5):
        view = read.pod(draw.pod())
        assert view is not None
        found = verdict(view, snapshot)
        for name in snapshot.nodes:
            reasons = explain(view, name, snapshot)
            if name in found.fits:
                assert not reasons
            elif name in found.refused:
                refusal = found.refused[name]
                phrases = {(one.phrase, one.resolvable) for one in reasons}
                assert {(miss.phrase, miss.resolvable) for miss in refusal.misses} <= phrases
                assert reasons[0].filter == refusal.filter


@tries(100)
@given(st.integers(0, 10**6))
def test_victims_are_enough_and_none_too_many(seed):
    snapshot, _, draw = drawn(seed)
    wanted = draw.pod()
    wanted["spec"]["priority"] = 5
    view = read.pod(wanted)
    assert view is not None
    found = verdict(view, snapshot)
    if found.preemption is None:
        return
    for victim in found.preemption.victims:
        snapshot.drop(victim)
    assert found.preemption.node in verdict(view, snapshot).fits
    snapshot.put(found.preemption.victims[-1])
    assert found.preemption.node not in verdict(view, snapshot).fits


@tries(100)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_a_snapshot_kept_up_to_date_answers_as_a_new_one(seed, dice):
    kept, objects, draw = drawn(seed)
    views = read.views(objects)
    for view in dice.sample(views, len(views)):
        kept.drop(view)
        if dice.random() < 0.7:
            kept.put(view)
    for view in dice.sample(views, len(views)):
        kept.put(view)
    question = read.pod(draw.pod())
    assert question is not None
    assert verdict(question, kept).message == verdict(question, ClusterSnapshot.of(ClusterView.of(objects))).message


@given(st.sampled_from(sorted(read.READERS)), JSON, JSON, JSON)
def test_hostile_objects_are_read_without_an_error(kind, metadata, spec, status):
    read.views([{"kind": kind, "metadata": metadata, "spec": spec, "status": status}])
    named_one = {"kind": kind, "metadata": {"name": "x", "labels": metadata}, "spec": spec, "status": status}
    for view in read.views([named_one]):
        ClusterSnapshot().put(view)


@given(JSON, JSON)
def test_hostile_parts_of_a_pod_are_read_and_judged(part, other):
    spec = {
        "containers": [part, {"resources": {"requests": part, "limits": other}, "ports": [other]}],
        "tolerations": part,
        "affinity": {"podAffinity": other, "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": part}},
        "topologySpreadConstraints": [part, {"labelSelector": {"matchExpressions": [other]}}],
        "volumes": [other],
        "resourceClaims": part,
    }
    view = read.pod({"metadata": {"name": "p"}, "spec": spec})
    assert view is not None
    verdict(view, ClusterView.of([node("a")]))
    explain(view, "a", ClusterView.of([node("a")]))
