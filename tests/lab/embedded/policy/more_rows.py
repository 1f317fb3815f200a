"""More cases by name: variables, what a request shows, parameters, authorization."""

from __future__ import annotations

from tests.lab.embedded.policy.cases import (
    BIG,
    CUSTOM,
    LIMIT,
    MAP_PARAMS,
    MAPS,
    MERGE,
    SMALL,
    WIDE,
    Ask,
    Case,
    Raw,
    config_map,
    constraints,
    params,
    policy,
    post,
    reference,
    role,
    rule,
    simple,
)


def variables(expression: str | Raw, **found: str) -> Case:
    rows = [{"name": name, "expression": text} for name, text in found.items()]
    return Case(policy(expression, variables=rows), [post(config_map("x", {"n": "3"}))])


def told(expression: str, **spec: object) -> Case:
    return Case(policy({"expression": "false", "messageExpression": expression}, **spec), [post(user="alice")],
                before=role(["get"], "pods"))  # fmt: skip


def allowed(check: str) -> Case:
    """Is alice; who may get pods of the namespace."""
    rows = (
        {"expression": f"!{check}.errored() && {check}.error() == ''", "message": "it failed"},
        {"expression": f"!{check}.allowed()", "message": "may"},
        {"expression": f"{check}.allowed()", "message": "may not"},
    )
    return Case(policy(*rows), [post(user="alice")], before=role(["get"], "pods"))


def bounded(*bindings: Raw, before: list[tuple[str, Raw]], **spec: object) -> Case:
    return Case(policy(LIMIT, **{**MAP_PARAMS, **spec}), [BIG, SMALL], bindings=list(bindings), before=before)


