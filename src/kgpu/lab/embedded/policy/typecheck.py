"""Type checks: the expressions of a policy held against the kinds that it is about. They change nothing but its status.

Pure. Source: typechecking.go of pkg/admission/plugin/policy/validating of the API server.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.lab.embedded.cel.program import CelError, Environment
from kgpu.lab.embedded.cel.values import fresh_pool
from kgpu.lab.embedded.crd.cel_types import Typed, declare
from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.policy.environment import Names, composed
from kgpu.lab.embedded.status import Object

_MOST_TYPES: Final = 10
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_TEXT: Final[Object] = {"type": "string"}


@dataclass(frozen=True, slots=True, order=True)
class Gvk:
    """A kind in one version."""

    group: str
    version: str
    kind: str

    def __str__(self) -> str:
        return f"{self.group}/{self.version}, Kind={self.kind}"


@dataclass(frozen=True, slots=True)
class KindSchema:
    """A kind with the resource's name, its singular, and its schema (references as in ``schema_data``)."""

    gvk: Gvk
    plural: str
    singular: str
    schema: Object | None


def warnings(policy: Object, served: Sequence[KindSchema]) -> list[Object]:
    """``status.typeChecking.expressionWarnings``."""
    spec = policy["spec"]
    schemas = {one.gvk: one.schema for one in served}
    params = _params(spec.get("paramKind"), schemas)
    checkers = [
        (gvk, _environment(schema, params, spec.get("variables") or ()))
        for gvk in _checked_kinds((spec.get("matchConstraints") or {}).get("resourceRules") or (), served)
        if (schema := schemas.get(gvk)) is not None
    ]
    found = []
    for index, row in enumerate(spec.get("validations") or ()):
        for field in ("expression", "messageExpression"):
            text = row.get(field)
            words = [_complaint(gvk, checker(), text) for gvk, checker in checkers] if text else []
            told = "\n".join(filter(None, words))
            if told:
                found.append({"fieldRef": f"spec.validations[{index}].{field}", "warning": told})
    return found


def _complaint(gvk: Gvk, checker: Environment, text: str) -> str:
    found = checker.compile(text)
    return f"{gvk}: {found}\n" if isinstance(found, CelError) else ""


def _params(wanted: Mapping[str, str] | None, schemas: Mapping[Gvk, Object | None]) -> Object | None:
    if not wanted:
        return None
    group, _, version = wanted["apiVersion"].rpartition("/")
    return schemas.get(Gvk(group, version, wanted["kind"]))


def _environment(
    schema: Object, params: Object | None, variables: Sequence[Mapping[str, Any]]
) -> Callable[[], Environment]:
    """Made when it is first asked for."""

    @functools.cache
    def made() -> Environment:
        types = [_typed(one) for one in (schema, params) if one is not None]

        def pool() -> Any:
            found = fresh_pool()
            for one in types:
                one.add_to(found)
            return found

        words = {name: shown for one in types for name, shown in one.names.items()}
        second = types[1].type if params is not None else None
        names = Names(
            # The real server's check doesn't know of it, and warns of those who use it.
            request_resource=False, params=params is not None, object_type=types[0].type, params_type=second,
            pool=pool, words=words,
        )  # fmt: skip
        return names.environment(composed(names, variables))

    return made


def _typed(schema: Object) -> Typed:
    declaration = declare(_whole(schema))
    assert declaration is not None
    return Typed(declaration)


def _whole(schema: Object) -> Object:
    """An object's schema with what every object has, without references."""
    found = _resolved(schema, frozenset())
    properties = {"apiVersion": _TEXT, "kind": _TEXT, **(found.get("properties") or {})}
    if not ((properties.get("metadata") or {}).get("properties") or {}).get("generateName"):
        properties["metadata"] = _resolved({"$ref": _META}, frozenset())
    return {**found, "type": "object", "properties": properties}


def _resolved(schema: Any, above: frozenset[str]) -> Any:
    """Where a type refers to itself an empty object stands."""
    name = schema.get("$ref")
    if name is not None:
        if name in above:
            return {"type": "object"}
        return _resolved(schema_data().get(name, {}), above | {name})
    found = dict(schema)
    if found.get("format") == "int-or-string":
        return {"x-kubernetes-int-or-string": True}
    if "properties" in found:
        found["properties"] = {key: _resolved(one, above) for key, one in found["properties"].items()}
    for part in ("items", "additionalProperties"):
        if isinstance(found.get(part), dict):
            found[part] = _resolved(found[part], above)
    return found


def _checked_kinds(rules: Iterable[Object], served: Sequence[KindSchema]) -> list[Gvk]:
    """The kinds that rules name without a wildcard; at most ten of each rule."""
    found: set[Gvk] = set()
    for rule in rules:
        groups, versions = rule.get("apiGroups") or [], rule.get("apiVersions") or []
        if any("*" in one for one in (*groups, *versions)):
            continue
        resources = [one for one in rule.get("resources") or () if "*" not in one and "/" not in one]
        counted = [
            one.gvk
            for group in sorted(groups)
            for version in sorted(versions)
            for resource in sorted(resources)
            for one in served
            # The core group's name is empty, as is that of no group in particular.
            if group in ("", one.gvk.group) and version == one.gvk.version and resource in (one.plural, one.singular)
        ]
        found.update(counted[:_MOST_TYPES])
        if len(counted) >= _MOST_TYPES:
            break
    return sorted(found)


def built_in() -> list[KindSchema]:
    """The real API's own kinds."""
    from kgpu.lab.embedded.kinds import builtin

    return [
        KindSchema(Gvk(kind.group, kind.version, kind.kind), kind.plural, kind.singular, schema_data().get(kind.schema))
        for kind in builtin()
    ]


def of_crd(definition: Object) -> list[KindSchema]:
    """The versions that a CRD serves."""
    spec = definition["spec"]
    names = spec["names"]
    return [
        KindSchema(
            Gvk(spec["group"], version["name"], names["kind"]), names["plural"], names.get("singular", ""),
            (version.get("schema") or {}).get("openAPIV3Schema"),
        )
        for version in spec["versions"]
        if version.get("served")
    ]  # fmt: skip
