"""Bodies with fields that their type doesn't know or that are there twice, and what kube-apiserver 1.35 says of them.

``play`` asks a server, the embedded one in ``test_bodies``, a real one in ``tests/lab/real/test_embedded_bodies``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

GROUP = "bodies.test.kgpu.dev"
SPACE = "kgpu-bodies"
JSON = "application/json"
YAML = "application/yaml"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PATCH = "application/json-patch+json"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MAPS = f"/api/v1/namespaces/{SPACE}/configmaps"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{SPACE}/deployments"
OWN = f"/apis/{GROUP}/v1/namespaces/{SPACE}/bodies"

Ask = Callable[[str, str, str, str], tuple[int, Any, list[str]]]
"""Method, path, body and content type -> status, decoded answer, warnings."""

CRD = f"""
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: bodies.{GROUP}}}
spec:
  group: {GROUP}
  scope: Namespaced
  names: {{plural: bodies, kind: Body}}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            x-kubernetes-preserve-unknown-fields: true
            properties: {{foo: {{type: string}}, inner: {{type: object, properties: {{a: {{type: integer}}}}}}}}
"""


class Case(NamedTuple):
    """One request and what comes back; ``message`` is of a refusal."""

    label: str
    method: str
    path: str
    media: str
    body: str
    code: int
    message: str = ""
    warnings: tuple[str, ...] = ()


def deployment(name: str, spec: str) -> str:
    """In JSON; ``spec`` comes first in its spec."""
    template = '"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}'
    rest = f'"selector": {{"matchLabels": {{"a": "b"}}}}, {template}'
    return f'{{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {{"name": "{name}"}}, "spec": {{{spec}, {rest}}}}}'


def config_map(name: str, rest: str) -> str:
    return f'{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "{name}"}}, {rest}}}'


def own(name: str, rest: str) -> str:
    return f'{{"apiVersion": "{GROUP}/v1", "kind": "Body", "metadata": {{"name": "{name}"}}, {rest}}}'


REFUSED = 'Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: '
MAP_REFUSED = 'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: '
OWN_REFUSED = 'Body in version "v1" cannot be handled as a Body: strict decoding error: '
MISSING = "the object provided is unrecognized (must be of type Body): Object 'Kind' is missing in "
OTHER = f"does not match the expected API version ({GROUP}/v1)"
NO_KIND = f'{{"apiVersion": "{GROUP}/v1", "metadata": {{"name": "x"}}}}'
NO_VERSION = '{"kind": "Body", "metadata": {"name": "x"}}'
NEITHER = '{"metadata": {"name": "x"}}'
TWO_LINES = """apiVersion: v1
kind: ConfigMap
metadata:
  name: yaml
  name: yaml
  zzz: 1
data:
  a: x
  b: w
  a: z
bogus: 1
"""
OWN_YAML = f"""apiVersion: {GROUP}/v1
kind: Body
metadata:
  name: applied
spec:
  foo: a
  inner:
    a: 1
    a: 2
  foo: b
