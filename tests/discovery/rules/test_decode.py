"""Everything that is wrong with rules is found where they are read, with its place, and no rule stops another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.discovery.features.model import merged
from kgpu.discovery.rules.decode import MOST, read_feature, read_group, read_rules
from kgpu.discovery.rules.model import as_spec, feature_set
from kgpu.formats.crd.nodefeatures import MAX_RULES
from tests.budget import tries

GOOD = {"name": "good", "labels": {"a": "b"}}


def places(obj):
    return {flaw.place: flaw.error for flaw in read_rules(obj).flaws}


def in_rule(**fields):
    found = places({"spec": {"rules": [{"name": "r", "matchFeatures": [{"feature": "a.b"}], **fields}]}})
    return {place.removeprefix("spec.rules[0]").lstrip("."): error for place, error in found.items()}


def expression(**fields):
    return in_rule(matchFeatures=[{"feature": "a.b", "matchExpressions": {"x": fields}}])


AT = 'matchFeatures[0].matchExpressions["x"]'


@pytest.mark.parametrize(
    ("found", "place", "said"),
    [
        (in_rule(annotation={}), "annotation", 'did you mean "annotations"'),
        (in_rule(labels={"a": 1}), 'labels["a"]', "a text"),
        (in_rule(labels={"a b": "c"}), "labels", "no name of a label"),
        (in_rule(labels={"kubernetes.io/a": "c"}), "labels", "not allowed"),
        (in_rule(labels={"a": "@b"}), "labels", "names no attribute"),
        (in_rule(annotations={"a": "x" * 2000}), "annotations", "2000 characters"),
        (in_rule(extendedResources={"a": "many"}), "extendedResources", "a quantity"),
        (in_rule(taints=[{"key": "a", "effect": "NoSchedule"}]), "taints[0]", "has no domain"),
        (in_rule(taints=[{"key": "x.io/a"}]), "taints[0].effect", "is missing"),
        (in_rule(labelsTemplate="{{env `X`}}"), "labelsTemplate", 'function "env"'),
        (in_rule(varsTemplate="{{end}}"), "varsTemplate", "line 1 of the template"),
        (in_rule(matchFeatures=[], labelsTemplate="a=b"), "labelsTemplate", "never carried out"),
        (in_rule(matchFeatures=[{"feature": "nodot"}]), "matchFeatures[0].feature", "no name of a feature"),
        (in_rule(matchFeatures=[{}]), "matchFeatures[0].feature", "is missing"),
        (in_rule(matchAny=[{"matchFeatures": [{"feature": "x"}]}]), "matchAny[0].matchFeatures[0].feature", "no name"),
        (
            in_rule(matchFeatures=[{"feature": "a.b", "matchName": {"op": "In"}}]),
            "matchFeatures[0].matchName",
            "0 values",
        ),
        (expression(op="IN", value=["x"]), AT + ".op", 'did you mean "In"'),
        (expression(op="In"), AT, "at least one value"),
        (expression(op="InRegexp", value=["("]), AT, "missing )"),
        (expression(op="Gt", value=["1.0"]), AT, "type: version"),
        (expression(op="Gt", value=["1"], type="semver"), AT, "version, or no type"),
        (expression(op="In", value="x"), AT + ".value", "a list"),
    ],
)
def test_what_is_wrong_is_found_with_its_place(found, place, said):
    assert list(found) == [place]
    assert said in found[place].one_line()


def test_a_rule_that_can_not_be_read_stops_no_other():
    read = read_rules(
        {"spec": {"rules": [GOOD, {"name": "b", "matchFeatures": "x"}, 5, {"labels": {}}, GOOD], "more": 1}}
    )
    assert sorted(read.rules) == [0, 4]
    assert [(flaw.place, flaw.rule, flaw.warning) for flaw in read.flaws] == [
        ("spec.more", None, True), ("spec.rules[1].matchFeatures", 1, False), ("spec.rules[2]", 2, False),
        ("spec.rules[3].name", 3, False),
    ]  # fmt: skip


def test_one_that_fails_only_where_the_element_is_there_is_kept():
    read = read_rules(
        {"spec": {"rules": [{**GOOD, "matchFeatures": [{"feature": "a.b", "matchExpressions": {"x": {"op": "In"}}}]}]}}
    )
    assert list(read.rules) == [0]
    assert [flaw.warning for flaw in read.flaws] == [False]


@pytest.mark.parametrize(
    "obj", [None, 5, {}, {"spec": None}, {"spec": []}, {"spec": {"rules": None}}, {"spec": {"rules": 5}}]
)
def test_what_is_no_rule_object_has_no_rules(obj):
    read = read_rules(obj)
    assert read.rules == {}
    assert read.flaws


def test_too_much_is_refused():
    assert places({"spec": {"rules": [GOOD] * (MAX_RULES + 1)}}).keys() == {"spec.rules"}
    assert len(read_rules({"spec": {"rules": [{"name": "x", "no": 1}] * MAX_RULES}}).flaws) == MOST


def test_groups_have_no_labels():
    read = read_group({"spec": {"featureGroupRules": [{"name": "g", "labels": {"a": "b"}, "vars": {"v": "1"}}]}})
    assert [(flaw.place, flaw.warning) for flaw in read.flaws] == [("spec.featureGroupRules[0].labels", True)]
    assert read.rules[0].vars == {"v": "1"}


def test_features_go_back_and_forth():
    spec = {
        "flags": {"a.b": {"elements": {"x": {}, "y": {}}}, "a.empty": {"elements": {}}},
        "attributes": {"c.d": {"elements": {"k": "v"}}},
        "instances": {"e.f": {"elements": [{"attributes": {"i": "1"}}, {"attributes": {}}]}},
    }
    read = read_feature({"spec": {"features": spec, "labels": {"l": "m"}}})
    assert read.flaws == ()
    assert read.spec.labels == {"l": "m"}
    assert as_spec(feature_set(read.spec.features)) == spec


def test_features_of_several_programs_add_up_and_later_values_win():
    def features(**spec):
        return feature_set(read_feature({"spec": {"features": spec}}).spec.features)

    one = features(
        attributes={"a.b": {"elements": {"x": "1", "y": "1"}}},
        instances={"i.j": {"elements": [{"attributes": {"n": "1"}}]}},
    )
    two = features(attributes={"a.b": {"elements": {"x": "2"}}}, instances={"i.j": {"elements": [{"attributes": {"n": "2"}}]}},
                   flags={"a.b": {"elements": {"f": {}}}})  # fmt: skip
    both = merged([one, two])
    assert both.attributes == {"a.b": {"x": "2", "y": "1"}}
    assert both.instances == {"i.j": ({"n": "1"}, {"n": "2"})}
    assert both.flags == {"a.b": {"f"}}
    assert both.names() == ["a.b", "i.j"]
    assert both.has("i.j")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["spec", "rules", "name", "matchFeatures", "feature", "matchExpressions", "op", "value", "labels",
                         "labelsTemplate", "matchAny", "matchName", "taints", "features", "flags", "elements"])
        | st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)  # fmt: skip


@tries(300)
@given(JSON)
def test_anything_is_read(value):
    for read in (read_rules, read_group, read_feature):
        for obj in (
            value,
            {"spec": value},
            {"spec": {"rules": [value], "featureGroupRules": [value], "features": value}},
        ):
            assert all(flaw.one_line() for flaw in read(obj).flaws)
