"""The cases by name: what policies can be about, what their expressions can do, and how what they say is told."""

from __future__ import annotations

from tests.lab.embedded.policy.cases import (
    APPLY,
    MAPS,
    MERGE,
    Ask,
    Case,
    Raw,
    config_map,
    constraints,
    deployment,
    pod,
    policy,
    post,
    rule,
    simple,
)

NO = "false"
HAS_X = "has(object.data) && 'x' in object.data"
SPACES = "/api/v1/namespaces"
PODS = f"{SPACES}/{{space}}/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{space}/deployments"
SCALERS = "/apis/autoscaling/{version}/namespaces/{{space}}/horizontalpodautoscalers"
EXISTING = [(MAPS, config_map("old", {"x": "1", "n": "3"}, labels={"a": "b"}))]
OLD = f"{MAPS}/old"


def scaler(version: str) -> Ask:
    spec = {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}
    body = {"apiVersion": f"autoscaling/{version}", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}}
    if version == "v1":
        spec["targetCPUUtilizationPercentage"] = 50
    return Ask("POST", SCALERS.format(version=version), {**body, "spec": spec})


def matching(**found: object) -> Case:
    """About some of these requests."""
    asked = [
        post(),
        post(config_map("labelled", labels={"a": "b"})),
        post({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}}),
        Ask("PATCH", OLD, {"data": {"y": "2"}}, media=MERGE),
        Ask("PATCH", OLD, {"metadata": {"labels": None}}, media=MERGE),
        Ask("DELETE", OLD),
    ]
    return Case(policy(NO, matchConstraints=found), asked, before=EXISTING)


