"""Policies and bindings that are written, right and wrong: what the server answers. Rows of data, no expectations."""

from __future__ import annotations

from typing import Any

from tests.lab.embedded.policy.cases import MAP_PARAMS, Raw, constraints, policy, rule

MAPS = constraints(rule("configmaps"))


def vap(spec: Raw, name: str = "written") -> Raw:
    return {"kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec}


def binding(**spec: Any) -> Raw:
    found = {"policyName": "p", "validationActions": ["Deny"], **spec}
    return {
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "written"},
        "spec": {key: one for key, one in found.items() if one is not None},
    }  # fmt: skip


def ruled(**found: Any) -> Raw:
    return vap(policy("true", matchConstraints=constraints({**rule("configmaps"), **found})))


def told(text: str, **spec: Any) -> Raw:
    return vap(policy({"expression": "true", "messageExpression": text}, **spec))


def varied(**found: str) -> list[Raw]:
    return [{"name": name, "expression": text} for name, text in found.items()]


def referring(**found: Any) -> Raw:
    return binding(paramRef=found)


# Cases that somebody writes who may write policies and bindings, and read secrets of one namespace.
BOB = "bob: "
NOT_BOBS: Raw = {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}
CASES: dict[str, Raw] = {
    "right": vap(policy("object.metadata.name == 'a'")),
    "nothing": vap({}),
    "no rules": vap(policy("true", matchConstraints={})),
    "bad name": vap(policy("true"), "Not_A_Name"),
    "bad failure policy": vap(policy("true", failurePolicy="Perhaps")),
    "bad match policy": vap(policy("true", matchConstraints={**MAPS, "matchPolicy": "Nearly"})),
    "bad selector": vap(policy("true", matchConstraints={
        **MAPS, "objectSelector": {"matchExpressions": [{"key": "a b", "operator": "Maybe"}]},
        "namespaceSelector": {"matchLabels": {"a": "b c"}},
    })),
    "an empty rule": vap(policy("true", matchConstraints=constraints({}))),
    "everything and more": ruled(
        operations=["*", "CREATE"], apiGroups=["*", "a"], apiVersions=["*", "v1"], resources=["*", "pods"]
    ),
    "bad operation": ruled(operations=["READ"]),
    "bad scope": ruled(scope="Everywhere"),
    "empty texts": ruled(resources=["", "pods"], apiVersions=["", "v1"]),
    "subresources twice": ruled(resources=["pods/*", "pods/status", "*/scale", "deployments/scale"]),
    "all subresources and more": ruled(resources=["*/*", "pods"]),
    "names": ruled(resourceNames=["a", "a", "b/c", ".."]),
    "bad parameter kind": vap(policy("true", paramKind={"apiVersion": "A_b/V 1", "kind": "No Kind"})),
    "no parameter kind": vap(policy("true", paramKind={})),
    "parameter kind of three parts": vap(policy("true", paramKind={"apiVersion": "a/b/c", "kind": "K"})),
    "neither validations nor annotations": vap({"matchConstraints": MAPS}),
    "no expression": vap(policy({"message": "a"}, "  ")),
    "syntax": vap(policy("object.", "1 +", "(")),
    "undeclared": vap(policy("nobody.metadata.name == 'a'", "params.a == 1", "variables.a == 1", "self == 1")),
    "types": vap(policy("1 == 'a'", "object.metadata.name", "'a'", "1", "request", "null", "[1]", "{'a': 1}", "type(1)")),
    "types that last": vap(policy("duration('1s')", "timestamp('2026-01-01T00:00:00Z')", "b'a'", "1u", "1.5", "optional.of(1)")),
    "fields of the request": vap(policy("request.nothing == 1", "request.kind.nothing == ''", "request.name == 1",
                                        "request.userInfo.extra['a'][0] == 1")),
    "fields of the namespace": vap(policy("namespaceObject.metadata.ownerReferences == []", "namespaceObject.nothing == 1",
                                          "namespaceObject.metadata.labels['a'] == 1")),
    "the authorizer": vap(policy("authorizer.check('a')", "authorizer.group('a').allowed()",
                                 "authorizer.requestResource.nothing", "authorizer.path('/').check('get')")),
    "messages": vap(policy({"expression": "true", "message": " "}, {"expression": "true", "message": "a\nb"})),
    "message expressions": vap(policy(*({"expression": "true", "messageExpression": one} for one in (
        "1", " ", "object.a", "'a' + 1", "authorizer.path('/').check('get').reason()", "request.operation",
    )))),
    "a message expression of parameters": told("params.a + 'b'", **MAP_PARAMS),
    "bad reason": vap(policy({"expression": "true", "reason": "Whim"})),
    "conditions": vap(policy("true", matchConditions=[
        {"name": "a", "expression": "1"}, {"name": "a", "expression": "true"}, {"name": "", "expression": "true"},
        {"name": "a b", "expression": " "}, {"name": "c", "expression": "variables.a"},
        {"name": "d", "expression": " nobody.a "},
    ], variables=varied(a="true"))),
    "too many conditions": vap(policy("true", matchConditions=[
        {"name": f"a{number}", "expression": "true"} for number in range(65)
    ])),
    "variables": vap(policy("variables.a && variables.c == 1", "variables.none == 1", variables=[
        *varied(a="true", b="variables.a", c="variables.d", d="1", e="object."),
        {"name": "", "expression": "1"}, {"name": "in", "expression": "1"}, {"name": "a-b", "expression": "1"},
        {"name": "f", "expression": " "},
    ])),
    "types of variables": vap(policy(
        "variables.s == 1", "variables.l[0] == 'a'", "variables.m['a'] == 'b'", "variables.q == 1", "variables.o == 1",
        "variables.d", "has(variables.s)",
        variables=varied(s="'a'", l="[1]", m="{'a': 1}", q="quantity('1')", o="object.?a", d="object.a"),
    )),
    "a variable in a message": told("variables.s", variables=varied(s="'a'", n="1")),
    "a number as a message": told("variables.n", variables=varied(s="'a'", n="1")),
    "annotations": vap(policy("true", auditAnnotations=[
        {"key": "a", "valueExpression": "1"}, {"key": "a", "valueExpression": "null"}, {"key": "", "valueExpression": "'b'"},
        {"key": "b c", "valueExpression": " "}, {"key": "d", "valueExpression": "object.a"},
        {"key": "e", "valueExpression": f"'{'x' * 5200}'"}, {"key": "f", "valueExpression": "nobody"},
    ])),
    "too many annotations": vap(policy(auditAnnotations=[
        {"key": f"a{number}", "valueExpression": "'b'"} for number in range(21)
    ])),
    "binding": binding(),
    "binding of nothing": binding(policyName=None, validationActions=None),
    "binding of a bad name": binding(policyName="No_Name"),
    "binding with bad actions": binding(validationActions=["Deny", "Warn", "Deny", "Shout"]),
    "binding with bad resources": binding(matchResources={"matchPolicy": "Nearly", "resourceRules": [{}]}),
    "reference to nothing": referring(),
    "reference by both": referring(name="a", selector={}, parameterNotFoundAction="Deny"),
    "reference by bad name": referring(name="a/b", parameterNotFoundAction="Allow"),
    "reference by bad selector": referring(
        selector={"matchExpressions": [{"key": "a", "operator": "In"}]}, parameterNotFoundAction="Allow"
    ),
    "bob: no parameters": vap(policy("true")),
    "bob: parameters": vap(policy("true", **NOT_BOBS)),
    "bob: parameters of nobody's kind": vap(policy("true", paramKind={"apiVersion": "v1", "kind": "None"})),
    "bob: parameters of another group": vap(
        policy("true", paramKind={"apiVersion": "none.test.kgpu.dev/v1", "kind": "None"})
    ),
    "bob: bad parameters": vap(policy("true", paramKind={"apiVersion": "v1", "kind": "No Kind"})),
    "bob: secrets": vap(policy("true", paramKind={"apiVersion": "v1", "kind": "Secret"})),
    "bob: no reference": binding(),
    "bob: reference to nothing known": referring(name="a", parameterNotFoundAction="Deny"),
    "bob: reference to config maps": binding(
        policyName="vap-by-name", paramRef={"name": "p", "parameterNotFoundAction": "Deny"}
    ),
    "bob: reference by selector": binding(
        policyName="vap-by-name", paramRef={"selector": {}, "namespace": "default", "parameterNotFoundAction": "Deny"}
    ),
    "bob: reference of a policy without parameters": binding(
        policyName="vap-create", paramRef={"name": "p", "parameterNotFoundAction": "Deny"}
    ),
    "bob: reference of a policy of nobody's kind": binding(
        policyName="vap-a-kind-that-isn-t-served", paramRef={"name": "p", "parameterNotFoundAction": "Deny"}
    ),
    "reference with a bad action": referring(name="a", parameterNotFoundAction="Shrug"),
}  # fmt: skip
