"""Whole rules: node feature discovery's own, those that vendors ship, and what rules see of one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kgpu.base.typed import convert
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.rules.decode import read_feature, read_rules
from kgpu.discovery.rules.model import GroupSource, RuleSource, feature_set
from kgpu.discovery.rules.outputs import OutputLimits, settle
from kgpu.discovery.rules.plan import belongs, carry_out, plan
from kgpu.formats.crd.nodefeatures import FeatureRule, MatchingRule

SHIPPED = yaml.safe_load((Path(__file__).parent / "shipped.yaml").read_text())


def rule(**fields):
    return convert({"name": "a rule", **fields}, FeatureRule)


def term(feature, **expressions):
    return {
        "feature": feature,
        "matchExpressions": {key.replace("_", "-"): value for key, value in expressions.items()},
    }


def is_in(*values):
    return {"op": "In", "value": list(values)}


EXISTS = {"op": "Exists"}
GONE = {"op": "DoesNotExist"}
KEYS = FeatureSet(
    flags={"domain-1.kf-1": frozenset({"key-x", "key-1"})},
    attributes={"domain-1.vf-1": {"key-1": "val-1"}},
    instances={"domain-1.if-1": ({"attr-1": "val-1"},)},
)
EMPTY = FeatureSet(
    flags={"domain-1.kf-1": frozenset()}, attributes={"domain-1.vf-1": {}}, instances={"domain-1.if-1": ()}
)
MULTI = FeatureSet(
    flags={"dom.feat": frozenset({"k-1", "k-2"})},
    attributes={"dom.feat": {"a-1": "v-1", "a-2": "v-2"}},
    instances={"dom.feat": ({"ia-1": "iv-1"}, {"ia-2": "iv-2"})},
)


@pytest.mark.parametrize(
    ("fields", "features", "matched"),
    [
        ({}, FeatureSet(), True),
        ({"matchFeatures": [term("domain-1.kf-1", key_1=EXISTS)]}, FeatureSet(), False),
        ({"matchFeatures": [term("domain-1.kf-1", key_1=EXISTS)]}, EMPTY, False),
        ({"matchFeatures": [term("domain-1.kf-1", key_1=GONE)]}, FeatureSet(), False),
        ({"matchFeatures": [term("domain-1.kf-1", key_1=GONE)]}, EMPTY, True),
        ({"matchFeatures": [term("domain-1.kf-1")]}, EMPTY, True),
        ({"matchFeatures": [{"feature": "domain-1.kf-1"}]}, EMPTY, True),
        ({"matchFeatures": [{"feature": "domain-1.if-1"}]}, EMPTY, True),
        ({"matchFeatures": [term("domain-1.if-1")]}, EMPTY, False),
        ({"matchFeatures": [{"feature": "domain-1.nope"}]}, EMPTY, False),
        ({"matchFeatures": [{"feature": "Domain-1.KF-1"}]}, EMPTY, True),
        ({"matchFeatures": [term("domain-1.kf-1", key_1=EXISTS)]}, KEYS, True),
        ({"matchFeatures": [term("domain-1.vf-1", key_1=is_in("val-1"))]}, KEYS, True),
        ({"matchFeatures": [term("domain-1.vf-1", key_1=is_in("val-x"))]}, KEYS, False),
        ({"matchFeatures": [term("domain-1.if-1", attr_1=is_in("val-1"))]}, KEYS, True),
        ({"matchFeatures": [term("dom.feat", k_1=EXISTS)]}, MULTI, True),
        ({"matchFeatures": [term("dom.feat", a_1=is_in("v-1"))]}, MULTI, True),
        ({"matchFeatures": [term("dom.feat", ia_1=is_in("iv-1"))]}, MULTI, True),
        ({"matchFeatures": [term("dom.feat", k_2=EXISTS, a_2=is_in("v-2"))]}, MULTI, True),
        ({"matchFeatures": [term("dom.feat", ia_1=is_in("iv-1"), ia_2=is_in("iv-2"))]}, MULTI, False),
        ({"matchFeatures": [term("domain-1.vf-1", key_1=is_in("val-1")), term("domain-1.if-1", attr_1=is_in("x"))]}, KEYS, False),
        ({"matchFeatures": [term("domain-1.vf-1", key_1=is_in("val-1")), term("domain-1.if-1", attr_1=is_in("val-1"))]}, KEYS, True),
        ({"matchAny": [{"matchFeatures": [term("domain-1.kf-1", key_na=EXISTS)]}]}, KEYS, False),
        ({"matchAny": [{"matchFeatures": [term("domain-1.kf-1", key_na=EXISTS)]},
                       {"matchFeatures": [term("domain-1.kf-1", key_1=EXISTS)]}]}, KEYS, True),
        ({"matchFeatures": [term("domain-1.vf-1", key_1=is_in("x"))],
          "matchAny": [{"matchFeatures": [term("domain-1.kf-1", key_1=EXISTS)]}]}, KEYS, False),
        ({"matchFeatures": [{"feature": "domain-1.kf-1", "matchName": {"op": "InRegexp", "value": ["^key-[0-9]$"]}}]}, KEYS, True),
        ({"matchFeatures": [{"feature": "domain-1.kf-1", "matchName": {"op": "In", "value": ["none"]}}]}, KEYS, False),
    ],
)  # fmt: skip
def test_a_rule_matches(fields, features, matched):
    outcome = carry_out(rule(labels={"l": "v", "empty": ""}, vars={"x": "y"}, **fields), features)
    assert outcome.error is None
    assert outcome.matched is matched
    assert outcome.labels == ({"l": "v", "empty": ""} if matched else {})
    assert outcome.vars == ({"x": "y"} if matched else {})


TEMPLATED = FeatureSet(
    flags={
        "domain_1.kf_1": frozenset({"key-a", "key-b", "key-c"}),
        "domain.mf": frozenset({"key-a", "key-b", "key-c"}),
    },
    attributes={
        "domain_1.vf_1": {"key-1": "val-1", "keu-2": "val-2", "key-3": "val-3", "key-4": "val-4"},
        "domain.mf": {"key-d": "val-d", "key-e": "val-e"},
    },
    instances={
        "domain_1.if_1": (
            {"attr-1": "1", "attr-2": "val-2"},
            {"attr-1": "10", "attr-2": "val-20"},
            {"attr-1": "100", "attr-2": "val-200"},
            {"attr-1": "1000", "attr-2": "val-2000", "attr-3": "3000"},
        )
    },
)
LABELS_TEMPLATE = """
label-1=will-be-overridden
label-2=
{{range .domain_1.kf_1}}kf-{{.Name}}=present
{{end}}
{{range .domain_1.vf_1}}vf-{{.Name}}=vf-{{.Value}}
{{end}}
{{range .domain_1.if_1}}if-{{index . "attr-1"}}_{{index . "attr-2"}}=present
{{end}}"""
TERMS = [
    {"feature": "domain_1.kf_1", "matchExpressions": {"key-a": EXISTS, "key-c": EXISTS, "foo": GONE}},
    {"feature": "domain_1.vf_1", "matchExpressions": {"key-1": is_in("val-1", "val-2"), "bar": GONE}},
    {"feature": "domain_1.if_1", "matchExpressions": {"attr-1": {"op": "Lt", "value": ["100"]}}},
    {"feature": "domain_1.if_1", "matchExpressions": {"attr-1": EXISTS, "attr-2": EXISTS, "attr-3": EXISTS}},
]


@pytest.mark.parametrize("conditions", [{"matchFeatures": TERMS}, {"matchAny": [{"matchFeatures": TERMS}]}])
def test_templates_see_the_matched_elements(conditions):
    found = carry_out(
        rule(
            labels={"label-1": "label-val-1"},
            labelsTemplate=LABELS_TEMPLATE,
            vars={"var-1": "var-val-1"},
            varsTemplate="\nvar-1=overridden\nvar-2=\n{{range .domain_1.kf_1}}kf-{{.Name}}=true\n{{end}}",
            **conditions,
        ),
        TEMPLATED,
    )
    assert found.error is None
    assert found.labels == {
        "label-1": "label-val-1", "label-2": "",
        "kf-key-a": "present", "kf-key-c": "present", "kf-foo": "present", "vf-key-1": "vf-val-1", "vf-bar": "vf-",
        "if-1_val-2": "present", "if-10_val-20": "present", "if-1000_val-2000": "present",
    }  # fmt: skip
    assert found.vars == {"var-1": "var-val-1", "var-2": "", "kf-key-a": "true", "kf-key-c": "true", "kf-foo": "true"}


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({"labelsTemplate": "{{range .domain.mf}}mf-{{.Name}}=found\n{{end}}",
          "matchFeatures": [{"feature": "domain.mf", "matchExpressions": {"key-a": EXISTS, "key-d": is_in("val-d")}}]},
         {"mf-key-a": "found", "mf-key-d": "found"}),
        ({"labelsTemplate": "{{range .domain_1.vf_1}}{{.Name}}={{.Value}}\n{{end}}",
          "matchFeatures": [{"feature": "domain_1.vf_1", "matchExpressions": {"key-5": GONE},
                             "matchName": is_in("key-1", "key-4")}]},
         {"key-1": "val-1", "key-4": "val-4", "key-5": ""}),
        # each alternative that matches adds its lines; case of the feature's name as the rule has it
        ({"labelsTemplate": "{{range .Domain_1.KF_1}}{{.Name}}=x\n{{end}}",
          "matchAny": [{"matchFeatures": [{"feature": "Domain_1.KF_1", "matchExpressions": {name: EXISTS}}]}
                       for name in ("key-a", "nope", "key-b")]},
         {"key-a": "x", "key-b": "x"}),
        # without a condition there is nothing to carry a template out for
        ({"labelsTemplate": "a=b", "labels": {"c": "d"}}, {"c": "d"}),
    ],
)  # fmt: skip
def test_lines_of_templates(fields, labels):
    outcome = carry_out(rule(**fields), TEMPLATED)
    assert outcome.error is None
    assert outcome.labels == labels


@pytest.mark.parametrize("template", ["foo", "{{", "a=b\nfoo", "{{.domain_1.nope}}=x"])
@pytest.mark.parametrize("field", ["labelsTemplate", "varsTemplate"])
def test_a_wrong_template_is_an_error_of_its_rule(template, field):
    condition = [{"feature": "domain_1.kf_1", "matchExpressions": {"key-a": EXISTS}}]
    outcome = carry_out(rule(matchFeatures=condition, labels={"a": "b"}, **{field: template}), TEMPLATED)
    assert outcome.error is not None
    assert (outcome.matched, outcome.labels) == (False, {})


def sources(**rules):
    return [RuleSource(name=name, rules=dict(enumerate(found))) for name, found in rules.items()]


def test_rules_see_labels_and_variables_of_those_before_by_names_of_objects():
    sees = {"matchFeatures": [{"feature": "rule.matched", "matchExpressions": {"v": is_in("1"), "l": EXISTS}}]}
    gives = rule(labels={"l": "x"}, vars={"v": "1"})
    late, early = rule(labels={"late": "yes"}, **sees), rule(labels={"early": "yes"}, **sees)
    outcome = plan(sources(c=[late], b=[early, gives, late], a=[early]), FeatureSet())
    assert outcome.labels == {"l": "x", "late": "yes"}
    assert outcome.matched == {"l": "x", "v": "1", "late": "yes"}


def test_before_any_rule_has_matched_there_is_no_feature_of_matched_rules():
    asks = rule(labels={"a": "b"}, matchFeatures=[{"feature": "rule.matched", "matchExpressions": {"x": GONE}}])
    assert plan(sources(a=[asks]), FeatureSet()).labels == {}
    assert plan(sources(a=[rule(vars={"v": "1"}), asks]), FeatureSet()).labels == {"a": "b"}


def test_a_rule_that_can_not_be_carried_out_stops_no_other():
    wrong = rule(
        name="speedy", labels={"x": "y"}, annotations={"x": "y"}, taints=[{"key": "a/b", "effect": "NoSchedule"}],
        matchFeatures=[{"feature": "a.b", "matchExpressions": {"speed": {"op": "Gt", "value": ["fast"]}}}],
    )  # fmt: skip
    features = FeatureSet(attributes={"a.b": {"speed": "10"}})
    outcome = plan(
        sources(a=[rule(labels={"one": "1"}), wrong, rule(labels={"two": "2"})], b=[rule(annotations={"n": "3"})]),
        features,
    )
    assert outcome.labels == {"one": "1", "two": "2"}
    assert outcome.annotations == {"n": "3"}
    assert outcome.taints == ()
    (failure,) = outcome.failures
    assert (failure.source, failure.index, failure.rule) == ("a", 1, "speedy")
    assert "Gt [fast]" in failure.error.what


def test_all_that_rules_give():
    taint = {"key": "example.com/gpu", "value": "x", "effect": "NoSchedule"}
    both = [
        rule(taints=[taint], extendedResources={"r": "1"}, annotations={"a": "1"}),
        rule(taints=[taint], annotations={"a": "2"}),
    ]
    outcome = plan(sources(a=both), FeatureSet())
    assert outcome.extended_resources == {"r": "1"}
    assert outcome.annotations == {"a": "2"}
    assert [(one.key, one.value, one.effect) for one in outcome.taints] == [("example.com/gpu", "x", "NoSchedule")]


@pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case["name"])
def test_rules_that_vendors_ship(case):
    read = read_rules({"spec": {"rules": case["rules"]}})
    assert read.flaws == ()
    features = feature_set(read_feature({"spec": {"features": case["features"]}}).spec.features)
    outcome = plan([RuleSource(name="shipped", rules=read.rules)], features)
    outputs = settle(outcome, features, OutputLimits())
    assert outcome.failures == ()
    assert outputs.rejected == ()
    assert outputs.labels == case["labels"]
    assert outputs.extended_resources == case.get("resources", {})


def group(*rules: dict[str, Any]) -> GroupSource:
    return GroupSource(name="g", rules={place: convert(rule, MatchingRule) for place, rule in enumerate(rules)})


def test_a_node_belongs_to_a_group_that_has_a_rule_for_it():
    rules = group(*({"name": name, "matchFeatures": [term("a.b", c=is_in(name))]} for name in ("one", "two")))
    assert belongs(rules, FeatureSet(attributes={"a.b": {"c": "two"}})).matched
    assert not belongs(rules, FeatureSet(attributes={"a.b": {"c": "three"}})).matched
    assert not belongs(group(), FeatureSet()).matched


def test_rules_of_a_group_see_variables_of_those_before():
    setting = {"name": "sets", "vars": {"seen": "1"}, "matchFeatures": [term("a.b", c={"op": "Exists"})]}
    asking = {"name": "asks", "matchFeatures": [term("rule.matched", seen=is_in("1"))]}
    found = belongs(group(setting, asking), FeatureSet(attributes={"a.b": {"c": "1"}}))
    assert found.matched
    assert not belongs(group(asking), FeatureSet(attributes={"a.b": {"c": "1"}})).matched


def test_a_wrong_rule_of_a_group_is_told_of_and_the_others_count():
    wrong = {"name": "wrong", "matchFeatures": [term("a.b", c={"op": "Gt", "value": ["x"]})]}
    found = belongs(group(wrong, {"name": "all"}), FeatureSet(attributes={"a.b": {"c": "1"}}))
    assert found.matched
    assert [(one.source, one.index, one.rule) for one in found.failures] == [("g", 0, "wrong")]