TWO = [params("p", "3", labels={"a": "b"}), params("q", "1", labels={"a": "b"})]
CASES: dict[str, Case] = {
    "a variable": variables("variables.n == 4", n="int(object.data.n)"),
    "variables of variables": variables(
        "variables.c", a="int(object.data.n)", b="variables.a + 1", c="variables.b == 5"
    ),
    "a variable is not reached": variables("true || variables.bad", bad="object.a.b == 1"),
    "a variable fails": variables("variables.bad == 1", bad="object.a.b"),
    "a variable of a variable fails": variables("variables.worse == 1", bad="object.a.b", worse="variables.bad"),
    "a variable is no bool": variables("variables.n == true", n="object.data.n"),
    "a variable is there": variables("has(variables.n) && !has(object.nothing)", n="object.data.n"),
    "a variable is optional": variables(
        "variables.m.orValue('none') == 'some' || variables.n.orValue('none') != '3'",
        m="object.data.?m",
        n="object.data.?n",
    ),
    "a variable is a list": variables(
        {"expression": "variables.l.all(k, k == 'm')", "messageExpression": "variables.l.join(',') + variables.t"},
        l="object.data.map(k, k)",
        t="string(timestamp('2026-01-02T03:04:05Z') + duration('1h'))",
    ),
    "a variable is a time": variables(
        "variables.t < timestamp('2026-01-01T00:00:00Z')", t="timestamp('2026-01-02T03:04:05Z')"
    ),
    "a variable is a duration": variables("variables.d < duration('1m')", d="duration('1h')"),
    "a variable is a quantity": variables("variables.q.isLessThan(quantity('1'))", q="quantity('2')"),
    "a variable is a type": variables("variables.t == int", t="type(object.data.n)"),
    "a variable is unsigned": variables("variables.u + 1u == 4u", u="uint(object.data.n) + 1u"),
    "a variable in a loop": variables("[1, 2].all(i, i + variables.n == 4)", n="int(object.data.n)"),
    "a loop's own variable": variables("[{'n': 1}].all(variables, variables.n == 2)", n="int(object.data.n)"),
    "a variable asks for authorization in a message": variables(
        {"expression": "variables.a", "message": "instead", "messageExpression": "'may ' + string(variables.a)"},
        a="authorizer.group('').resource('pods').check('nothing').allowed() && false",
    ),
    # What a request shows.
    "request": told(
        "request.operation + ' ' + request.name + ' ' + request.namespace + ' ' + request.userInfo.username + ' ' + "
        "request.userInfo.groups.join(',') + ' ' + string(request.dryRun) + ' ' + request.kind.kind + ' ' + "
        "request.requestResource.resource + ' ' + string(has(request.subResource)) + string(has(request.userInfo.extra))"
    ),
    "options": Case(
        policy(
            {
                "expression": "false",
                "messageExpression": "request.options.kind + ' ' + "
                "request.options.apiVersion + ' ' + request.options.?fieldManager.orValue('nobody') + ' ' + "
                "request.options.dryRun[0]",
            },
            matchConstraints=constraints(rule("configmaps", operations=("*",))),
        ),
        [
            Ask("POST", f"{MAPS}?fieldManager=me", config_map()),
            Ask("PATCH", f"{MAPS}/old?fieldManager=me", {"data": {"a": "b"}}, media=MERGE),
            Ask("DELETE", f"{MAPS}/old"),
        ],
        before=[(MAPS, config_map("old"))],
    ),
    "a generated name": Case(
        policy("has(request.name)"),
        [post({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}})],
    ),
    "namespace": told(
        "namespaceObject.metadata.name + ' ' + namespaceObject.metadata.labels['kubernetes.io/metadata.name'] + ' ' + "
        "namespaceObject.status.phase + ' ' + namespaceObject.spec.finalizers[0]"
    ),
    "before and after": Case(
        policy(
            {
                "expression": "object.data == oldObject.data",
                "messageExpression": "oldObject.data.x + ' to ' + object.data.x",
            }
        ),
        [Ask("PATCH", f"{MAPS}/old", {"data": {"x": "2"}}, media=MERGE), post(config_map())],
        before=[(MAPS, config_map("old", {"x": "1"}))],
    ),
    "libraries": simple(
        "!('a b'.split(' ').size() == 2 && object.metadata.name.matches('^x$') && url('https://a/b').getHost() == 'a' && "
        "quantity('1Gi').isGreaterThan(quantity('1Mi')) && ip('10.0.0.1').family() == 4 && [1, 2].sum() == 3 && "
        "optional.of(1).hasValue() && sets.contains([1, 2], [1]) && '%s'.format([1]) == '1')"
    ),
    # Parameters.
    "by name": bounded(*reference(name="p"), before=[params("p", "3")]),
    "by selector": bounded(*reference(selector={"matchLabels": {"a": "b"}}), before=TWO),
    "all of them": bounded(*reference(selector={"matchExpressions": [{"key": "a", "operator": "Exists"}]}), before=TWO),
    "of another namespace": bounded(*reference(name="p", namespace="default"), before=[]),
    "none, denied": bounded(*reference(name="p"), before=[]),
    "none, allowed": bounded(*reference(name="p", parameterNotFoundAction="Allow"), before=[]),
    "none selected, denied": bounded(*reference(selector={"matchLabels": {"no": "no"}}), before=TWO),
    "none selected, allowed": bounded(
        *reference(selector={"matchLabels": {"no": "no"}}, parameterNotFoundAction="Allow"), before=TWO
    ),
    "none, denied, ignored": bounded(*reference(name="p"), before=[], failurePolicy="Ignore"),
    "no reference": bounded({}, before=[]),
    "no kind": Case(policy("object.metadata.name == 'y'"), [post()], bindings=reference(name="p")),
    "a kind that isn't served": bounded(
        *reference(name="p"), before=[], paramKind={"apiVersion": "none.test.kgpu.dev/v1", "kind": "None"}
    ),
    "a kind that isn't served, ignored": bounded(
        *reference(name="p"), before=[], paramKind={"apiVersion": "v1", "kind": "None"}, failurePolicy="Ignore"
    ),
    "a parameter lacks something": bounded(*reference(name="p"), before=[(MAPS, config_map("p"))]),
    "a parameter shows its kind": Case(
        policy(
            {
                "expression": "false",
                "messageExpression": "params.kind + ' ' + params.apiVersion + ' ' + params.metadata.name",
            },
            **MAP_PARAMS,
        ),
        [post()],
        bindings=reference(name="p"),
        before=[params("p", "3")],
    ),
    "a condition asks the parameter": Case(
        policy("false", matchConditions=[{"name": "a", "expression": "params.data.most == '3'"}], **MAP_PARAMS),
        [post()],
        bindings=[*reference(name="p"), *reference(name="q")],
        before=[params("p", "3"), params("q", "4")],
    ),
    "a parameter of a custom kind": Case(
        policy("int(object.data.n) <= params.spec.most", **CUSTOM),
        [BIG, SMALL],
        bindings=reference(name="wide"),
        before=[WIDE],
    ),
    "a namespace for a kind without": Case(
        policy("int(object.data.n) <= params.spec.most", **CUSTOM),
        [BIG],
        bindings=reference(name="wide", namespace="default"),
        before=[WIDE],
    ),
    "no namespace for a kind with": Case(
        policy(
            "params.data.most == '3'",
            **MAP_PARAMS,
            matchConstraints=constraints(
                rule("bounds", groups="policies.test.kgpu.dev"),
                objectSelector={"matchLabels": {"vap": "{space}"}},
            ),
        ),
        [
            Ask(
                "POST",
                "/apis/policies.test.kgpu.dev/v1/bounds",
                {
                    "apiVersion": "policies.test.kgpu.dev/v1",
                    "kind": "Bound",
                    "metadata": {"name": "{space}", "labels": {"vap": "{space}"}},
                },
            )
        ],
        bindings=[{"everywhere": True, **reference(name="p")[0]}],
    ),
    "types of the request": told(
        "string(type(request.dryRun) == bool) + string(type(request.userInfo.groups) == list) + "
        "string(type(object) == map) + string(type(namespaceObject.metadata.labels) == map) + string(oldObject == null)"
    ),
    "optional things": told(
        "request.userInfo.?extra['a'].orValue(['none'])[0] + object.?data['a'].orValue('none') + "
        "namespaceObject.metadata.?annotations['a'].orValue('none') + string(has(request.userInfo.groups))"
    ),
    "two policies' words": Case(
        policy("object.metadata.name != 'x'", {"expression": "object.metadata.name == 'z'", "message": "second"}),
        [post(), post(config_map("y")), post(config_map("z"))],
    ),
    "three bindings": Case(
        policy(LIMIT, **MAP_PARAMS),
        [BIG, SMALL],
        bindings=[
            *reference(name="p"),
            {"validationActions": ["Warn"], **reference(name="q")[0]},
            {"validationActions": ["Audit"], **reference(name="none")[0]},
        ],
        before=[params("p", "10"), params("q", "1")],
    ),
    # Authorization.
    "may": allowed("authorizer.group('').resource('pods').namespace('{space}').check('get')"),
    "may not": allowed("authorizer.group('').resource('pods').namespace('{space}').check('delete')"),
    "may not elsewhere": allowed("authorizer.group('').resource('pods').namespace('default').check('get')"),
    "may not the subresource": allowed(
        "authorizer.group('').resource('pods').subresource('log').namespace('{space}').name('p').check('get')"
    ),
    "may with selectors": allowed(
        "authorizer.group('').resource('pods').namespace('{space}').fieldSelector('a=b').labelSelector('c').check('get')"
    ),
    "may what is asked": allowed("authorizer.requestResource.check('create')"),
    "may not what is asked": allowed("authorizer.requestResource.check('fly')"),
    "path": allowed("authorizer.path('/version').check('get')"),
    "path that may not be": allowed("authorizer.path('/secret').check('get')"),
    "account": allowed("authorizer.serviceAccount('{space}', 'x').group('').resource('pods').check('get')"),
    "why not": simple("authorizer.serviceAccount('a', 'b').path('/').check('get').reason() == 'because'"),
    "decides": Case(
        policy(
            {"expression": "authorizer.requestResource.check('delete').allowed()", "message": "alice is nobody"},
            {"expression": "authorizer.group('').resource('secrets').namespace('{space}').check('list').allowed()"},
        ),
        [post(user="alice"), post()],
        before=role(["get"], "pods"),
    ),
    "empty path": simple("authorizer.path(' ').check('get').allowed()"),
    "empty resource": simple("authorizer.group('').resource('').check('get').allowed()"),
    "bad account": simple("authorizer.serviceAccount('a', 'B').group('').resource('pods').check('get').allowed()"),
    "bad account's namespace": simple("authorizer.serviceAccount('A', 'b').path('/').check('get').allowed()"),
}
