"""What changes on a Node: only what is on node feature discovery's lists is removed, and nothing where nothing is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.master.model import MasterSettings, StoredFeature, TrackedNode, TrackingLists, feature_of, node_of
from kgpu.discovery.master.plan import by_weight, change, evaluate, hand_over, take_back, without_others
from kgpu.discovery.master.sharing import FeatureShare
from kgpu.discovery.master.tables import NAME, with_built_in
from kgpu.discovery.rules.model import RuleSource
from kgpu.discovery.rules.outputs import ANNOTATION, LABEL, RESOURCE, NodeOutputs, OutputLimits
from kgpu.formats import names
from kgpu.formats.crd.nodefeatures import FeatureRule, RuleTaint

FEATURE = "feature.node.kubernetes.io/"
NODE = TrackedNode(name="n1", uid="u", version="7")
EVERYTHING = NodeOutputs(
    labels={FEATURE + "a": "1", "example.com/b": "2"},
    annotations={"example.com/note": "text"},
    extended_resources={"example.com/card": "2"},
    taints=(RuleTaint(key="example.com/t", value="v", effect="NoSchedule"),),
)
LISTS = {
    names.NFD_TRACKING_ANNOTATION: "a,example.com/b",
    names.NFD_TRACKED_ANNOTATIONS: "example.com/note",
    names.NFD_TRACKED_RESOURCES: "example.com/card",
    names.NFD_TRACKED_TAINTS: "example.com/t=v:NoSchedule",
}
HAS_IT = TrackedNode(
    name="n1", uid="u", version="7",
    labels={**EVERYTHING.labels, "team": "a", names.LABEL_FEATURE_RULES: "true"},
    annotations={**EVERYTHING.annotations, **LISTS, "other": "x"},
    taints=({"key": "other", "effect": "NoExecute"}, {"key": "example.com/t", "value": "v", "effect": "NoSchedule"}),
    resources={"example.com/card": "2", "nvidia.com/gpu": "8"},
)  # fmt: skip


def test_a_node_gets_everything_with_the_lists_of_it():
    made = change(NODE, EVERYTHING, remove=True)
    assert made.body["metadata"]["labels"] == {**EVERYTHING.labels, names.LABEL_FEATURE_RULES: "true"}
    assert made.body["metadata"]["annotations"] == {**EVERYTHING.annotations, **LISTS}
    assert made.body["metadata"]["resourceVersion"] == "7"
    assert made.body["spec"]["taints"] == [{"key": "example.com/t", "value": "v", "effect": "NoSchedule"}]
    figures = {"example.com/card": "2"}
    assert made.status["status"] == {"capacity": figures, "allocatable": figures}


def test_a_node_that_has_everything_is_not_written():
    made = change(HAS_IT, EVERYTHING, remove=True)
    assert (made.body, made.status) == ({}, {})
    as_stored = TrackedNode(name="n1", resources={"example.com/card": "1k"})
    same = change(as_stored, NodeOutputs(extended_resources={"example.com/card": "1000"}), remove=True)
    assert not same.status


def test_only_what_is_on_a_list_goes():
    made = change(HAS_IT, NodeOutputs(), remove=True)
    assert made.body["metadata"]["labels"] == dict.fromkeys(EVERYTHING.labels)
    assert made.body["metadata"]["annotations"] == dict.fromkeys(("example.com/note", *LISTS))
    assert made.body["spec"]["taints"] == [{"key": "other", "effect": "NoExecute"}]
    assert made.status["status"]["capacity"] == {"example.com/card": None}


def test_without_knowledge_nothing_goes_and_nothing_leaves_a_list():
    kept = change(HAS_IT, NodeOutputs(labels={"example.com/new": "1"}), remove=False)
    assert kept.body["metadata"]["labels"] == {"example.com/new": "1"}
    assert kept.body["metadata"]["annotations"] == {names.NFD_TRACKING_ANNOTATION: "a,example.com/b,example.com/new"}
    assert "spec" not in kept.body
    assert not kept.status


def test_a_taint_that_changes_stays_where_it_is():
    other = NodeOutputs(taints=(RuleTaint(key="example.com/t", value="w", effect="NoSchedule"),))
    taints = change(HAS_IT, other, remove=True).body["spec"]["taints"]
    assert taints[1] == {"key": "example.com/t", "value": "w", "effect": "NoSchedule"}
    assert len(taints) == 2


def test_switched_off_everything_goes_and_another_master_gets_everything():
    back = take_back(HAS_IT, "").body["metadata"]
    assert back["labels"] == dict.fromkeys((*EVERYTHING.labels, names.LABEL_FEATURE_RULES))
    given = hand_over(HAS_IT)
    assert given.body == {"metadata": {"uid": "u", "labels": {names.LABEL_FEATURE_RULES: None}}}
    assert not given.status


@pytest.mark.parametrize("place", ["metadata", "spec", "status"])
def test_any_node_can_be_read(place):
    assert node_of({"metadata": {"name": "n"}, place: {"name": "n", "taints": [7, {"key": 1}], "capacity": None}})


def found(name: str, namespace: str = "gpu-operator", **labels: str) -> StoredFeature:
    modules = FeatureSet(flags={"kernel.loadedmodule": frozenset({name})})
    return StoredFeature(
        namespace=namespace, name=name, uid="", version="", node="n1", used=True, own=name == "n1", features=modules,
        labels=labels,
    )  # fmt: skip


SETTINGS = MasterSettings(namespace="gpu-operator")


def test_what_several_programs_have_found_is_one_and_the_later_counts():
    verdict = evaluate([found("nvidia_fs", a="2"), found("gdrdrv", a="1")], with_built_in(()), SETTINGS)
    assert verdict.outputs.labels == {
        FEATURE + "a": "2", "nvidia.com/gds.capable": "true", "nvidia.com/gdrcopy.capable": "true"
    }  # fmt: skip


def test_rules_of_the_cluster_replace_those_built_in():
    own = RuleSource(name=NAME, rules={})
    assert with_built_in([own]) == [own]


def test_of_several_objects_kgpus_namespace_comes_first_then_names_then_namespaces():
    several = [found("a", "z", from_="z/a"), found("b", "y", from_="y/b"), found("b", "x", from_="x/b"),
               found("c", from_="own/c")]  # fmt: skip
    order = [one.labels["from_"] for one in by_weight(reversed(several), "gpu-operator")]
    assert order == ["own/c", "z/a", "x/b", "y/b"]


def test_labels_of_other_programs_can_be_denied():
    denied = MasterSettings(namespace="gpu-operator", foreign_labels=False)
    verdict = evaluate([found("n1", a="1"), found("other", b="1")], with_built_in(()), denied)
    assert verdict.outputs.labels == {FEATURE + "a": "1"}


@pytest.mark.parametrize(
    ("kind", "pairs"), [(LABEL, "labels"), (ANNOTATION, "annotations"), (RESOURCE, "extended_resources")]
)
def test_a_kind_that_is_switched_off_gives_nothing_and_the_others_stay(kind, pairs):
    rule = FeatureRule(
        name="r", labels={"example.com/l": "1"}, annotations={"example.com/a": "1"},
        extended_resources={"example.com/e": "1"},
    )  # fmt: skip
    settings = MasterSettings(namespace="gpu-operator", limits=OutputLimits(off=frozenset({kind})))
    outputs = evaluate([], [RuleSource(name="s", rules={0: rule})], settings).outputs
    given = {one: getattr(outputs, one) for one in ("labels", "annotations", "extended_resources")}
    assert given.pop(pairs) == {}
    assert all(given.values())
    assert not outputs.rejected


def test_what_a_node_has_from_somebody_else_is_left_where_it_may_not_be_overwritten():
    node = replace(NODE, labels={"example.com/b": "mine"}, annotations={"example.com/note": "mine"},
                   resources={"example.com/card": "9"})  # fmt: skip
    left = without_others(node, EVERYTHING)
    assert (left.labels, left.annotations, left.extended_resources) == ({FEATURE + "a": "1"}, {}, {})
    assert {one.key for one in left.rejected} == {"example.com/b", "example.com/note", "example.com/card"}
    assert change(node, left, remove=True).body["metadata"]["annotations"][names.NFD_TRACKING_ANNOTATION] == "a"
    own = replace(HAS_IT, labels={**HAS_IT.labels, FEATURE + "a": "old"})
    assert without_others(own, EVERYTHING) == EVERYTHING  # what is on the lists goes on being kept up to date


def test_two_instances_keep_lists_of_their_own():
    blue = TrackingLists.of("blue")
    made = change(HAS_IT, NodeOutputs(labels={"example.com/x": "1"}), remove=True, instance="blue")
    assert made.body["metadata"]["labels"] == {"example.com/x": "1", names.LABEL_FEATURE_RULES: "blue"}
    assert made.body["metadata"]["annotations"] == {blue.labels: "example.com/x"}
    assert blue.taints == "blue.nfd.node.kubernetes.io/taints"
    both = replace(HAS_IT, labels={**HAS_IT.labels, "example.com/x": "1", names.LABEL_FEATURE_RULES: "blue"},
                   annotations={**HAS_IT.annotations, blue.labels: "example.com/x"})  # fmt: skip
    assert both.instance == "blue"
    gone = take_back(both, "blue").body["metadata"]
    assert gone["labels"] == {"example.com/x": None, names.LABEL_FEATURE_RULES: None}
    assert gone["annotations"] == {blue.labels: None}
    others = take_back(both, "").body["metadata"]
    assert names.LABEL_FEATURE_RULES not in others["labels"]


def test_what_a_hostile_object_asks_for_is_refused_name_by_name():
    asked = {"kubernetes.io/os": "x", "node-role.kubernetes.io/control-plane": "", "node.kubernetes.io/a": "1",
             "a b": "1", "../x": "1", "ok": "1", "long": "x" * 64}  # fmt: skip
    outputs = evaluate([replace(found("n1"), labels=asked)], [], SETTINGS).outputs
    assert outputs.labels == {FEATURE + "ok": "1"}
    assert len(outputs.rejected) == len(asked) - 1


def test_of_a_huge_object_nothing_is_kept_where_it_is_not_used():
    many = {f"o{number}": "y" for number in range(50_000)}  # about a megabyte, the most that an API server takes
    spec = {"features": {"attributes": {"kernel.config": {"elements": many}}}, "labels": many}
    obj = {"metadata": {"name": "x", "namespace": "tenant", "labels": {names.NFD_NODE_NAME_LABEL: "n1"}}, "spec": spec}
    outside = feature_of(obj, SETTINGS, FeatureShare(), used=False)
    assert (outside.features, outside.labels) == (FeatureSet(), {})
    inside = feature_of(obj, SETTINGS, FeatureShare(), used=True)
    assert len(inside.features.values("kernel.config")) == 50_000
    assert not inside.own  # another namespace's is never the node's own agent's


@pytest.mark.parametrize(
    "spec", [7, [], {"features": 7}, {"labels": {"a": 1}}, {"features": {"flags": {"a.b": {"elements": []}}}}]
)
def test_of_an_object_that_can_not_be_read_nothing_counts(spec):
    metadata = {"name": "n1", "namespace": "gpu-operator", "labels": {names.NFD_NODE_NAME_LABEL: "n1"}}
    read = feature_of({"metadata": metadata, "spec": spec}, SETTINGS, FeatureShare(), used=True)
    assert (read.features, dict(read.labels)) == (FeatureSet(), {})
