"""Type checks of a policy's expressions against the kinds that it matches. They change nothing but its status.

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
from kgpu.lab.embedded.policy.environment import Declarations, composed
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
    schemas = {kind.gvk: kind.schema for kind in served}
    params = _params(spec.get("paramKind"), schemas)
    checkers = [
        (gvk, _environment(schema, params, spec.get("variables") or ()))
        for gvk in _checked_kinds((spec.get("matchConstraints") or {}).get("resourceRules") or (), served)
        if (schema := schemas.get(gvk)) is not None
    ]
    expression_warnings = []
    for index, row in enumerate(spec.get("validations") or ()):
        for field in ("expression", "messageExpression"):
            text = row.get(field)
            words = [_complaint(gvk, checker(), text) for gvk, checker in checkers] if text else []
            warning = "\n".join(filter(None, words))
            if warning:
                expression_warnings.append({"fieldRef": f"spec.validations[{index}].{field}", "warning": warning})
    return expression_warnings


def _complaint(gvk: Gvk, checker: Environment, text: str) -> str:
    program = checker.compile(text)
    return f"{gvk}: {program}\n" if isinstance(program, CelError) else ""


def _params(wanted: Mapping[str, str] | None, schemas: Mapping[Gvk, Object | None]) -> Object | None:
    if not wanted:
        return None
    group, _, version = wanted["apiVersion"].rpartition("/")
    return schemas.get(Gvk(group, version, wanted["kind"]))


def _environment(
    schema: Object, params: Object | None, variables: Sequence[Mapping[str, Any]]
) -> Callable[[], Environment]:
    """A function that makes the environment at its first call."""

    @functools.cache
    def build() -> Environment:
        types = [_typed(part) for part in (schema, params) if part is not None]

        def pool() -> Any:
            descriptor_pool = fresh_pool()
            for typed in types:
                typed.add_to(descriptor_pool)
            return descriptor_pool

        words = {name: shown for typed in types for name, shown in typed.names.items()}
        second = types[1].type if params is not None else None
        declarations = Declarations(
            # The real server's type check doesn't declare it and warns of policies that use it.
            request_resource=False, params=params is not None, object_type=types[0].type, params_type=second,
            pool=pool, words=words,
        )  # fmt: skip
        return declarations.environment(composed(declarations, variables))

    return build


def _typed(schema: Object) -> Typed:
    declaration = declare(_whole(schema))
    assert declaration is not None
    return Typed(declaration)


def _whole(schema: Object) -> Object:
    """An object's schema with apiVersion, kind and metadata, without references."""
    resolved = _resolved(schema, frozenset())
    properties = {"apiVersion": _TEXT, "kind": _TEXT, **(resolved.get("properties") or {})}
    if not ((properties.get("metadata") or {}).get("properties") or {}).get("generateName"):
        properties["metadata"] = _resolved({"$ref": _META}, frozenset())
    return {**resolved, "type": "object", "properties": properties}


def _resolved(schema: Any, above: frozenset[str]) -> Any:
    """The schema with its references resolved; a type inside itself becomes an empty object."""
    name = schema.get("$ref")
    if name is not None:
        if name in above:
            return {"type": "object"}
        return _resolved(schema_data().get(name, {}), above | {name})
    resolved = dict(schema)
    if resolved.get("format") == "int-or-string":
        return {"x-kubernetes-int-or-string": True}
    if "properties" in resolved:
        resolved["properties"] = {key: _resolved(child, above) for key, child in resolved["properties"].items()}
    for part in ("items", "additionalProperties"):
        if isinstance(resolved.get(part), dict):
            resolved[part] = _resolved(resolved[part], above)
    return resolved


def _checked_kinds(rules: Iterable[Object], served: Sequence[KindSchema]) -> list[Gvk]:
    """The kinds that rules name without a wildcard; at most ten of each rule."""
    kinds: set[Gvk] = set()
    for rule in rules:
        groups, versions = rule.get("apiGroups") or [], rule.get("apiVersions") or []
        if any("*" in pattern for pattern in (*groups, *versions)):
            continue
        resources = [
            resource for resource in rule.get("resources") or () if "*" not in resource and "/" not in resource
        ]
        matched = [
            kind_schema.gvk
            for group in sorted(groups)
            for version in sorted(versions)
            for resource in sorted(resources)
            for kind_schema in served
            # The core group's name is empty, as is that of no group in particular.
            if group in ("", kind_schema.gvk.group)
            and version == kind_schema.gvk.version
            and resource in (kind_schema.plural, kind_schema.singular)
        ]
        kinds.update(matched[:_MOST_TYPES])
        if len(matched) >= _MOST_TYPES:
            break
    return sorted(kinds)


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
