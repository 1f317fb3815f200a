"""Authorization by the API's own Role, ClusterRole and binding objects, evaluated as by the real authorizer.

``system:masters`` may do everything, ``system:nodes`` what the ClusterRole ``system:node`` allows. Aggregated roles
have the rules of the roles that they select at once, without a controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from kgpu.lab.embedded import selectors
from kgpu.lab.embedded.core.model import ApiUser, ObjectLookup
from kgpu.lab.embedded.status import Object

GROUP: Final = "rbac.authorization.k8s.io"
MASTERS: Final = "system:masters"
NODES: Final = "system:nodes"
NODE_ROLE: Final = "system:node"
_KINDS: Final = frozenset({"clusterroles", "clusterrolebindings", "roles", "rolebindings"})
_ACCOUNT: Final = "system:serviceaccount"

Subject = tuple[str, str]
"""("User" or "Group", name)."""
Grant = tuple[str, Object]
"""(namespace, "" for all; roleRef)."""


class Rbac:
    """The authorizer over ``reads``; ``changed`` must be called after each commit, so that bindings are read again."""

    def __init__(self, reads: ObjectLookup) -> None:
        self._reads = reads
        self._grants: dict[Subject, list[Grant]] | None = None
        self._aggregated: dict[str, list[Object]] = {}

    def changed(self, key: tuple[str, str]) -> None:
        """Note that an object of ``(group, plural)`` was written."""
        if key[0] == GROUP and key[1] in _KINDS:
            self._grants = None
            self._aggregated.clear()

    def allowed(self, user: ApiUser, attributes: Object) -> tuple[bool, str]:
        """Whether ``user`` may, and if not the problems with the roles, mostly "". ``attributes`` as in Authority."""
        if MASTERS in user.groups:
            return True, ""
        namespace = str(attributes.get("namespace") or "")
        missing: list[str] = []
        for where, role, problem in self._roles(user):
            if problem:
                missing.append(problem)
            elif where in ("", namespace) and any(_permits(rule, attributes) for rule in self._rules(role)):
                return True, ""
        return False, f"RBAC: {_joined(missing)}" if missing else ""

    def rules(self, user: ApiUser, namespace: str) -> tuple[list[Object], list[Object]]:
        """The resourceRules and nonResourceRules of ``user`` in ``namespace``."""
        every = ["*"]
        if MASTERS in user.groups:
            resources = [{"verbs": every, "apiGroups": every, "resources": every}]
            return resources, [{"verbs": every, "nonResourceURLs": every}]
        resource_rules: list[Object] = []
        paths: list[Object] = []
        for where, role, problem in self._roles(user):
            if problem or where not in ("", namespace):
                continue
            for rule in self._rules(role):
                if rule.get("resources"):
                    names = ("verbs", "apiGroups", "resources", "resourceNames")
                    resource_rules.append({name: rule[name] for name in names if rule.get(name)})
                if rule.get("nonResourceURLs") and not where:
                    paths.append({"verbs": rule["verbs"], "nonResourceURLs": rule["nonResourceURLs"]})
        return resource_rules, paths

    # --- what there is --------------------------------------------------------------------------------------------

    def _roles(self, user: ApiUser) -> Iterator[tuple[str, Object, str]]:
        """(namespace, role, problem) of every binding of the user."""
        if self._grants is None:
            self._grants = self._read_grants()
        if NODES in user.groups:
            role = self._reads.get(GROUP, "clusterroles", "", NODE_ROLE)
            if role is not None:
                yield "", role, ""
        for subject in (("User", user.name), *(("Group", group) for group in user.groups)):
            for where, reference in self._grants.get(subject, ()):
                kind, name = reference.get("kind"), str(reference.get("name") or "")
                plural, space = ("clusterroles", "") if kind == "ClusterRole" else ("roles", where)
                role = self._reads.get(GROUP, plural, space, name)
                problem = "" if role is not None else f'{plural[:-1]}.{GROUP} "{name}" not found'
                yield where, role or {}, problem

    def _read_grants(self) -> dict[Subject, list[Grant]]:
        grants: dict[Subject, list[Grant]] = {}
        for plural in ("clusterrolebindings", "rolebindings"):
            for binding in self._reads.list(GROUP, plural):
                where = str(binding["metadata"].get("namespace") or "")
                for subject in binding.get("subjects") or ():
                    grants.setdefault(_subject(subject, where), []).append((where, binding.get("roleRef") or {}))
        return grants

    def _rules(self, role: Object) -> Iterable[Object]:
        selected = (role.get("aggregationRule") or {}).get("clusterRoleSelectors")
        if not selected:
            return role.get("rules") or ()
        name = role["metadata"]["name"]
        if name not in self._aggregated:
            wanted = [
                requirements for requirements in map(selectors.of_label_selector, selected) if requirements is not None
            ]
            self._aggregated[name] = [
                rule
                for candidate in self._reads.list(GROUP, "clusterroles")
                if candidate["metadata"]["name"] != name and any(_selects(each, candidate) for each in wanted)
                for rule in (candidate.get("rules") or ())
            ]
        return self._aggregated[name]


def _selects(requirements: tuple[selectors.LabelRequirement, ...], role: Object) -> bool:
    return selectors.matches(requirements, role["metadata"].get("labels") or {})


def _subject(subject: Object, where: str) -> Subject:
    kind, name = str(subject.get("kind")), str(subject.get("name"))
    if kind != "ServiceAccount":
        return kind, name
    return "User", f"{_ACCOUNT}:{subject.get('namespace') or where}:{name}"


def _permits(rule: Object, attributes: Object) -> bool:
    if not _has(rule.get("verbs"), attributes.get("verb")):
        return False
    path = attributes.get("path")
    if path is not None:
        return any(
            url in ("*", path) or (url.endswith("*") and path.startswith(url.rstrip("*")))
            for url in rule.get("nonResourceURLs") or ()
        )
    if not _has(rule.get("apiGroups"), attributes.get("group") or ""):
        return False
    names = rule.get("resourceNames")
    if names and (attributes.get("name") or "") not in names:
        return False
    subresource = attributes.get("subresource") or ""
    resource = attributes.get("resource") or ""
    target = f"{resource}/{subresource}" if subresource else resource
    wanted = rule.get("resources") or ()
    return "*" in wanted or target in wanted or bool(subresource and f"*/{subresource}" in wanted)


def _has(values: Any, wanted: Any) -> bool:
    return bool(values) and ("*" in values or wanted in values)


def _joined(problems: list[str]) -> str:
    distinct = list(dict.fromkeys(problems))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"
