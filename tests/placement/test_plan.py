"""Where pods go: order, priority, gangs, quotas, preemption; and the changes that make them need a node."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.placement import render
from kgpu.placement.answer import NodeHour, answer
from kgpu.placement.model import Origin, WhatIfAnswer
from kgpu.placement.question import WhatIfQuestion
from tests.placement.clusters import GPU, PRODUCT, Object, budget, by_name, node, pod


def ask(*objects: Object, **question: object) -> WhatIfAnswer:
    return answer(WhatIfQuestion(**question), objects)  # type: ignore[arg-type]


def manifest(gpus: int = 1, name: str = "new", **spec: object) -> Object:
    found = pod(name, gpus, owner="", **spec)
    del found["metadata"]["uid"]
    return found


def test_a_drained_nodes_pods_go_where_they_fit_and_the_bare_ones_end() -> None:
    found = ask(
        node("a"), node("b"), pod("p", 4, "a"), pod("q", 2, "b"), pod("bare", 1, "a", owner=""),
        pod("ds", 1, "a", owner="DaemonSet/x"), drain=("a",),
    )  # fmt: skip
    assert by_name(found.outcomes) == {"p": "b"}
    assert found.outcomes[0].origin is Origin.DRAINED
    assert found.notes == ("they leave node a for good, as no controller makes them: ml/bare",)
    assert found.after[0].free == 2
    assert found.holds


def test_a_pod_that_ends_already_is_not_made_again_by_a_drain_but_a_stateful_sets_is() -> None:
    going = pod("p", 4, "a")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert ask(node("a"), node("b"), going, drain=("a",)).outcomes == ()
    going["metadata"]["ownerReferences"][0]["kind"] = "StatefulSet"
    assert by_name(ask(node("a"), node("b"), going, drain=("a",)).outcomes) == {"p": "b"}


def test_a_namespace_that_is_not_there_is_told() -> None:
    spaces = [{"kind": "Namespace", "metadata": {"name": name}} for name in ("ml", "web")]
    new = manifest(1)
    assert ask(node("a"), *spaces, manifests=(new,)).notes == ()
    new["metadata"]["namespace"] = "weg"
    found = ask(node("a"), *spaces, manifests=(new,))
    assert found.refusals == ('namespaces "weg" not found; did you mean "web"?',)
    assert by_name(found.outcomes) == {"new": "a"}  # where it would go is said all the same
    assert not found.holds
    text = 'What if: submit 1 pod\n✘ the API server would refuse the pods: namespaces "weg" not found; did you'
    assert render.as_text(found).startswith(text)
    assert render.as_data(found)["refusals"] == list(found.refusals)
    with_it = ask(node("a"), *spaces, manifests=({"kind": "Namespace", "metadata": {"name": "weg"}}, new))
    unread = ask(node("a"), manifests=(new,))
    assert (with_it.refusals, with_it.holds, unread.refusals, unread.holds) == ((), True, (), True)


def test_a_drain_that_leaves_pods_without_a_node_says_why_with_counts() -> None:
    found = ask(node("a"), node("b"), node("c", 0), pod("p", 8, "a"), pod("q", 2, "b"), drain=("a",))
    (one,) = found.without_node
    assert dict(one.counts) == {f"Insufficient {GPU}": 2, "node(s) were unschedulable": 1}
    assert one.message.startswith(
        "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu."
    )
    assert not found.holds


def test_a_budget_that_a_drain_breaks_is_told() -> None:
    found = ask(node("a"), node("b"), pod("p", 1, "a"), budget("p", 0), drain=("a",))
    assert "PodDisruptionBudget ml/pdb-p allows 0 disruptions now" in found.notes[0]


def test_added_nodes_are_copies_with_their_daemons_and_without_what_is_one_machines_own() -> None:
    broken = node("a", labels={"kgpu.dev/x": "y"}, unschedulable=True)
    broken["spec"]["taints"] = [
        {"key": GPU, "effect": "NoSchedule"}, {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
    ]  # fmt: skip
    broken["status"]["allocatable"] = {**broken["status"]["allocatable"], GPU: "7"}
    tolerant = {"tolerations": [{"key": GPU, "operator": "Exists"}]}
    found = ask(
        broken, pod("ds", 0, "a", owner="DaemonSet/x", cpu="60"), manifests=(manifest(8, cpu="4", **tolerant),),
        add_nodes=("a=1",),
    )  # fmt: skip
    assert by_name(found.outcomes) == {"new": "a-new-1"}
    full = ask(
        broken, pod("ds", 0, "a", owner="DaemonSet/x", cpu="60"), manifests=(manifest(8, cpu="5", **tolerant),),
        add_nodes=("a=1",),
    )  # fmt: skip
    assert full.without_node[0].counts["Insufficient cpu"] == 1


def test_pods_that_wait_get_added_nodes_first() -> None:
    found = ask(
        node("a", labels={"node.kubernetes.io/instance-type": "x8"}, unschedulable=True), pod("w", 8),
        add_nodes=("x8=1",), manifests=(manifest(8),),
    )  # fmt: skip
    assert by_name(found.outcomes) == {"w": "x8-new-1".replace("x8", "a"), "new": ""}
    assert not found.holds


def test_a_type_of_the_table() -> None:
    found = ask(node("a", 0), add_nodes=("p5.48xlarge=2",), manifests=(manifest(8),), count=2)
    assert by_name(found.outcomes) == {"new": "p5.48xlarge-new-1", "new-1": "p5.48xlarge-new-2"}
    assert "taken from kgpu's table" in found.notes[0]
    assert "NVLink 4" in found.quality["ml/new"]


def test_higher_priority_goes_first_whatever_the_order() -> None:
    classes = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100}
    low, high = manifest(8, "low"), manifest(8, "high", priorityClassName="high")
    assert by_name(ask(node("a"), classes, manifests=(low, high)).outcomes) == {"high": "a", "low": ""}


def test_a_priority_class_that_is_not_there_is_refused_where_classes_are_known() -> None:
    classes = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100}
    new = manifest(8, "new", priorityClassName="hihg")
    found = ask(node("a"), classes, manifests=(new,))
    assert found.refusals == ('no PriorityClass with name hihg was found; did you mean "high"?',)
    assert (by_name(found.outcomes), found.holds) == ({"new": "a"}, False)
    unread = ask(node("a"), manifests=(new,))
    assert (unread.refusals, unread.holds) == ((), True)
    assert unread.notes == (
        "no PriorityClass was read, so what hihg is worth is not known: these pods count with priority 0",
    )
    system = ask(node("a"), classes, manifests=(manifest(1, "s", priorityClassName="system-node-critical"),))
    assert (system.refusals, system.notes) == ((), ())


def test_a_pod_that_puts_others_out_says_whom_and_these_need_a_node() -> None:
    found = ask(node("a"), pod("low", 8, "a", priority=-5), manifests=(manifest(8, "high", priority=5),))
    assert found.outcomes[0].preempts == ("ml/low",)
    assert (found.outcomes[1].origin, found.outcomes[1].node) == (Origin.PREEMPTED, "")
    assert not found.holds


def test_a_pod_that_wants_to_be_beside_a_later_one_is_tried_again() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "leader"}}, "topologyKey": "kubernetes.io/hostname"}
    beside = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    first, later = manifest(1, "follower", affinity=beside), manifest(1, "leader")
    assert by_name(ask(node("a"), node("b"), manifests=(first, later)).outcomes) == {"follower": "a", "leader": "a"}


def test_a_gang_starts_whole_or_not_at_all_and_the_domain_is_named() -> None:
    def racks(sizes: dict[str, int]) -> list[Object]:
        return [
            node(f"{rack}{at}", 4, labels={"nvidia.com/gpu.clique": rack})
            for rack, count in sizes.items()
            for at in range(count)
        ]

    found = ask(*racks({"a": 13, "b": 2}), manifests=(manifest(4),), count=16, gang=True)
    assert all(one.node == "" for one in found.outcomes)
    assert sum(bool(one.room) for one in found.outcomes) == 15
    (gang,) = found.gangs
    assert gang.blocked_by == "the largest NVLink domain, a, has room for 13 of 16; the cluster has room for 15 of 16"
    assert found.after[0].free == found.before[0].free
    (gang,) = ask(*racks({"a": 13, "b": 3}), manifests=(manifest(4),), count=16, gang=True).gangs
    assert gang.starts
    assert gang.quality == ("16 pods on 16 nodes", "in 2 NVLink domains: a (13), b (3)")


def test_quota_counts_before_nodes_do() -> None:
    quota = {
        "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "ml"},
        "status": {"hard": {f"requests.{GPU}": "5"}, "used": {f"requests.{GPU}": "2"}},
    }  # fmt: skip
    found = ask(node("a"), quota, manifests=(manifest(2),), count=2)
    refused, placed = found.outcomes
    assert (placed.node, refused.node) == ("a", "")
    assert "quota q of namespace ml allows 5" in refused.message
    (gang,) = {one.gang for one in ask(node("a"), quota, manifests=(manifest(2),), count=2, gang=True).outcomes}
    assert gang
    assert not any(one.node for one in ask(node("a"), quota, manifests=(manifest(2),), count=2, gang=True).outcomes)


def test_limit_ranges_give_what_containers_do_not_say() -> None:
    limits = {
        "kind": "LimitRange", "metadata": {"name": "l", "namespace": "ml"},
        "spec": {"limits": [{"type": "Container", "default": {GPU: "8"}}]},
    }  # fmt: skip
    found = ask(node("a"), limits, manifests=(manifest(0),), count=2)
    assert sorted(by_name(found.outcomes).values()) == ["", "a"]


def test_scaling_down_frees_and_scaling_up_asks() -> None:
    serve = {
        "kind": "Deployment", "metadata": {"name": "serve", "namespace": "ml"},
        "spec": {"replicas": 2, "template": manifest(4)},
    }  # fmt: skip
    owned = {"metadata": {"name": "serve-1", "namespace": "ml",
                          "ownerReferences": [{"kind": "Deployment", "name": "serve", "controller": True}]}}  # fmt: skip
    cluster = [
        node("a"), serve, {"kind": "ReplicaSet", **owned}, pod("p", 4, "a", owner="ReplicaSet/serve-1"),
        pod("q", 4, "a", owner="ReplicaSet/serve-1"),
    ]  # fmt: skip
    assert by_name(ask(*cluster, scale=("ml/deploy/serve=0",), manifests=(manifest(8),)).outcomes) == {"new": "a"}
    more = ask(*cluster, node("b"), scale=("ml/Deployment/serve=5",))
    assert sorted(by_name(more.outcomes).values()) == ["", "b", "b"]


def test_spread_by_default_and_packed_on_demand() -> None:
    cluster = [node("a"), node("b"), pod("p", 1, "a")]
    asked = {"manifests": (manifest(1),), "count": 1}
    assert by_name(ask(*cluster, **asked).outcomes) == {"new": "b"}
    assert by_name(ask(*cluster, **asked, pack=True).outcomes) == {"new": "a"}


def test_mig_layouts_and_shares_change_what_is_offered() -> None:
    mixed = node("a", labels={"nvidia.com/mig.strategy": "mixed"})
    found = ask(mixed, pod("p", 1, "a"), mig=("a=all-1g.10gb",))
    assert {room.resource: room.total for room in found.after} == {"nvidia.com/mig-1g.10gb": 56, GPU: 0}
    assert by_name(found.outcomes) == {"p": ""}
    single = ask(node("a"), pod("p", 1, "a"), mig=("a=all-3g.40gb",))
    assert by_name(single.outcomes) == {"p": "a"}
    assert single.after[0].total == 16
    asking = manifest(1, nodeSelector={PRODUCT: "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"})
    assert by_name(ask(node("a"), mig=("a=all-3g.40gb",), manifests=(asking,)).outcomes) == {"new": "a"}
    shared = ask(node("a"), pod("p", 8, "a"), replicas=("a=4",))
    assert (shared.after[0].total, shared.after[0].free) == (32, 24)


class FlatPrices:
    currency = "EUR"

    def hour(self, labels: object, provider_id: str, gpus: int) -> NodeHour:
        return NodeHour(per_hour=gpus * 1_000_000, source="test")


def test_nodes_that_come_and_go_have_their_price() -> None:
    asked = WhatIfQuestion(add_nodes=("a=2",), drain=("b",))
    found = answer(asked, [node("a"), node("b", 4)], FlatPrices())
    assert {row.node: row.per_hour for row in found.prices} == {
        "a-new-1": 8_000_000, "a-new-2": 8_000_000, "b": -4_000_000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"drain": ("b",)}, "there is no node b"),
        ({"add_nodes": ("zz=1",)}, "zz is no node and no instance type"),
        ({"add_nodes": ("a",)}, "can't be"),
        ({"add_nodes": ("a=0",)}, "0 nodes to add"),
        ({"add_nodes": ("a=x",)}, "is no number"),
        ({"mig": ("a=all-9g.1gb",)}, "has no profile"),
        ({"mig": ("a=3g.40gb:2,1g.10gb:1",)}, "does not fit one"),
        ({"mig": ("a=all-balanced",)}, "strategy single"),
        ({"replicas": ("a=0",)}, "0 shares"),
        ({"scale": ("ml/serve=1",)}, "names no workload"),
        ({"scale": ("ml/Deployment/serve=1",)}, "there is no ml/Deployment/serve"),
        ({"manifests": ({"kind": "DaemonSet"},)}, "the manifest has a DaemonSet"),
        ({"manifests": ({"kind": "Pod", "metadata": {"name": "p"}},)}, "p has no containers"),
        ({"manifests": ({"kind": "Service", "metadata": {"name": "p"}},)}, "the manifest has no pods"),
        ({"defrag_for": 2, "resource": "x/gpu"}, "no node offers x/gpu"),
    ],
)
def test_what_cannot_be_asked_is_refused(question: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ask(node("a"), **question)
