"""Node feature discovery's table of expressions, row by row: the operator, the element's value, and what comes of it."""

from __future__ import annotations

import pytest

from kgpu.discovery.rules.model import RuleError
from kgpu.discovery.rules.operators import ROWS, flag_holds, flaws, holds
from kgpu.formats.crd.nodefeatures import OPERATORS, MatchExpression

ABSENT = None
ERROR = "error"
V = "version"

# Of one value (TestEvaluateMatchExpression): operator, values, element, result.
SINGLE = [
    ("", [], ABSENT, True), ("", [], "2", True),
    ("In", ["1"], ABSENT, False), ("In", ["1"], "2", False), ("In", ["1", "2", "3"], ABSENT, False),
    ("In", ["1", "2", "3"], "2", True),
    ("NotIn", ["2"], ABSENT, False), ("NotIn", ["1"], "2", True), ("NotIn", ["1", "2", "3"], ABSENT, False),
    ("NotIn", ["1", "2", "3"], "2", False),
    ("InRegexp", ["val-[0-9]$"], ABSENT, False), ("InRegexp", ["val-[0-9]$"], "val-1", True),
    ("InRegexp", ["val-[0-9]$"], "val-12", False), ("InRegexp", ["val-[0-9]$", "al-[1-9]"], "val-12", True),
    ("Exists", [], ABSENT, False), ("Exists", [], "", True),
    ("DoesNotExist", [], ABSENT, True), ("DoesNotExist", [], "false", False),
    ("Gt", ["2"], ABSENT, False), ("Gt", ["2"], "2", False), ("Gt", ["2"], "3", True), ("Gt", ["-10"], "-3", True),
    ("Lt", ["2"], ABSENT, False), ("Lt", ["2"], "2", False), ("Lt", ["-10"], "-3", False), ("Lt", ["2"], "1", True),
    ("GtLt", ["1", "10"], ABSENT, False), ("GtLt", ["1", "10"], "1", False), ("GtLt", ["1", "10"], "10", False),
    ("GtLt", ["1", "10"], "2", True),
    ("IsTrue", [], ABSENT, False), ("IsTrue", [], "true", True), ("IsTrue", [], "false", False),
    ("IsFalse", [], ABSENT, False), ("IsFalse", [], "false", True), ("IsFalse", [], "true", False),
    # what can't be
    ("", ["1"], "val", ERROR), ("In", [], "val", ERROR), ("NotIn", [], "val", ERROR), ("InRegexp", [], "val", ERROR),
    ("InRegexp", ["("], "val", ERROR), ("Exists", ["1"], ABSENT, ERROR), ("Exists", ["1"], "x", ERROR),
    ("DoesNotExist", ["1"], ABSENT, ERROR), ("DoesNotExist", ["1"], "x", ERROR),
    ("Gt", [], "1", ERROR), ("Gt", ["1", "2"], "1", ERROR), ("Gt", [""], "1", ERROR), ("Gt", ["2"], "3a", ERROR),
    ("Lt", [], "1", ERROR), ("Lt", ["1", "2", "3"], "1", ERROR), ("Lt", ["a"], "1", ERROR), ("Lt", ["2"], "1.0", ERROR),
    ("GtLt", [], "1", ERROR), ("GtLt", ["1"], "1", ERROR), ("GtLt", ["2", "1"], "1", ERROR),
    ("GtLt", ["1", "2", "3"], "1", ERROR), ("GtLt", ["a", "2"], "1", ERROR), ("GtLt", ["1", "10"], "1.0", ERROR),
    ("IsTrue", ["1"], "true", ERROR), ("IsFalse", ["1", "2"], "false", ERROR), ("non-existent-op", ["1"], "1", ERROR),
    # a wrong expression about what a node has not is silent
    ("In", [], ABSENT, False), ("InRegexp", ["("], ABSENT, False), ("Gt", ["a"], ABSENT, False),
    ("IsTrue", ["1"], ABSENT, False),
]  # fmt: skip

