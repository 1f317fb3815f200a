"""Hostile schemas, expressions and objects: answered with complaints, never with another error, and soon.

The bounds on time are those of the test run: what is tested is that nothing grows beyond all bounds.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.lab.embedded.cel import program as cel
from kgpu.lab.embedded.cel.patterns import go_pattern
from kgpu.lab.embedded.crd.rules import rules_of
from kgpu.lab.embedded.crd.values import SchemaChecks
from kgpu.lab.embedded.status import FieldError
from tests.budget import tries
from tests.lab.embedded.crd.asking import Api
from tests.lab.embedded.crd.cases import SCHEMAS, crd, obj, rules, version

Raw = dict[str, Any]
SEVERAL = tries(150, suppress_health_check=list(HealthCheck))
THING: Raw = {
    "apiVersion": "crds.test.kgpu.dev/v1", "kind": "Thing", "metadata": {"name": "x", "namespace": "default"},
}  # fmt: skip
KEYS = [
    "type", "format", "properties", "items", "additionalProperties", "required", "default", "enum", "nullable", "pattern",
    "minimum", "maxLength", "minItems", "multipleOf", "allOf", "anyOf", "oneOf", "not", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-validations", "$ref", "id", "uniqueItems",
]  # fmt: skip
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null", "", "x"])
TEXT = st.sampled_from(
    ["", "a", "metadata", "spec", "name", "a-b", "ü", "^a", "(", "map", "set", "self.a == 1", "date-time"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)
RULE = st.fixed_dictionaries(
    {"rule": TEXT},
    optional={"message": TEXT, "messageExpression": TEXT, "fieldPath": TEXT, "optionalOldSelf": st.booleans()},
)


def _schemas(inner: st.SearchStrategy[Raw]) -> st.SearchStrategy[Raw]:
    several = st.lists(inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES, "format": TEXT, "properties": st.dictionaries(TEXT, inner, max_size=3), "items": inner,
            "additionalProperties": inner | st.booleans(), "required": st.lists(TEXT, max_size=2), "default": JSON,
            "enum": st.lists(JSON, max_size=2), "nullable": st.booleans(), "pattern": TEXT,
            "minimum": st.integers(-5, 5), "maxLength": st.integers(-1, 5), "minItems": st.integers(-1, 2),
            "multipleOf": st.sampled_from([0, -1, 2, 0.5]), "allOf": several, "anyOf": several, "oneOf": several,
            "not": inner, "x-kubernetes-int-or-string": st.booleans(), "uniqueItems": st.booleans(),
            "x-kubernetes-preserve-unknown-fields": st.booleans(), "x-kubernetes-embedded-resource": st.booleans(),
            "x-kubernetes-list-type": TEXT, "x-kubernetes-list-map-keys": st.lists(TEXT, max_size=2),
            "x-kubernetes-map-type": TEXT, "x-kubernetes-validations": st.lists(RULE, max_size=2), "$ref": TEXT,
        },
    )  # fmt: skip


SCHEMA = st.recursive(st.fixed_dictionaries({}, optional={"type": TYPES}), _schemas, max_leaves=8)


@pytest.fixture(scope="module")
def api() -> Api:
    found = Api()
    for definition in SCHEMAS.values():
        found.install(definition)
    return found


@SEVERAL
@given(schema=SCHEMA, body=JSON)
def test_any_schema_is_taken_or_refused_and_then_holds_any_object(schema: Raw, body: Any) -> None:
    api = Api()
    definition = crd("things", [version(schema)])
    found = api.create(definition)
    assert found["code"] in {201, 400, 422}
    if found["code"] == 201:
        api.install(definition)
        thing = {**THING, "spec": body, "a": body}
        made = api.create(thing)
        assert made["code"] in {201, 400, 422}
        if made["code"] == 201:
            assert api.update(thing, made["object"])["code"] in {200, 422}


@SEVERAL
@given(definition=JSON.filter(lambda one: isinstance(one, dict)), key=st.sampled_from(KEYS), value=JSON)
def test_a_crd_of_the_wrong_shape_is_refused_in_words(definition: Raw, key: str, value: Any) -> None:
    whole = crd("things", [version({"type": "object", "properties": {"spec": {"type": "object", key: value}}})])
    assert Api().create(whole)["code"] in {201, 400, 422}
    assert Api().create({**whole, "spec": {**whole["spec"], **definition}})["code"] in {201, 400, 422}
    assert Api().create({**whole, "spec": definition})["code"] in {400, 422}


@SEVERAL
@given(plural=st.sampled_from(sorted(SCHEMAS)), spec=JSON, status=JSON)
def test_an_object_of_the_wrong_shape_is_refused_in_words(api: Api, plural: str, spec: Any, status: Any) -> None:
    kind = SCHEMAS[plural]["spec"]["names"]["kind"]
    thing = {**THING, "kind": kind, "spec": spec, "status": status}
    before = copy.deepcopy(thing)
    assert api.create(thing)["code"] in {201, 400, 422}
    assert thing == before


NAMES = ["self", "oldSelf", "self.a", "self.list", "1", "'a'", "[]", "{}", "null", "true", "x"]
WORDS = [
    *NAMES,
    "+",
    "==",
    "&&",
    "||",
    "?",
    ":",
    "(",
    ")",
    "[",
    "]",
    ".",
    ",",
    "all",
    "exists",
    "map",
    "size",
    "has",
    "in",
    "!",
]
VARIABLES: dict[str, Any] = {"self": cel.Type.DYN, "oldSelf": cel.Type.DYN}


@tries(400)
@given(words=st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=10), value=JSON)
def test_any_expression_is_a_value_or_an_error(words: list[str], value: Any) -> None:
    found = cel.Environment(VARIABLES).compile(" ".join(words))
    if isinstance(found, cel.CelError):
        assert str(found)
    else:
        found.evaluate({"self": value, "oldSelf": value})


LONG = list(range(3000))


@pytest.mark.parametrize(
    "expression",
    [
        "self.all(a, self.all(b, self.all(c, self.all(d, a + b + c + d >= 0))))",
        "self.map(a, self.map(b, self.map(c, [a, b, c]))).size() > 0",
        "self.exists(a, self.exists(b, self.exists(c, a + b + c < 0)))",
        "self.filter(a, self.filter(b, self.exists(c, c < 0)).size() >= 0).size() >= 0",
    ],
)
def test_an_expression_that_would_go_on_for_ever_is_cut_off(expression: str) -> None:
    program = cel.Environment({"self": cel.Type.List(cel.Type.INT)}).compile(expression)
    assert isinstance(program, cel.CompiledExpression)
    assert str(program.evaluate({"self": LONG})) == "operation cancelled: actual cost limit exceeded"


def test_a_rule_that_is_cut_off_refuses_the_object() -> None:
    rule = "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"
    found = rules_of(rules({"type": "array", "items": {"type": "integer"}}, rule))
    assert found is not None
    (error,) = found.validate(LONG, path="spec")
    assert isinstance(error, FieldError)
    assert "actual cost limit exceeded" in str(error)


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|aa)+$", "(.*a){20}b", "(a?){30}a{30}", "^(([a-z])+.)+[A-Z]([a-z])+$"]
)
def test_a_pattern_takes_time_in_proportion_to_the_text(pattern: str) -> None:
    assert not go_pattern(pattern).found_in("a" * 5000 + "!c") or pattern.startswith("(a?)")
    schema = {"type": "string", "pattern": pattern}
    assert len(SchemaChecks(schema).validate("a" * 28 + "!")) <= 1
    expression = f"self.find('{pattern}') == '' || self.matches('{pattern}')"
    program = cel.Environment({"self": cel.Type.STRING}).compile(expression)
    assert isinstance(program, cel.CompiledExpression), program
    program.evaluate({"self": "a" * 5000 + "!"})


@pytest.mark.parametrize("depth", [50, 400, 900])
def test_a_deep_expression_is_compiled_or_refused(depth: int) -> None:
    for text in (
        "(" * depth + "1" + ")" * depth,
        "[" * depth + "]" * depth,
        "!" * depth + "true",
        "1" + " + 1" * depth,
    ):
        found = cel.Environment({}).compile(text)
        if isinstance(found, cel.CompiledExpression):
            found.evaluate({})
        else:
            assert str(found)


@pytest.mark.parametrize("depth", [20, 90, 150, 300])
def test_a_deep_schema_is_taken_or_refused_and_holds_a_deep_object(depth: int) -> None:
    schema: Raw = {"type": "string"}
    body: Any = "x"
    for _ in range(depth):
        schema, body = obj(a=schema), {"a": body}
    api = Api()
    definition = crd("things", [version(schema)])
    found = api.create(definition)
    assert found["code"] in {201, 400, 422}
    if found["code"] == 201:
        api.install(definition)
        made = api.create({**THING, **body})
        assert made["code"] == 201
        assert made["object"]["a"] == body["a"]
    assert (found["code"] == 201) == (depth <= 90)


@pytest.mark.parametrize(
    "expression",
    [
        "dyn([optional.of(1)]).max() == 1",
        "[dyn(optional.of(1))].max() == 1",
        "[{'a': optional.of(1)}].indexOf(2) == 1",
        "[1, 2].map(x, optional.of(x)).indexOf(2) == 1",
        "'%s'.format([self.?a]) == 'a'",
        "[true ? optional.of(1) : dyn(1)].indexOf(1) == 1",
        "{'a': 1}.transformMap(k, v, optional.of(v)).map(k, k).indexOf('a') == 0",
        "dyn([[optional.of([1])]]).sum() == 1",
        "cel.bind(o, [self.?a], [o].lastIndexOf(1)) == 0",
    ],
)
def test_an_optional_value_in_a_list_is_refused_where_it_would_end_the_process(expression: str) -> None:
    compiled = cel.Environment({"self": cel.Type.DYN}).compile(expression)
    assert isinstance(compiled, cel.CompiledExpression)
    assert str(compiled.evaluate({"self": {"a": [1]}})) == "no such overload"


@pytest.mark.parametrize(
    "expression",
    [
        "[?self.?a].indexOf([1]) == 0",
        "[1].map(x, self.?b.orValue(x)).max() == 1",
        "[self.?a.optMap(x, x.size()).orValue(3)].indexOf(1) == 0",
        "[self.?a.hasValue()].isSorted()",
        "{?'b': self.?b}.map(k, k).indexOf('b') == -1",
        "cel.bind(o, self.?b, [1].indexOf(o.orValue(1))) == 0",
        "[optional.of(1)].exists(x, x.hasValue())",
    ],
)
def test_optional_values_that_are_taken_as_such_are_no_matter(expression: str) -> None:
    compiled = cel.Environment({"self": cel.Type.DYN}).compile(expression)
    assert isinstance(compiled, cel.CompiledExpression)
    assert compiled.evaluate({"self": {"a": [1]}}) is True


def test_an_optional_value_as_result_is_an_error() -> None:
    compiled = cel.Environment({"self": cel.Type.DYN}).compile("[self.?a]")
    assert isinstance(compiled, cel.CompiledExpression)
    assert isinstance(compiled.evaluate({"self": {"a": 1}}), cel.CelError)
