"""Which requests a policy or a binding matches: rules with names and scope, selectors, equivalent versions.

Pure. Sources: pkg/admission/plugin/policy/matching and pkg/admission/plugin/webhook/predicates of the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kgpu.lab.embedded import selectors
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.policy.request import NAMESPACES, AdmissionRequest
from kgpu.lab.embedded.status import Object

_WRITES: Final = frozenset({"CREATE", "UPDATE"})
Equivalents = Callable[[ApiKind], Sequence[ApiKind]]
"""The other kinds (versions, groups) in which the same objects are served."""


class Matcher:
    """Matches requests by one ``MatchResources``, with its defaults; None matches everything."""

    def __init__(self, resources: Mapping[str, Any] | None) -> None:
        constraints = resources or {}
        self._rules: Sequence[Object] = constraints.get("resourceRules") or ()
        self._excluded: Sequence[Object] = constraints.get("excludeResourceRules") or ()
        self._equivalent = constraints.get("matchPolicy") == "Equivalent"
        self._namespaces = selectors.of_label_selector(constraints.get("namespaceSelector")) or ()
        self._objects = selectors.of_label_selector(constraints.get("objectSelector")) or ()

    def concerns(self, request: AdmissionRequest, equivalents: Equivalents) -> bool:
        """Whether a request could match, by its operation and resource alone; callers may cache the answer."""
        if not self._rules:
            return True
        kinds = (request.kind, *(equivalents(request.kind) if self._equivalent else ()))
        return any(_is_about(rule, request, kind) for kind in kinds for rule in self._rules)

    def match(self, request: AdmissionRequest, equivalents: Equivalents, namespace: Object | None) -> ApiKind | None:
        """The kind to treat the request as, None when it doesn't match. ``namespace``: the object of its namespace."""
        if self._namespaces and not self._in_namespaces(request, namespace):
            return None
        if self._objects and not any(
            selectors.matches(self._objects, _labels(obj)) for obj in (request.obj, request.old) if obj is not None
        ):
            return None
        if self._excluded and self._by_rules(self._excluded, request, equivalents) is not None:
            return None
        return self._by_rules(self._rules, request, equivalents) if self._rules else request.kind

    def _in_namespaces(self, request: AdmissionRequest, namespace: Object | None) -> bool:
        whole = request.kind.key == NAMESPACES
        if not request.namespace and not whole:
            return True
        fresh = whole and not request.subresource and request.operation in _WRITES
        return selectors.matches(self._namespaces, _labels((request.obj if fresh else namespace) or {}))

    def _by_rules(self, rules: Iterable[Object], request: AdmissionRequest, equivalents: Equivalents) -> ApiKind | None:
        kinds = (request.kind, *(equivalents(request.kind) if self._equivalent else ()))
        for kind in kinds:
            for rule in rules:
                names = rule.get("resourceNames")
                if _is_about(rule, request, kind) and _in_scope(rule, request) and (not names or request.name in names):
                    return kind
        return None


def _labels(obj: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = (obj.get("metadata") or {}).get("labels") or {}
    return labels


def _is_about(rule: Object, request: AdmissionRequest, kind: ApiKind) -> bool:
    return (
        _has(rule.get("operations"), request.operation)
        and _has(rule.get("apiGroups"), kind.group)
        and _has(rule.get("apiVersions"), kind.version)
        and any(_is_resource(resource, kind.plural, request.subresource) for resource in rule.get("resources") or ())
    )


def _has(values: Iterable[str] | None, wanted: str) -> bool:
    return any(name in ("*", wanted) for name in values or ())


def _is_resource(text: str, plural: str, subresource: str) -> bool:
    resource, _, below = text.partition("/")
    return resource in ("*", plural) and below in ("*", subresource)


def _in_scope(rule: Object, request: AdmissionRequest) -> bool:
    scope = rule.get("scope") or "*"
    if scope == "*":
        return True
    cluster = request.kind.key == NAMESPACES or not request.namespace
    return cluster if scope == "Cluster" else scope == "Namespaced" and not cluster
