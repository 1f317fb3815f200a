"""What a Node may get: node feature discovery's rules on domains, names and values, row by row."""

from __future__ import annotations

import pytest

from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.rules.model import RuleError, RulesOutcome
from kgpu.discovery.rules.outputs import OutputLimits, check, check_taint, dynamic, prefixed, settle
from kgpu.formats.crd.nodefeatures import RuleTaint

OWN = "feature.node.kubernetes.io"
NONE = OutputLimits()
STRICT = OutputLimits(denied_domains=("denied.com", "*.bad.com"), extra_domains=("ok.bad.com", "kubernetes.io"))


@pytest.mark.parametrize(
    ("kind", "key", "value", "limits", "refused"),
    [
        ("label", f"{OWN}/label", "true", NONE, ""), ("label", "vendor.io/label", "true", NONE, ""),
        ("label", f"sub.{OWN}/x", "", NONE, ""), ("label", "profile.node.kubernetes.io/x", "y", NONE, ""),
        ("label", "a.profile.node.kubernetes.io/x", "y", NONE, ""),
        ("label", "kubernetes.io/label", "true", NONE, "is in the domain kubernetes.io"),
        ("label", "node.kubernetes.io/label", "true", NONE, "is in the domain node.kubernetes.io"),
        ("label", "notkubernetes.io/label", "true", NONE, ""),
        ("label", f"{OWN}/label", "invalid value", NONE, "illegal value"), ("label", f"{OWN}/{'x' * 64}", "", NONE, "no name"),
        ("label", f"{OWN}/a b", "", NONE, "no name"), ("label", "UP.com/a", "", NONE, "no name"), ("label", "/a", "", NONE, "no name"),
        ("label", f"{OWN}/a", "x" * 64, NONE, "illegal value"), ("label", f"{OWN}/a", "-x", NONE, "illegal value"),
        ("label", "denied.com/x", "y", STRICT, "domain denied.com"), ("label", "sub.denied.com/x", "y", STRICT, ""),
        ("label", "very.bad.com/x", "y", STRICT, "domain very.bad.com"), ("label", "bad.com/x", "y", STRICT, ""),
        ("label", "ok.bad.com/x", "y", STRICT, ""), ("label", "kubernetes.io/x", "y", STRICT, ""),
        ("annotation", "kubernetes.io/x", "y", STRICT, "domain kubernetes.io"),
        ("label", f"{OWN}/gpu", "y", OutputLimits(allowed_labels="^cpu-"), "no list of allowed"),
        ("label", f"{OWN}/cpu-x", "y", OutputLimits(allowed_labels="^cpu-"), ""),
        ("annotation", f"{OWN}/feature", "any text, at all", NONE, ""), ("annotation", f"{OWN}/f", "x" * 1025, NONE, "1025 characters"),
        ("annotation", "kubernetes.io/denied", "true", NONE, "is in the domain"),
        ("extended resource", f"{OWN}/r", "123", NONE, ""), ("extended resource", "vendor.io/r", "4Gi", NONE, ""),
        ("extended resource", f"{OWN}/r", "invalid value", NONE, "has the value"),
        ("extended resource", "kubernetes.io/r", "123", NONE, "is in the domain"),
    ],
)  # fmt: skip
def test_a_name_and_value(kind, key, value, limits, refused):
    if not refused:
        check(kind, key, value, limits)
        return
    with pytest.raises(RuleError, match=refused):
        check(kind, key, value, limits)


@pytest.mark.parametrize(
    ("key", "value", "effect", "refused"),
    [
        (f"{OWN}/taint", "true", "NoSchedule", ""), ("vendor.io/x", "", "NoExecute", ""), ("vendor.io/x", "", "PreferNoSchedule", ""),
        ("invalid-key", "true", "NoSchedule", "has no domain"),
        ("invalid.kubernetes.io/invalid-key", "true", "NoSchedule", "is in the domain"), (f"{OWN}/taint", "true", "", "has the effect"),
        (f"{OWN}/taint", "true", "invalid-effect", "has the effect"), (f"{OWN}/taint", "a b", "NoSchedule", "illegal value"),
    ],
)  # fmt: skip
def test_a_taint(key, value, effect, refused):
    taint = RuleTaint(key=key, value=value, effect=effect)
    with pytest.raises(RuleError, match=refused or "is not set"):
        check_taint(taint, NONE)
    if not refused:
        check_taint(taint, OutputLimits(taints=True))


@pytest.mark.parametrize(
    ("value", "found"),
    [("plain", "plain"), ("@cpu.security.sgx.epc", "42"), ("@cpu.security.nope", None), ("@cpu.security", None), ("@", None),
     ("@flag.only.x", None), ("", "")],
)  # fmt: skip
def test_dynamic_values(value, found):
    features = FeatureSet(attributes={"cpu.security": {"sgx.epc": "42"}}, flags={"flag.only": frozenset({"x"})})
    if found is None:
        with pytest.raises(RuleError, match="names no attribute"):
            dynamic(value, features)
    else:
        assert dynamic(value, features) == found


def test_a_name_without_a_domain_gets_one_and_the_one_that_had_it_wins():
    assert prefixed({"a": "1", "b": "2", f"{OWN}/a": "3", "x.io/c": "4"}) == {
        f"{OWN}/a": "3",
        f"{OWN}/b": "2",
        "x.io/c": "4",
    }


def test_one_that_is_refused_takes_no_other_along():
    outcome = RulesOutcome(
        labels={"a": "1", "kubernetes.io/b": "2", "c": "@a.b.c", "d": "@a.b.none"},
        annotations={"e": "@a.b.none", "f": "x" * 2000},
        extended_resources={"g": "@a.b.c", "h": "much"},
        taints=(RuleTaint(key="x.io/a", effect="NoSchedule"), RuleTaint(key="b", effect="NoSchedule")),
    )
    features = FeatureSet(attributes={"a.b": {"c": "7"}})
    outputs = settle(outcome, features, OutputLimits(taints=True), {"a": "of the node", "own": "@a.b.c"})
    assert outputs.labels == {f"{OWN}/a": "1", f"{OWN}/c": "7", f"{OWN}/own": "7"}
    assert outputs.annotations == {f"{OWN}/e": "@a.b.none"}
    assert outputs.extended_resources == {f"{OWN}/g": "7"}
    assert [taint.key for taint in outputs.taints] == ["x.io/a"]
    assert sorted((one.kind, one.key) for one in outputs.rejected) == [
        ("annotation", f"{OWN}/f"), ("extended resource", f"{OWN}/h"), ("label", f"{OWN}/d"), ("label", "kubernetes.io/b"),
        ("taint", "b"),
    ]  # fmt: skip
