"""Roles and bindings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    finalizer_names,
    label_selector,
    metadata,
    metadata_update,
    not_supported,
    syntax,
)  # fmt: skip

_GROUP: Final = "rbac.authorization.k8s.io"
_Check = Callable[[Errors, Object, Object | None, str], None]


def _meta(errors: Errors, obj: Object, *, namespaced: bool) -> None:
    metadata(errors, obj["metadata"], namespaced=namespaced, rule=texts.path_segment)
    finalizer_names(errors, obj["metadata"])


def _role(*, namespaced: bool) -> _Check:
    def check(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
        del subresource
        _meta(errors, obj, namespaced=namespaced)
        for index, rule in enumerate(obj.get("rules") or ()):
            _rule(errors, f"rules[{index}]", rule, namespaced=namespaced)
        aggregation = obj.get("aggregationRule")
        if aggregation is not None and not namespaced:
            selectors, at = aggregation.get("clusterRoleSelectors") or [], "aggregationRule.clusterRoleSelectors"
            if not selectors:
                words = "at least one clusterRoleSelector required if aggregationRule is non-nil"
                errors.append(required(at, words))
            for index, selector in enumerate(selectors):
                label_selector(errors, f"{at}[{index}]", selector)
        if old is not None:
            metadata_update(errors, obj["metadata"], old["metadata"])

    return check


def _rule(errors: Errors, at: str, rule: Object, *, namespaced: bool) -> None:
    if not rule.get("verbs"):
        errors.append(required(f"{at}.verbs", "verbs must contain at least one value"))
    urls = rule.get("nonResourceURLs")
    if urls:
        if namespaced:
            words = "namespaced rules cannot apply to non-resource URLs"
            errors.append(bad_value(f"{at}.nonResourceURLs", urls, words))
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            words = "rules cannot apply to both regular resources and non-resource URLs"
            errors.append(bad_value(f"{at}.nonResourceURLs", urls, words))
        return
    if not rule.get("apiGroups"):
        errors.append(required(f"{at}.apiGroups", "resource rules must supply at least one api group"))
    if not rule.get("resources"):
        errors.append(required(f"{at}.resources", "resource rules must supply at least one resource"))


def _binding(*, namespaced: bool) -> _Check:
    kinds = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)

    def check(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
        del subresource
        _meta(errors, obj, namespaced=namespaced)
        reference = obj.get("roleRef") or {}
        if reference.get("apiGroup") != _GROUP:
            errors.append(not_supported("roleRef.apiGroup", reference.get("apiGroup", ""), (_GROUP,)))
        if reference.get("kind") not in kinds:
            errors.append(not_supported("roleRef.kind", reference.get("kind", ""), kinds))
        if not reference.get("name"):
            errors.append(required("roleRef.name"))
        else:
            syntax(errors, "roleRef.name", reference["name"], texts.path_segment)
        for index, subject in enumerate(obj.get("subjects") or ()):
            _subject(errors, f"subjects[{index}]", subject, namespaced=namespaced)
        if old is not None:
            metadata_update(errors, obj["metadata"], old["metadata"])
            if reference != old.get("roleRef"):
                shown = {
                    "APIGroup": reference.get("apiGroup", ""),
                    "Kind": reference.get("kind", ""),
                    "Name": reference.get("name", ""),
                }
                errors.append(bad_value("roleRef", shown, "cannot change roleRef"))

    return check


def _subject(errors: Errors, at: str, subject: Object, *, namespaced: bool) -> None:
    kind, name, group = subject.get("kind", ""), subject.get("name", ""), subject.get("apiGroup", "")
    if not name:
        errors.append(required(f"{at}.name"))
    if kind == "ServiceAccount":
        if name:
            syntax(errors, f"{at}.name", name, texts.subdomain)
        if group:
            errors.append(not_supported(f"{at}.apiGroup", group, ("",)))
        if not namespaced and not subject.get("namespace"):
            errors.append(required(f"{at}.namespace"))
    elif kind in {"User", "Group"}:
        if group != _GROUP:
            errors.append(not_supported(f"{at}.apiGroup", group, (_GROUP,)))
    else:
        errors.append(not_supported(f"{at}.kind", kind, ("ServiceAccount", "User", "Group")))


CHECKS: Final = {
    (_GROUP, "roles"): _role(namespaced=True),
    (_GROUP, "clusterroles"): _role(namespaced=False),
    (_GROUP, "rolebindings"): _binding(namespaced=True),
    (_GROUP, "clusterrolebindings"): _binding(namespaced=False),
}
