"""What changes on a Node: only what is on node feature discovery's lists is removed, and nothing where nothing is known."""

from __future__ import annotations

import pytest

from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.master.model import StoredFeature, TrackedNode, node_of
from kgpu.discovery.master.plan import change, evaluate, hand_over, take_back
from kgpu.discovery.master.tables import NAME, with_built_in
from kgpu.discovery.rules.model import RuleSource
from kgpu.discovery.rules.outputs import NodeOutputs, OutputLimits
from kgpu.formats import names
from kgpu.formats.crd.nodefeatures import RuleTaint

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
    back = take_back(HAS_IT).body["metadata"]
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
        namespace=namespace, name=name, uid="", version="", node="n1", used=True, features=modules, labels=labels
    )


def test_what_several_programs_have_found_is_one_and_the_later_counts():
    verdict = evaluate([found("nvidia_fs", a="2"), found("gdrdrv", a="1")], with_built_in(()), OutputLimits())
    assert verdict.outputs.labels == {
        FEATURE + "a": "2", "nvidia.com/gds.capable": "true", "nvidia.com/gdrcopy.capable": "true"
    }  # fmt: skip


def test_rules_of_the_cluster_replace_those_built_in():
    own = RuleSource(name=NAME, rules={})
    assert with_built_in([own]) == [own]