# Of attributes (TestEvaluateMatchExpressionValues): operator, values, type, and results by the element's value.
ATTRIBUTES: list[tuple[str, list[str], str, dict[str | None, object]]] = [
    ("In", ["1", "2"], "", {ABSENT: False, "3": False, "2": True}),
    ("NotIn", ["1", "2"], "", {ABSENT: False, "3": True, "2": False}),
    ("InRegexp", ["1", "2"], "", {ABSENT: False}),
    ("InRegexp", ["1", "[0-8]"], "", {"9": False, "2": True}),
    ("Gt", ["2"], "", {ABSENT: False, "2": False, "3": True, "str": ERROR}),
    ("Gt", ["2.0"], "", {"3": ERROR}),
    ("Gt", ["2"], V, {ABSENT: False, "2": False, "3": True}),
    ("Gt", ["2.0"], V, {"2.0": False, "2.1": True}),
    ("Gt", ["2.0.1"], V, {"2.0.1": False, "2.0.2": True, "str": ERROR}),
    ("Ge", ["2"], "", {ABSENT: False, "2": True, "3": True, "str": ERROR}),
    ("Ge", ["2.0"], "", {"3": ERROR}),
    ("Ge", ["2"], V, {ABSENT: False, "2": True, "3": True, "1": False}),
    ("Ge", ["2.0"], V, {ABSENT: False, "2.0": True, "2.1": True, "1.9": False}),
    ("Ge", ["2.0.1"], V, {ABSENT: False, "2.0.1": True, "2.0.2": True, "2.0.0": False, "str": ERROR}),
    ("Lt", ["2"], "", {ABSENT: False, "2": False, "1": True, "str": ERROR}),
    ("Lt", ["2.0"], "", {"1": ERROR}),
    ("Lt", ["2"], V, {ABSENT: False, "2": False, "1": True}),
    ("Lt", ["2.0"], V, {ABSENT: False, "2.0": False, "1.9": True}),
    ("Lt", ["2.0.1"], V, {ABSENT: False, "2.0.1": False, "2.0.0": True, "str": ERROR}),
    ("Le", ["2"], "", {ABSENT: False, "2": True, "1": True, "str": ERROR, "1.0": ERROR}),
    ("Le", ["2"], V, {ABSENT: False, "2": True, "1": True, "3": False}),
    ("Le", ["2.0"], V, {ABSENT: False, "2.0": True, "1.0": True, "2.1": False}),
    ("Le", ["2.0.1"], V, {ABSENT: False, "2.0.1": True, "2.0.0": True, "2.0.2": False, "str": ERROR}),
    ("GtLt", ["-10", "10"], "", {ABSENT: False, "11": False, "-11": False, "1": True, "str": ERROR, "5.0": ERROR}),
    ("GtLt", ["1", "10"], V, {ABSENT: False, "11": False, "1": False, "2": True, "0": False}),
    ("GtLt", ["1.0", "10.0"], V, {ABSENT: False, "10.1": False, "1.0": False, "1.1": True, "0.9": False}),
    ("GtLt", ["1.0.1", "10.0.1"], V,
     {ABSENT: False, "10.0.1": False, "1.0.1": False, "1.0.2": True, "0.0.9": False}),
    ("GtLt", ["1.0.1", "10.0.1"], "", {"str": ERROR}),
    ("GtLt", ["10", "1"], V, {"5": False}),
    ("GeLe", ["-10", "10"], "", {ABSENT: False, "10": True, "-11": False, "1": True, "str": ERROR, "1.0": ERROR}),
    ("GeLe", ["1", "10"], V, {ABSENT: False, "10": True, "-11": ERROR, "1": True, "0": False}),
    ("GeLe", ["1.0", "10.0"], V, {ABSENT: False, "10.0": True, "10.1": False, "1.1": True, "0.9": False}),
    ("GeLe", ["1.0.1", "10.0.1"], V,
     {ABSENT: False, "10.0.1": True, "10.0.2": False, "1.0.2": True, "0.0.9": False, "str": ERROR}),
    ("IsTrue", [], "", {ABSENT: False, "1": False, "true": True}),
    ("IsFalse", [], "", {"true": False, "false": True}),
    ("Exists", [], "", {ABSENT: False, "1": True}),
    ("DoesNotExist", [], "", {ABSENT: True, "1": False}),
    # what the sheet says of numbers and versions beside the table
    ("Gt", ["0"], "", {"0x1": ERROR, "+5": True, "9223372036854775807": True, "9223372036854775808": ERROR, "1_0": ERROR}),
    ("Ge", ["6.8"], V, {"6.8.0-45-generic": True, "v6.9": True, "5.15.0-1": False, "6.8.0-01": ERROR, "6.8.0.1": ERROR,
                        "6.8_rc": ERROR, "": ERROR}),
    ("Gt", ["1"], "semver", {ABSENT: False, "2": ERROR}),
]  # fmt: skip