"""
SCALE = """{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "scaled"},
 "spec": {"replicas": 1, "replicas": 0}, "bogus": 1}"""
BAD_PATCH = '{"data": {"a": "x", "a": "y"}, "bogus": 1, "another": 2}'

CASES = [
    Case("in the order of the text", "POST", f"{DEPLOYMENTS}?fieldValidation=Strict", JSON,
         deployment("x", '"unknown": 1, "replicas": 2, "replicas": 3'), 400,
         f'{REFUSED}unknown field "spec.unknown", duplicate field "spec.replicas"'),
    Case("repeated before unknown", "POST", f"{DEPLOYMENTS}?fieldValidation=Strict", JSON,
         deployment("x", '"replicas": 2, "replicas": 3, "replicas": 4, "unknown": 1'), 400,
         f'{REFUSED}duplicate field "spec.replicas", unknown field "spec.unknown"'),
    Case("below an unknown field nothing counts", "POST", f"{DEPLOYMENTS}?fieldValidation=Strict", JSON,
         deployment("x", '"unknown": {"a": 1, "a": 2}, "replicas": 2, "replicas": 3, "unknown": 1'), 400,
         f'{REFUSED}unknown field "spec.unknown", duplicate field "spec.replicas"'),
    Case("in a list and in a map", "POST", f"{DEPLOYMENTS}?fieldValidation=Strict", JSON,
         deployment("x", '"replicas": 1').replace('"image": "i"', '"image": "i", "image": "j", "foo": 1')
         .replace('"a": "b"', '"a": "c", "a": "b"'), 400,
         f'{REFUSED}duplicate field "spec.selector.matchLabels.a", duplicate field "spec.template.metadata.labels.a", '
         'duplicate field "spec.template.spec.containers[0].image", '
         'unknown field "spec.template.spec.containers[0].foo"'),
    Case("warned of", "POST", f"{DEPLOYMENTS}?fieldValidation=Warn&dryRun=All", JSON,
         deployment("x", '"unknown": 1, "replicas": 2, "replicas": 3'), 201, "",
         ('unknown field "spec.unknown"', 'duplicate field "spec.replicas"')),
    Case("warned of unless told otherwise", "POST", f"{MAPS}?dryRun=All", JSON,
         config_map("x", '"data": {"a": "b", "a": "c"}'), 201, "", ('duplicate field "data.a"',)),
    Case("ignored", "POST", f"{MAPS}?fieldValidation=Ignore&dryRun=All", JSON,
         config_map("x", '"data": {"a": "b", "a": "c"}, "bogus": 1'), 201),
    Case("an object again adds to the one before", "POST", f"{MAPS}?dryRun=All", JSON,
         config_map("x", '"metadata": {"labels": {"a": "b"}}'), 201, "", ('duplicate field "metadata"',)),
    Case("but not in a custom one", "POST", f"{OWN}?dryRun=All", JSON,
         own("x", '"metadata": {"labels": {"a": "b"}}'), 422,
         f'Body.{GROUP} "" is invalid: metadata.name: Required value: name or generateName is required',
         ('duplicate field "metadata"',)),
    Case("a wrong type comes first", "POST", f"{MAPS}?fieldValidation=Strict", JSON,
         config_map("x", '"data": {"a": "b", "a": 1}, "bogus": 1'), 400,
         'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field '
         "ConfigMap.data of type string"),
    Case("YAML", "POST", f"{MAPS}?fieldValidation=Strict", YAML, TWO_LINES, 400,
         f'{MAP_REFUSED}yaml: unmarshal errors:\n  line 5: key "name" already set in map\n  line 10: key "a" already '
         'set in map, unknown field "bogus", unknown field "metadata.zzz"'),
    Case("YAML, warned of", "POST", f"{MAPS}?fieldValidation=Warn&dryRun=All", YAML, TWO_LINES, 201, "",
         ('line 5: key "name" already set in map', 'line 10: key "a" already set in map', 'unknown field "bogus"',
          'unknown field "metadata.zzz"')),
    Case("a custom object", "POST", f"{OWN}?fieldValidation=Strict", JSON,
         own("x", '"spec": {"foo": "a", "foo": "b", "other": {"x": [{"y": 1, "y": 2}]}, "inner": {"no": 1}}, "top": 1'),
         400, f'{OWN_REFUSED}duplicate field "spec.foo", duplicate field "spec.other.x[0].y", '
         'unknown field "spec.inner.no", unknown field "top"'),
    Case("a custom object, warned of", "POST", f"{OWN}?dryRun=All", JSON,
         own("x", '"spec": {"foo": "a", "foo": "b", "inner": {"no": 1}}, "top": 1'), 201, "",
         ('duplicate field "spec.foo"', 'unknown field "spec.inner.no"', 'unknown field "top"')),
    Case("a custom object in YAML", "POST", f"{OWN}?fieldValidation=Strict", YAML, OWN_YAML, 400,
         f'{OWN_REFUSED}yaml: unmarshal errors:\n  line 9: key "a" already set in map\n  line 10: key "foo" already '
         "set in map"),
    Case("a custom object without a kind", "POST", OWN, JSON, NO_KIND, 400, f"{MISSING}'{NO_KIND}' ({NO_KIND[:30]} ...)"),
    Case("a custom object without an apiVersion", "POST", OWN, JSON, NO_VERSION, 400, f"the API version in the data () {OTHER}"),
    Case("a custom object with neither", "POST", OWN, JSON, NEITHER, 400, f"{MISSING}'{NEITHER}' ({NEITHER})"),
    Case("a custom object with neither, in YAML", "POST", OWN, YAML, "metadata: {name: x}\n", 400,
         f"{MISSING}'metadata: {{name: x}}\n' (6d657461646174613a207b6e616d653a20787d0a)"),
    Case("a custom object of another kind", "POST", OWN, JSON, own("x", '"spec": {}').replace('"Body"', '"Other"'), 422,
         f'Other.{GROUP} "x" is invalid: kind: Invalid value: "Other": must be Body'),
    Case("a custom object of another group", "POST", OWN, JSON, own("x", '"spec": {}').replace(GROUP, "x.y"), 400,
         f"the API version in the data (x.y/v1) {OTHER}"),
    Case("applied", "PATCH", f"{OWN}/applied?fieldManager=m&fieldValidation=Strict", APPLY, OWN_YAML, 400,
         'error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 9: key "a" '
         'already set in map\n  line 10: key "foo" already set in map'),
    Case("applied, warned of", "PATCH", f"{OWN}/applied?fieldManager=m&dryRun=All", APPLY, OWN_YAML, 201, "",
         ('line 9: key "a" already set in map', 'line 10: key "foo" already set in map')),
    Case("applied JSON", "PATCH", f"{MAPS}/applied?fieldManager=m&fieldValidation=Strict", APPLY,
         config_map("applied", '"data": {"a": "b", "a": "c"}'), 400,
         'error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 1: key "a" '
         "already set in map"),
    Case("applied YAML that looks like JSON", "PATCH", f"{MAPS}/applied?fieldManager=m&dryRun=All", APPLY,
         config_map("applied", '"data": {"a": "b",},'), 201),
    Case("something to patch", "POST", MAPS, JSON, config_map("there", '"data": {"z": "1"}'), 201),
    Case("a merge", "PATCH", f"{MAPS}/there?fieldManager=m&fieldValidation=Strict", MERGE, BAD_PATCH, 422,
         ' "" is invalid: patch: Invalid value: "OBJECT": strict decoding error: '
         'duplicate field "data.a", unknown field "another", unknown field "bogus"'),
    Case("a merge, warned of", "PATCH", f"{MAPS}/there?fieldManager=m&dryRun=All", MERGE, BAD_PATCH, 200, "",
         ('duplicate field "data.a"', 'unknown field "another"', 'unknown field "bogus"')),
    Case("a strategic merge", "PATCH", f"{MAPS}/there?fieldManager=m&fieldValidation=Strict", STRATEGIC, BAD_PATCH, 422,
         ' "" is invalid: patch: Invalid value: "map[another:2 bogus:1 data:map[a:y]]": strict decoding error: '
         'duplicate field "data.a", unknown field "another", unknown field "bogus"'),
    Case("a JSON patch, warned of", "PATCH", f"{MAPS}/there?fieldManager=m&dryRun=All", PATCH,
         '[{"op": "add", "path": "/bogus", "value": 1, "why": 2, "op": "add"}]', 200, "",
         ('json patch unknown field "[0].why"', 'json patch duplicate field "[0].op"', 'unknown field "bogus"')),
    Case("a custom object to patch", "POST", OWN, JSON, own("there", '"spec": {"foo": "a"}'), 201),
    Case("a custom object replaced without a kind", "PUT", f"{OWN}/there", JSON, NEITHER, 400,
         f"{MISSING}'{NEITHER}' ({NEITHER})"),
    Case("a custom object replaced without an apiVersion", "PUT", f"{OWN}/there", JSON, NO_VERSION, 400,
         f"the API version in the data () {OTHER}"),
    Case("a custom object merged", "PATCH", f"{OWN}/there?fieldManager=m&fieldValidation=Strict", MERGE,
         '{"top": 1, "spec": {"x": 1, "x": 2}}', 422,
         ' "" is invalid: patch: Invalid value: "OBJECT": strict decoding error: duplicate field "spec.x", '
         'unknown field "top"'),
    Case("something to scale", "POST", DEPLOYMENTS, JSON, deployment("scaled", '"replicas": 0'), 201),
    Case("a Scale", "PUT", f"{DEPLOYMENTS}/scaled/scale?fieldValidation=Strict", JSON, SCALE, 400,
         'Scale in version "v1" cannot be handled as a Scale: strict decoding error: duplicate field "spec.replicas", '
         'unknown field "bogus"'),
    Case("a Scale, warned of", "PUT", f"{DEPLOYMENTS}/scaled/scale?dryRun=All", JSON, SCALE, 200, "",
         ('duplicate field "spec.replicas"', 'unknown field "bogus"')),
    Case("a Scale merged", "PATCH", f"{DEPLOYMENTS}/scaled/scale?fieldManager=m&fieldValidation=Strict", MERGE,
         '{"spec": {"replicas": 1, "replicas": 0}, "bogus": 1}', 422,
         ' "" is invalid: patch: Invalid value: "OBJECT": strict decoding error: duplicate field "spec.replicas", '
         'unknown field "bogus"'),
    Case("merged with a wrong type", "PATCH", f"{MAPS}/there?fieldManager=m", MERGE, '{"data": {"a": 1}}', 422,
         ' "" is invalid: patch: Invalid value: "OBJECT": json: cannot unmarshal number into Go struct field '
         "ConfigMap.data of type string"),
]  # fmt: skip
# What came of a patch is quoted with its times and versions, and in the order of Go's fields.
_OBJECT = re.compile(r'Invalid value: "\{.*\}"')


def play(
    ask: Ask, wait: Callable[[Callable[[], bool]], None]
) -> Iterator[tuple[Case, tuple[int, str, tuple[str, ...]]]]:
    """Every case with its answer: code, the message of a refusal, and the warnings. Takes away what it makes."""
    ask("POST", "/api/v1/namespaces", f'{{"metadata": {{"name": "{SPACE}"}}}}', JSON)
    ask("POST", CRDS, CRD, YAML)
    try:
        wait(lambda: ask("GET", OWN, "", JSON)[0] == 200)
        for case in CASES:
            code, value, warnings = ask(case.method, case.path, case.body, case.media)
            message = _OBJECT.sub('Invalid value: "OBJECT"', value["message"]) if code >= 400 else ""
            yield case, (code, message, tuple(warnings))
    finally:
        ask("DELETE", f"{CRDS}/bodies.{GROUP}", "", JSON)
        ask("DELETE", f"/api/v1/namespaces/{SPACE}", "", JSON)