ANY: Raw = {"groups": "*", "versions": "*", "operations": ("*",), "scope": "Namespaced"}
NAME = "object.metadata.name"  # which is "x"
NUMBER = "object.metadata.generation"
FAILING = (
    f"int({NAME}) == 1",
    f"uint({NAME}) == 1u",
    f"double({NAME}) == 1.0",
    f"bool({NAME})",
    f"timestamp({NAME}) == timestamp('2026-01-01T00:00:00Z')",
    f"duration({NAME}) == duration('1s')",
    f"int(double(size({NAME})) * 1e40) == 1",
    f"uint(size({NAME}) - 5) == 1u",
    f"9223372036854775807 + size({NAME}) == 1",
    f"uint(size({NAME})) - 2u == 1u",
    f"1 % (size({NAME}) - 1) == 1",
    f"{NAME}.more == 1",
    f"{NAME}[0] == 1",
    "object.metadata['none'] == 1",
    "object.metadata[1] == 1",
    f"'a' in {NAME}",
    f"{NAME} ? true : false",
    f"!{NAME}",
    f"-{NAME} == 1",
    f"{NAME}.all(a, true)",
    f"size({NUMBER}) == 1",
    f"true && {NAME}",
    f"{NAME} || false",
    "string(object.metadata) == ''",
    f"{NAME} + 1 == 1",
    f"{NAME} < 1",
    f"[1][size({NAME}) + 7] == 1",
    f"{NAME}.matches({NAME} + '[')",
    "object.?data.a.value() == 1",
    "object.?nothing.value() == 1",
    f"quantity({NAME}).isInteger()",
    f"url({NAME}).getHost() == ''",
    f"ip({NAME}).family() == 4",
    f"semver({NAME}).major() == 1",
    f"{NAME}.substring(5) == ''",
    f"'%d'.format([{NAME}]) == ''",
    f"[{NAME}].filter(k, false).max() == 'a'",
    "object.metadata.managedFields['a'] == 1",
)
EVERYTHING = rule("configmaps", operations=("*",))
CASES: dict[str, Case] = {
    # What it is about.
    "create": matching(**constraints(rule("configmaps"))),
    "update": matching(**constraints(rule("configmaps", operations=("UPDATE",)))),
    "delete": matching(**constraints(rule("configmaps", operations=("DELETE",)))),
    "any operation": matching(**constraints(EVERYTHING)),
    "any group, version and resource": matching(**constraints(rule("*", **ANY))),
    "all with subresources": matching(**constraints(rule("*/*", **ANY))),
    "another version": matching(**constraints(rule("configmaps", versions="v2", operations=("*",)))),
    "another resource": matching(**constraints(rule("secrets", operations=("*",)))),
    "excluded": matching(**constraints(EVERYTHING), excludeResourceRules=[rule("configmaps", operations=("UPDATE",))]),
    "names": matching(**constraints({**EVERYTHING, "resourceNames": ["x", "old"]})),
    "cluster scope": matching(**constraints({**EVERYTHING, "scope": "Cluster"})),
    "namespaced scope": matching(**constraints({**EVERYTHING, "scope": "Namespaced"})),
    "objects by label": matching(**constraints(EVERYTHING), objectSelector={"matchLabels": {"a": "b"}}),
    "objects without a label": matching(
        **constraints(EVERYTHING), objectSelector={"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}
    ),
    "other namespaces": matching(
        **constraints(EVERYTHING),
        namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "default"}},
    ),
    "an equivalent version": Case(
        policy(
            {
                "expression": NO,
                "messageExpression": "object.apiVersion + ' ' + request.kind.version + ' ' + "
                "request.requestKind.version + ' ' + request.resource.version + ' ' + string(has(object.spec.metrics))",
            },
            matchConstraints=constraints(rule("horizontalpodautoscalers", groups="autoscaling", versions="v2")),
        ),
        [scaler("v1"), scaler("v2")],
    ),
    "an exact version": Case(
        policy(
            NO,
            matchConstraints=constraints(
                rule("horizontalpodautoscalers", groups="autoscaling", versions="v2"), matchPolicy="Exact"
            ),
        ),
        [scaler("v1"), scaler("v2")],
    ),
    "a subresource": Case(
        policy(
            {
                "expression": NO,
                "messageExpression": "object.kind + ' ' + request.kind.kind + ' ' + request.subResource "
                "+ ' ' + string(object.spec.replicas) + ' ' + string(oldObject.spec.replicas)",
            },
            matchConstraints=constraints(rule("deployments/scale", groups="apps", operations=("*",))),
        ),
        [
            Ask("PATCH", f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 5}}, media=MERGE),
            Ask("PATCH", f"{DEPLOYMENTS}/d", {"spec": {"replicas": 5}}, media=MERGE),
        ],
        before=[(DEPLOYMENTS, deployment())],
    ),
    "a status": Case(
        policy(
            "request.subResource != 'status' || !has(object.status.phase) || object.status.phase == oldObject.status.phase",
            matchConstraints=constraints(rule("pods", "pods/status", operations=("UPDATE",))),
        ),
        [
            Ask("PATCH", f"{PODS}/p/status", {"status": {"phase": "Failed"}}, media=MERGE),
            Ask("PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}, media=MERGE),
        ],
        before=[(PODS, pod())],
    ),
    "an eviction": Case(
        policy(
            {
                "expression": NO,
                "messageExpression": "object.kind + ' ' + request.operation + ' ' + request.name + ' ' "
                "+ request.kind.group",
            },
            matchConstraints=constraints(rule("pods/eviction", operations=("CREATE",))),
        ),
        [Ask("POST", f"{PODS}/p/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}})],
        before=[(PODS, pod())],
    ),
    "a token": Case(
        policy(NO, matchConstraints=constraints(rule("serviceaccounts/token", operations=("CREATE",)))),
        [
            Ask(
                "POST",
                f"{SPACES}/{{space}}/serviceaccounts/builder/token",
                {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["a"]}},
            )
        ],
        before=[(f"{SPACES}/{{space}}/serviceaccounts", {"metadata": {"name": "builder"}})],
    ),
    "a connection": Case(
        policy(
            {
                "expression": NO,
                "messageExpression": "object.kind + ' ' + string(object.command) + ' ' + request.operation",
            },
            matchConstraints=constraints(rule("pods/exec", operations=("CONNECT",))),
        ),
        [Ask("POST", f"{PODS}/p/exec?command=a&command=b&stdout=true")],
        before=[(PODS, pod())],
    ),
    "connections": Case(
        policy(
            {
                "expression": NO,
                "messageExpression": "object.kind + ' ' + request.kind.kind + ' ' + request.subResource + "
                "' ' + object.?path.orValue('no path')",
            },
            matchConstraints=constraints(
                rule("*/*", groups="*", versions="*", operations=("CONNECT",), scope="Namespaced")
            ),
        ),
        [
            Ask("GET", f"{PODS}/p/proxy/a/b"),
            Ask("POST", f"{PODS}/p/attach?stdin=true"),
            Ask("POST", f"{PODS}/p/portforward?ports=80"),
            Ask("GET", f"{SPACES}/{{space}}/services/s/proxy"),
        ],
        before=[
            (PODS, pod()),
            (
                f"{SPACES}/{{space}}/services",
                {
                    "metadata": {"name": "s"},
                    "spec": {"ports": [{"port": 80}]},
                },
            ),
        ],
    ),
    "a binding to a node": Case(
        policy(
            {
                "expression": NO,
                "messageExpression": "object.kind + ' ' + request.kind.kind + ' ' + request.subResource + "
                "' ' + object.target.name + ' ' + request.name",
            },
            matchConstraints=constraints(rule("pods/binding")),
        ),
        [
            Ask(
                "POST",
                f"{PODS}/p/binding",
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "p"},
                    "target": {"kind": "Node", "name": "n"},
                },
            )
        ],
        before=[(PODS, pod())],
    ),
    "questions are never asked about": Case(
        policy(
            NO,
            matchConstraints=constraints(rule("*", groups="*", versions="*", operations=("*",))),
            matchConditions=[{"name": "a", "expression": "!request.resource.group.startsWith('policies.')"}],
        ),
        [
            Ask(
                "POST",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SelfSubjectAccessReview",
                    "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}},
                },
            ),
            Ask(
                "POST",
                "/apis/authorization.k8s.io/v1/namespaces/{space}/localsubjectaccessreviews",
                {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "LocalSubjectAccessReview",
                    "spec": {
                        "user": "a",
                        "resourceAttributes": {"namespace": "{space}", "verb": "get", "resource": "pods"},
                    },
                },
            ),
            post(),
        ],
    ),
    "a collection": Case(
        policy(
            {
                "expression": "!has(oldObject.data)",
                "messageExpression": "request.?name.orValue('no name') + ' ' + "
                "oldObject.metadata.name + ' ' + string(object == null)",
            },
            matchConstraints=constraints(EVERYTHING),
        ),
        [Ask("DELETE", f"{MAPS}?labelSelector=a")],
        before=EXISTING,
    ),
    "apply": Case(
        policy(
            {"expression": NO, "messageExpression": "request.operation + ' ' + object.data.x"},
            matchConstraints=constraints(EVERYTHING),
        ),
        [
            Ask("PATCH", f"{MAPS}/{name}?fieldManager=me&force=true", config_map(name, {"x": "7"}), media=APPLY)
            for name in ("fresh", "old")
        ],
        before=EXISTING,
    ),
    "a kind of its own": Case(
        policy(
            {"expression": NO, "messageExpression": "object.apiVersion + ' ' + request.resource.version"},
            matchConstraints=constraints(rule("bounds", groups="policies.test.kgpu.dev", versions="v2")),
            matchConditions=[{"name": "mine", "expression": "object.metadata.name == '{space}'"}],
        ),
        [
            Ask(
                "POST",
                f"/apis/policies.test.kgpu.dev/{version}/bounds",
                {"apiVersion": f"policies.test.kgpu.dev/{version}", "kind": "Bound", "metadata": {"name": "{space}"}},
            )
            for version in ("v1", "v2")
        ],
        bindings=[{"everywhere": True}],
    ),
    "a namespace": Case(
        policy(
            {
                "expression": "!has(object.metadata.labels.team)",
                "messageExpression": "string(namespaceObject == null) + ' ' + request.namespace + ' ' + request.name",
            },
            matchConstraints=constraints(
                rule("namespaces", operations=("CREATE", "UPDATE")), objectSelector={"matchLabels": {"vap": "{space}"}}
            ),
        ),
        [
            Ask("POST", SPACES, {"metadata": {"name": "{space}-2", "labels": {"vap": "{space}", "team": "a"}}}),
            Ask("PATCH", f"{SPACES}/{{space}}", {"metadata": {"labels": {"vap": "{space}", "team": "a"}}}, media=MERGE),
        ],
        bindings=[{"everywhere": True}],
    ),
    # Conditions.
    "conditions": Case(
        policy(
            NO,
            matchConditions=[
                {"name": "a", "expression": "object.metadata.name.startsWith('m')"},
                {"name": "b", "expression": "request.operation == 'CREATE'"},
            ],
        ),
        [post(), post(config_map("mine"))],
    ),
    "a condition fails": simple(NO, matchConditions=[{"name": "a", "expression": "object.data.y == 'b'"}]),
    "two conditions fail": simple(
        NO,
        matchConditions=[
            {"name": "a", "expression": "object.data.y == 'b'"},
            {"name": "b", "expression": "object.spec.y == 'b'"},
        ],
    ),
    "one condition fails, one is false": simple(
        NO,
        matchConditions=[
            {"name": "a", "expression": "object.data.y == 'b'"},
            {"name": "b", "expression": "object.metadata.name == 'y'"},
        ],
    ),
    "a condition fails, ignored": simple(
        NO, matchConditions=[{"name": "a", "expression": "object.data.y == 'b'"}], failurePolicy="Ignore"
    ),
    "a condition asks for the namespace": simple(
        NO, matchConditions=[{"name": "a", "expression": "namespaceObject.metadata.name == '{space}'"}]
    ),
    # What expressions fail with.
    "no such key": simple("object.data.x == 'a'"),
    "no such key, ignored": simple("object.data.x == 'a'", failurePolicy="Ignore"),
    "no such overload": simple("object.metadata.name > 5"),
    "division by zero": simple("1 / (size(object.metadata.name) - 1) == 1"),
    "index out of bounds": simple("object.metadata.managedFields[7].manager == 'a'"),
    "fields of null": Case(
        policy("oldObject.metadata.name == 'x'", matchConstraints=constraints(EVERYTHING)),
        [
            post(),
            Ask("DELETE", OLD),
        ],
        before=EXISTING,
    ),
    **{f"fails {number}": simple(one) for number, one in enumerate(FAILING)},
    "several fail": Case(policy("object.a.b == 1", NO, "object.c == 2"), [post()]),
    "one error is ignored, one expression is false": Case(
        policy("object.a.b == 1", NO, failurePolicy="Ignore"), [post()]
    ),
    # What is said.
    "expression": simple("  object.metadata.name == 'y'  "),
    "message": Case(policy({"expression": NO, "message": " plain words "}), [post()]),
    "message expression": Case(
        policy({"expression": NO, "message": "no", "messageExpression": "'name ' + object.metadata.name"}), [post()]
    ),
    "message expression fails": Case(
        policy({"expression": NO, "message": "instead", "messageExpression": "'a' + object.b"}), [post()]
    ),
    "message expression fails, no message": Case(
        policy({"expression": NO, "messageExpression": "'a' + object.b"}), [post()]
    ),
    "message of two lines": Case(
        policy({"expression": NO, "message": "instead", "messageExpression": "'a\\nb'"}), [post()]
    ),
    "message of nothing": Case(policy({"expression": NO, "message": "instead", "messageExpression": "' '"}), [post()]),
    "reasons": Case(
        policy(
            *(
                {"expression": f"object.metadata.name != '{one.lower()}'", "reason": one}
                for one in ("Forbidden", "Invalid", "RequestEntityTooLarge")
            )
        ),
        [post(config_map(one)) for one in ("forbidden", "invalid", "requestentitytoolarge", "fine")],
    ),
    "warn": Case(
        policy("object.metadata.name == 'y'", "object.a == 1", {"expression": NO, "message": 'said "so"'}),
        [post()],
        bindings=[{"validationActions": ["Warn"]}],
    ),
    "audit": Case(policy(NO), [post()], bindings=[{"validationActions": ["Audit"]}]),
    "warn and audit": Case(policy(NO), [post()], bindings=[{"validationActions": ["Warn", "Audit"]}]),
    "deny and audit": Case(policy(NO), [post()], bindings=[{"validationActions": ["Deny", "Audit"]}]),
    "a binding warns": Case(
        policy("object.metadata.name == 'y'"),
        [post(), post(config_map("y"))],
        bindings=[{"validationActions": ["Warn"]}, {"validationActions": ["Audit"]}],
    ),
    "no binding": Case(policy(NO), [post()], bindings=[]),
    "binding for some": Case(
        policy(NO),
        [post(), post(config_map("l", labels={"a": "b"}))],
        bindings=[{"matchResources": {"objectSelector": {"matchLabels": {"a": "b"}}}}],
    ),
    "binding for some resources": Case(
        policy(NO, matchConstraints=constraints(rule("*", operations=("*",)))),
        [post(), Ask("POST", f"{SPACES}/{{space}}/secrets", {"metadata": {"name": "s"}})],
        bindings=[{"matchResources": constraints(rule("secrets"))}],
    ),
    # Audit annotations.
    "annotation": Case(policy("true", auditAnnotations=[{"key": "a", "valueExpression": "'b'"}]), [post()]),
    "annotation fails": Case(
        policy("true", auditAnnotations=[{"key": "a", "valueExpression": "'a' + object.b"}]), [post()]
    ),
    "annotation fails, only warned": Case(
        policy("true", auditAnnotations=[{"key": "a", "valueExpression": "'a' + object.b"}]),
        [post()],
        bindings=[{"validationActions": ["Warn"]}],
    ),
    "annotation fails, ignored": Case(
        policy("true", auditAnnotations=[{"key": "a", "valueExpression": "'a' + object.b"}], failurePolicy="Ignore"),
        [post()],
    ),
}