def came_of(op: str, values: list[str], kind: str, element: str | None) -> object:
    try:
        return holds(MatchExpression(op=op, value=tuple(values), type=kind), element)
    except RuleError:
        return ERROR


@pytest.mark.parametrize(("op", "values", "element", "result"), SINGLE)
def test_a_single_value(op, values, element, result):
    assert came_of(op, values, "", element) == result


@pytest.mark.parametrize(
    ("op", "values", "kind", "element", "result"),
    [(op, values, kind, element, result) for op, values, kind, by in ATTRIBUTES for element, result in by.items()],
)
def test_an_attribute(op, values, kind, element, result):
    assert came_of(op, values, kind, element) == result


@pytest.mark.parametrize("op", [op for op in OPERATORS if op not in {"Exists", "DoesNotExist"}])
def test_a_flag_has_no_value_and_its_expressions_are_not_even_checked(op):
    for values in ((), ("foo",), ("(", "x", "y")):
        assert flag_holds(MatchExpression(op=op, value=values), there=True) is False


@pytest.mark.parametrize(
    ("op", "there", "result"),
    [("", False, True), ("", True, True), ("Exists", False, False), ("Exists", True, True),
     ("DoesNotExist", False, True), ("DoesNotExist", True, False)],
)  # fmt: skip
def test_a_flag(op, there, result):
    assert flag_holds(MatchExpression(op=op), there=there) is result


def test_every_operator_has_a_row():
    assert set(ROWS) == {"", *OPERATORS}


@pytest.mark.parametrize(
    ("op", "values", "kind", "said"),
    [
        ("In", [], "", "at least one value with In"),
        ("Gt", ["1", "2"], "", "one value with Gt"),
        ("GtLt", ["1"], "", "two values with GtLt"),
        ("Exists", ["x"], "", "no value with Exists"),
        ("InRegexp", ["a", "(", "b{2}{3}"], "", "a ) after each ("),
        ("GtLt", ["2", "1"], "", "the lesser value first"),
        ("GtLt", ["2", "1"], V, "the lesser value first"),
        ("Gt", ["2.0"], "", "digits, maybe with a sign"),
        ("Gt", ["x"], V, "such as 1, 1.2 or 1.2.3"),
        ("Gt", ["1"], "semver", "version, or no type"),
        ("In", ["1"], V, "a type with Gt"),
        ("GT", ["1"], "", "one of In, NotIn"),
    ],
)
def test_what_is_wrong_is_found_without_any_element(op, values, kind, said):
    found = list(flaws(MatchExpression(op=op, value=tuple(values), type=kind)))
    assert said in found[0].expected
    assert all(error.what and error.remedy for error in found)


def test_every_wrong_value_is_told_of():
    assert len(list(flaws(MatchExpression(op="InRegexp", value=("(", "[", "ok"))))) == 2
    assert len(list(flaws(MatchExpression(op="GtLt", value=("a", "b"))))) == 2


GOOD = [row for row in SINGLE if row[3] is True]


@pytest.mark.parametrize(("op", "values", "element", "result"), GOOD)
def test_nothing_is_wrong_with_what_is_carried_out(op, values, element, result):
    expected = ["has no such operator" in error.what for error in flaws(MatchExpression(op=op, value=tuple(values)))]
    assert expected == []
