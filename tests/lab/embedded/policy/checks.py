"""Policies whose types are checked: the status that they get. Rows of data, no expectations."""

from __future__ import annotations

from tests.lab.embedded.policy.cases import MAP_PARAMS, Raw, constraints, policy, rule

DEPLOYMENTS = constraints(rule("deployments", groups="apps"))
BOUNDS = constraints(rule("bounds", groups="policies.test.kgpu.dev"))


def on(found: Raw, *expressions: str | Raw, **spec: object) -> Raw:
    return policy(*expressions, matchConstraints=found, **spec)


CASES: dict[str, Raw] = {
    "right": on(DEPLOYMENTS, "object.spec.replicas > 1"),
    "wrong types": on(
        DEPLOYMENTS,
        {"expression": "object.spec.replicas > '1'", "messageExpression": "'got ' + object.spec.replicas"},
        "object.spec.replicas == 2",
        "object.spec.nothing == 2",
    ),
    "several complaints": on(DEPLOYMENTS, "object.a == 1 && object.spec.b == 2"),
    "lists": on(
        DEPLOYMENTS,
        "object.spec.template.spec.containers.all(c, c.ports.exists(p, p.containerPort == 'a'))",
        "object.spec.template.spec.containers.all(c, c.imagee == '')",
    ),
    "maps": on(DEPLOYMENTS, "object.metadata.labels['a'] == 1", "object.metadata.labels.a == 'b'"),
    "quantities and ports": on(
        DEPLOYMENTS,
        "object.spec.strategy.rollingUpdate.maxSurge == 1",
        "object.spec.template.spec.containers[0].resources.limits['cpu'] == '1'",
        "object.spec.template.spec.containers[0].livenessProbe.httpGet.port == 80",
    ),
    "times": on(
        DEPLOYMENTS,
        "object.metadata.creationTimestamp < timestamp('2026-01-01T00:00:00Z')",
        "object.metadata.creationTimestamp == 'now'",
    ),
    "before": on(DEPLOYMENTS, "oldObject.spec.replicas == object.spec.replicas", "oldObject.spec.a == 1"),
    "what every object has": on(
        DEPLOYMENTS, "object.kind == 'Deployment' && object.metadata.uid != ''", "object.metadata.nothing == ''"
    ),
    "several kinds": on(
        constraints(rule("deployments", "statefulsets", "pods", groups="apps"), rule("configmaps", "pods/status")),
        "object.spec.replicas == 1",
    ),
    "wildcards": on(constraints(rule("*", groups="apps"), rule("pods", versions="*")), "object.nothing == 1"),
    "subresources alone": on(constraints(rule("deployments/scale", groups="apps")), "object.nothing == 1"),
    "nobody's kind": on(constraints(rule("nothings", groups="none.test.kgpu.dev")), "object.nothing == 1"),
    "variables": on(
        DEPLOYMENTS,
        "variables.r == 'a'",
        "variables.wrong",
        "variables.l.exists(c, c.name == 1)",
        variables=[
            {"name": "r", "expression": "object.spec.replicas"},
            {"name": "wrong", "expression": "object.none == 1"},
            {"name": "l", "expression": "object.spec.template.spec.containers"},
        ],
    ),
    "parameters": on(DEPLOYMENTS, "params.data['a'] == 1", "params.none == 1", **MAP_PARAMS),
    "parameters of nobody's kind": on(
        DEPLOYMENTS,
        "object.spec.replicas > params.a",
        paramKind={"apiVersion": "none.test.kgpu.dev/v1", "kind": "None"},
    ),
    "request and namespace": on(
        DEPLOYMENTS,
        "request.userInfo.username == 'a'",
        "namespaceObject.metadata.name == 'a'",
        "authorizer.requestResource.check('get').allowed()",
    ),
    "a kind of its own": on(
        BOUNDS,
        "object.spec.most > '1'",
        "object.spec.none < 10",
        "object.spec.any == 1 && object.spec.names[0] == 2",
        "object.metadata.labels['a'] == 'b'",
    ),
    "a kind of its own as parameter": on(
        DEPLOYMENTS,
        "object.spec.replicas <= params.spec.most",
        "object.spec.replicas <= params.spec.names",
        paramKind={"apiVersion": "policies.test.kgpu.dev/v1", "kind": "Bound"},
    ),
    "definitions of kinds": on(
        constraints(rule("customresourcedefinitions", groups="apiextensions.k8s.io")),
        "object.spec.versions[0].schema.openAPIV3Schema.properties['a'].nothing == 1",
        "object.spec.versions[0].schema.openAPIV3Schema.nothing == 1",
    ),
    "annotations and conditions alone": {
        **on(DEPLOYMENTS, auditAnnotations=[{"key": "a", "valueExpression": "string(object.none)"}]),
        "matchConditions": [{"name": "a", "expression": "object.none == 1"}],
    },
}
