"""Node feature discovery's table of terms: sets of expressions and names over flags, attributes and instances."""

from __future__ import annotations

import pytest

from kgpu.discovery.rules.matching import ElementsOfFeature, match_expressions, match_name
from kgpu.discovery.rules.model import RuleError
from kgpu.formats.crd.nodefeatures import MatchExpression

ERROR = "error"


def e(op, *values):
    return MatchExpression(op=op, value=values)


FOO_NOT_BAR = {"foo": e("DoesNotExist"), "bar": e("Exists")}
THREE = {"foo": e("Exists"), "bar": e("In", "val", "wal"), "baz": e("Gt", "10")}
TWO = {"foo": e("Exists"), "bar": e("Lt", "10")}
BOTH = {"flags": {"bar", "baz", "qux"}, "attributes": {"foo": "1", "bar": "2", "quux": "3"}}

# expressions, what there is, the matched elements (None: no match)
EXPRESSIONS = [
    # flags
    ({}, {"flags": set()}, []), ({}, {"flags": {"foo"}}, []),
    (FOO_NOT_BAR, {"flags": {"bar", "baz", "buzz"}}, [{"Name": "bar"}, {"Name": "foo"}]),
    (FOO_NOT_BAR, {"flags": {"foo", "bar", "baz"}}, None),
    ({"foo": e("In", "bar"), "bar": e("Exists")}, {"flags": {"bar", "baz"}}, None),
    ({"foo": e("Exists", "bar"), "bar": e("Exists")}, {"flags": {"bar"}}, ERROR),
    ({"foo": e("Exists", "val")}, {"flags": {"bar", "baz"}}, ERROR),
    # attributes
    ({}, {"attributes": {}}, []), ({}, {"attributes": {"foo": "bar"}}, []),
    (THREE, {"attributes": {"bar": "val"}}, None),
    (THREE, {"attributes": {"foo": "1", "bar": "val", "baz": "123", "buzz": "light"}},
     [{"Name": "bar", "Value": "val"}, {"Name": "baz", "Value": "123"}, {"Name": "foo", "Value": "1"}]),
    (THREE, {"attributes": {"foo": "1", "bar": "val", "baz": "123.0"}}, ERROR),
    ({"bar": e("In")}, {"attributes": {"foo": "1", "bar": "val"}}, ERROR),
    # instances
    ({}, {"instances": []}, None), ({}, {"instances": [{}]}, [{}]), ({}, {}, None),
    (TWO, {"instances": [{"foo": "1"}, {"bar": "1"}]}, None),
    (TWO, {"instances": [{"foo": "1"}, {"foo": "2", "bar": "1"}]}, [{"foo": "2", "bar": "1"}]),
    ({"bar": e("Lt", "10")}, {"instances": [{"foo": "1"}, {"bar": "0x1"}]}, ERROR),
    ({"foo": e("In")}, {"instances": [{"foo": "1"}, {"foo": "2", "bar": "1"}]}, ERROR),
    # several types of one name
    ({}, {"flags": set(), "attributes": {}, "instances": []}, []),
    ({"foo": e("In", "1"), "baz": e("Exists")}, BOTH, [{"Name": "baz"}, {"Name": "foo", "Value": "1"}]),
    ({"foo": e("In", "1"), "bar": e("Exists")}, BOTH,
     [{"Name": "bar"}, {"Name": "bar", "Value": "2"}, {"Name": "foo", "Value": "1"}]),
    ({"bar": e("NotIn", "1", "3")}, BOTH, [{"Name": "bar", "Value": "2"}]),
    ({"bar": e("NotIn", "2")}, BOTH, None),
    ({"xyzzy": e("DoesNotExist")}, BOTH, [{"Name": "xyzzy"}, {"Name": "xyzzy", "Value": ""}]),
    ({"quux": e("DoesNotExist")}, BOTH, None),
    ({"foo": e("In", "1"), "bar": e("Exists")},
     {**BOTH, "instances": [{"foo": "1", "bar": "2"}, {"foo": "10", "bar": "20"}]},
     [{"Name": "bar"}, {"Name": "bar", "Value": "2"}, {"Name": "foo", "Value": "1"}, {"bar": "2", "foo": "1"}]),
    # the instances alone may match
    ({"bus": e("In", "pci")}, {**BOTH, "instances": [{"bus": "pci"}]}, [{"bus": "pci"}]),
]  # fmt: skip

KEYS = {"flags": {"key1", "key2"}}
VALUES = {"attributes": {"key1": "val1", "key2": "val2"}}
SOME = [{"foo": "1"}, {"bar": "2"}, {"foo": "3", "baz": "4"}]

NAMES = [
    (e(""), {}, []), (e(""), {"flags": set()}, []), (e(""), {"attributes": {}}, []), (e(""), {"instances": []}, []),
    (e(""), KEYS, [{"Name": "key1"}, {"Name": "key2"}]), (e("Exists"), KEYS, [{"Name": "key1"}, {"Name": "key2"}]),
    (e("DoesNotExist"), KEYS, []), (e("In", "key1"), KEYS, [{"Name": "key1"}]), (e("In", "key3"), KEYS, []),
    (e("NotIn", "key1"), KEYS, [{"Name": "key2"}]), (e("Exists", "key1"), KEYS, ERROR), (e("In"), KEYS, ERROR),
    (e("Exists"), VALUES, [{"Name": "key1", "Value": "val1"}, {"Name": "key2", "Value": "val2"}]),
    (e("DoesNotExist"), VALUES, []), (e("In", "key1"), VALUES, [{"Name": "key1", "Value": "val1"}]),
    (e("In", "key3"), VALUES, []), (e("NotIn", "key1"), VALUES, [{"Name": "key2", "Value": "val2"}]),
    (e("NotIn"), VALUES, ERROR),
    (e("In", "foo"), {"instances": SOME[1:2]}, []), (e("In", "foo"), {"instances": SOME}, [SOME[0], SOME[2]]),
    (e("In"), {"instances": SOME[:1]}, ERROR),
    (e("In", "key2"), {**KEYS, **VALUES, "instances": [{"key1": "1"}, {"key1": "3", "key2": "4"}]},
     [{"Name": "key2"}, {"Name": "key2", "Value": "val2"}, {"key1": "3", "key2": "4"}]),
    (e("InRegexp", "^key[12]$"), KEYS, [{"Name": "key1"}, {"Name": "key2"}]),
]  # fmt: skip


def elements(given):
    return ElementsOfFeature(
        frozenset(given["flags"]) if "flags" in given else None, given.get("attributes"), given.get("instances")
    )


@pytest.mark.parametrize(("expressions", "given", "matched"), EXPRESSIONS)
def test_expressions(expressions, given, matched):
    try:
        found = match_expressions(expressions, elements(given))
    except RuleError:
        found = ERROR
    assert found == matched


@pytest.mark.parametrize(("expression", "given", "matched"), NAMES)
def test_names(expression, given, matched):
    try:
        found = match_name(expression, elements(given))
    except RuleError:
        found = ERROR
    assert found == matched


def test_what_does_not_match_decides_before_what_is_wrong():
    """The replaced program says one or the other, as its map happens to be ordered."""
    expressions = {"speed": e("Gt", "100"), "vendor": e("In", "10de")}
    assert match_expressions(expressions, elements({"attributes": {"speed": "unknown", "vendor": "8086"}})) is None
    assert match_expressions(expressions, elements({"instances": [{"speed": "-", "vendor": "8086"}]})) is None
    with pytest.raises(RuleError):
        match_expressions(expressions, elements({"instances": [{"speed": "-", "vendor": "10de"}]}))
