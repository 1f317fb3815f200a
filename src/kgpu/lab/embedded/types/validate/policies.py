"""ValidatingAdmissionPolicies and their bindings: rules, selectors, parameters, and expressions that must compile.

Source: pkg/apis/admissionregistration/validation of Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    among,
    duplicate,
    label_selector,
    metadata,
    not_supported,
    syntax,
    too_long,
)
from kgpu.lab.embedded.types.validate.expressions import expressions

GROUP: Final = "admissionregistration.k8s.io"
_OPERATIONS: Final = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_ACTIONS: Final = ("Audit", "Deny", "Warn")
_REPEATED: Final = (
    "must not contain both Deny and Warn (repeating the same validation failure information in the API response and "
    "headers serves no purpose)"
)
_EXCLUSIVE: Final = "name and selector are mutually exclusive"
_REASON: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def policy(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    """Check a policy, or its status."""
    if subresource == "status":
        _status(errors, obj.get("status") or {})
        return
    metadata(errors, obj["metadata"], namespaced=False, rule=texts.subdomain)
    spec = obj.get("spec") or {}
    among(errors, "spec.failurePolicy", spec.get("failurePolicy", ""), ("Fail", "Ignore"))
    if spec.get("paramKind") is not None:
        _param_kind(errors, "spec.paramKind", spec["paramKind"])
    constraints = spec.get("matchConstraints")
    if constraints is None:
        errors.append(required("spec.matchConstraints"))
    else:
        _resources(errors, "spec.matchConstraints", constraints)
        if not constraints.get("resourceRules"):
            errors.append(required("spec.matchConstraints.resourceRules"))
    before = (old or {}).get("spec") or {}
    same = old is not None and all(spec.get(field) == before.get(field) for field in ("paramKind", "matchConditions"))
    expressions(errors, spec, str(obj["metadata"].get("name") or ""), conditions=not same)


def binding(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    """Check a binding."""
    del old, subresource
    metadata(errors, obj["metadata"], namespaced=False, rule=texts.subdomain)
    spec = obj.get("spec") or {}
    if not spec.get("policyName"):
        errors.append(required("spec.policyName"))
    else:
        syntax(errors, "spec.policyName", spec["policyName"], texts.subdomain)
    if spec.get("paramRef") is not None:
        _param_ref(errors, "spec.paramRef", spec["paramRef"])
    if spec.get("matchResources") is not None:
        _resources(errors, "spec.matchResources", spec["matchResources"])
    _actions(errors, "spec.validationActions", spec.get("validationActions") or [])


def _param_kind(errors: Errors, path: str, kind: Object) -> None:
    version, name = kind.get("apiVersion") or "", kind.get("kind") or ""
    where = f"{path}.apiVersion"
    if not version:
        errors.append(required(where))
    elif version.count("/") > 1:
        errors.append(bad_value(where, version, f"unexpected GroupVersion string: {version}"))
    else:
        group, _, number = version.rpartition("/")
        wrong = texts.subdomain(group) if group else ()
        if wrong:
            errors.append(bad_value(where, group, ",".join(wrong)))
        if not number:
            errors.append(bad_value(where, version, "version must be specified"))
        elif wrong := texts.label_1035(number):
            errors.append(bad_value(where, number, ",".join(wrong)))
    if not name:
        errors.append(required(f"{path}.kind"))
    elif wrong := texts.label_1035(name.lower()):
        words = f"may have mixed case, but should otherwise match: {','.join(wrong)}"
        errors.append(bad_value(f"{path}.kind", name, words))


def _resources(errors: Errors, path: str, resources: Object) -> None:
    among(errors, f"{path}.matchPolicy", resources.get("matchPolicy", ""), ("Equivalent", "Exact"))
    for selector in ("namespaceSelector", "objectSelector"):
        label_selector(errors, f"{path}.{selector}", resources.get(selector))
    for field in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(resources.get(field) or ()):
            _rule(errors, f"{path}.{field}[{index}]", rule)


def _rule(errors: Errors, path: str, rule: Object) -> None:
    names = rule.get("resourceNames") or []
    for index, name in enumerate(names):
        syntax(errors, f"{path}.resourceNames[{index}]", name, texts.path_segment)
        if name in names[:index]:
            errors.append(duplicate(f"{path}.resourceNames[{index}]", name))
    operations = rule.get("operations") or []
    _alone(errors, f"{path}.operations", operations, "operations")
    for index, operation in enumerate(operations):
        if operation not in _OPERATIONS:
            errors.append(not_supported(f"{path}.operations[{index}]", operation, _OPERATIONS))
    _alone(errors, f"{path}.apiGroups", rule.get("apiGroups") or [], "API groups")
    versions = rule.get("apiVersions") or []
    _alone(errors, f"{path}.apiVersions", versions, "API versions")
    errors += [required(f"{path}.apiVersions[{index}]") for index, version in enumerate(versions) if not version]
    _resource_names(errors, f"{path}.resources", rule.get("resources") or [])
    scope = rule.get("scope")
    if scope is not None and scope not in ("*", "Cluster", "Namespaced"):
        errors.append(not_supported(f"{path}.scope", scope, ("*", "Cluster", "Namespaced")))


def _alone(errors: Errors, path: str, values: list[str], what: str) -> None:
    if not values:
        errors.append(required(path))
    if len(values) > 1 and "*" in values:
        errors.append(bad_value(path, values, f"if '*' is present, must not specify other {what}"))


def _resource_names(errors: Errors, path: str, values: list[str]) -> None:
    if not values:
        errors.append(required(path))
    whole: set[str] = set()
    everywhere: set[str] = set()
    plain = False
    for index, text in enumerate(values):
        where = f"{path}[{index}]"
        if not text:
            errors.append(required(where))
            continue
        resource, slash, below = text.partition("/")
        if not slash:
            plain = text != "*"
            continue
        if resource in whole:
            errors.append(bad_value(where, text, f"if '{resource}/*' is present, must not specify {text}"))
        if below in everywhere:
            errors.append(bad_value(where, text, f"if '*/{below}' is present, must not specify {text}"))
        if below == "*":
            whole.add(resource)
        if resource == "*":
            everywhere.add(below)
    if len(values) > 1 and "*/*" in values:
        errors.append(bad_value(path, values, "if '*/*' is present, must not specify other resources"))
    if "*" in values and plain:
        words = "if '*' is present, must not specify other resources without subresources"
        errors.append(bad_value(path, values, words))


def _param_ref(errors: Errors, path: str, reference: Object) -> None:
    name, selector, action = (
        reference.get("name") or "",
        reference.get("selector"),
        reference.get("parameterNotFoundAction"),
    )
    if name:
        syntax(errors, f"{path}.name", name, texts.path_segment)
        if selector is not None:
            errors.append(forbidden_field(f"{path}.name", _EXCLUSIVE))
    if selector is not None:
        label_selector(errors, f"{path}.selector", selector)
        if name:
            errors.append(forbidden_field(f"{path}.selector", _EXCLUSIVE))
    if not name and selector is None:
        errors.append(required(path, "one of name or selector must be specified"))
    where = f"{path}.parameterNotFoundAction"
    if not action:
        errors.append(required(where))
    elif action not in ("Deny", "Allow"):
        errors.append(not_supported(where, action, ("Deny", "Allow")))


def _actions(errors: Errors, path: str, values: Sequence[str]) -> None:
    for index, action in enumerate(values):
        if action not in _ACTIONS:
            errors.append(not_supported(f"{path}[{index}]", action, _ACTIONS))
        if action in values[:index]:
            errors.append(duplicate(f"{path}[{index}]", action))
    if "Deny" in values and "Warn" in values:
        errors.append(bad_value(path, list(values), _REPEATED))
    if not values:
        errors.append(required(path, "at least one validation action is required"))


def _status(errors: Errors, status: Object) -> None:
    warnings = (status.get("typeChecking") or {}).get("expressionWarnings") or ()
    for index, warning in enumerate(warnings):
        for field in ("warning", "fieldRef"):
            if not (warning.get(field) or "").strip():
                errors.append(required(f"status.typeChecking.expressionWarnings[{index}].{field}"))
    types: set[str] = set()
    for index, condition in enumerate(status.get("conditions") or ()):
        where = f"status.conditions[{index}]"
        if condition.get("type", "") in types:
            errors.append(duplicate(f"{where}.type", condition["type"]))
        types.add(condition.get("type", ""))
        _condition(errors, where, condition)


def _condition(errors: Errors, path: str, condition: Object) -> None:
    syntax(errors, f"{path}.type", condition.get("type", ""), texts.qualified)
    if condition.get("status") not in ("False", "True", "Unknown"):
        errors.append(not_supported(f"{path}.status", condition.get("status", ""), ("False", "True", "Unknown")))
    if condition.get("observedGeneration", 0) < 0:
        words = "must be greater than or equal to zero"
        errors.append(bad_value(f"{path}.observedGeneration", condition["observedGeneration"], words))
    if not condition.get("lastTransitionTime"):
        errors.append(required(f"{path}.lastTransitionTime"))
    reason = condition.get("reason") or ""
    if not reason:
        errors.append(required(f"{path}.reason"))
    elif not _REASON.fullmatch(reason):
        words = texts.explained(
            "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
            "characters or '_,:', and must end with an alphanumeric character or '_'",
            _REASON.pattern, "my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB",
        )  # fmt: skip
        errors.append(bad_value(f"{path}.reason", reason, words))
    if len(reason) > 1024:
        errors.append(too_long(f"{path}.reason", 1024))
    if len(condition.get("message") or "") > 32 * 1024:
        errors.append(too_long(f"{path}.message", 32 * 1024))


CHECKS: Final = {
    (GROUP, "validatingadmissionpolicies"): policy,
    (GROUP, "validatingadmissionpolicybindings"): binding,
}
