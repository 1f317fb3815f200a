"""Where a pod may run: tolerations, node selectors, affinity, topology spread, gates."""

from __future__ import annotations

from collections import Counter
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    among,
    duplicate,
    label_selector,
    not_supported,
    positive,
    syntax,
)  # fmt: skip

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_WEIGHT: Final = "must be in the range 1-100"


def tolerations(errors: Errors, path: str, toleration_list: list[Object]) -> None:
    for index, toleration in enumerate(toleration_list):
        at, key, operator = f"{path}[{index}]", toleration.get("key", ""), toleration.get("operator", "")
        if key:
            syntax(errors, f"{at}.key", key, texts.qualified)
        elif operator != "Exists":
            words = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            errors.append(bad_value(f"{at}.operator", operator, words))
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
            words = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            errors.append(bad_value(f"{at}.effect", toleration.get("effect", ""), words))
        value = toleration.get("value", "")
        if operator in {"Equal", ""}:
            messages = texts.label_value(value)
            if messages:
                errors.append(bad_value(f"{at}.operator", value, ";".join(messages)))
        elif operator == "Exists":
            if value:
                errors.append(bad_value(f"{at}.operator", value, "value must be empty when `operator` is 'Exists'"))
        else:
            known = ("Equal", "Exists", "Lt", "Gt") if operator in {"Lt", "Gt"} else ("Equal", "Exists")
            errors.append(not_supported(f"{at}.operator", operator, known))
        effect = toleration.get("effect", "")
        if effect and effect not in EFFECTS:
            errors.append(not_supported(f"{at}.effect", effect, EFFECTS))


def affinity(errors: Errors, path: str, spec: Object | None) -> None:
    """Check node affinity, pod affinity and pod anti-affinity."""
    if not spec:
        return
    node = spec.get("nodeAffinity") or {}
    if node.get(_REQUIRED) is not None:
        node_selector(errors, f"{path}.nodeAffinity.{_REQUIRED}", node[_REQUIRED])
    for index, term in enumerate(node.get(_PREFERRED) or ()):
        at = f"{path}.nodeAffinity.{_PREFERRED}[{index}]"
        _weight(errors, at, term)
        _node_term(errors, f"{at}.preference", term.get("preference") or {}, strict=False)
    for field in ("podAffinity", "podAntiAffinity"):
        terms = spec.get(field) or {}
        for index, term in enumerate(terms.get(_REQUIRED) or ()):
            _pod_term(errors, f"{path}.{field}.{_REQUIRED}[{index}]", term)
        for index, weighted in enumerate(terms.get(_PREFERRED) or ()):
            at = f"{path}.{field}.{_PREFERRED}[{index}]"
            _weight(errors, at, weighted)
            _pod_term(errors, f"{at}.podAffinityTerm", weighted.get("podAffinityTerm") or {})


def _weight(errors: Errors, path: str, term: Object) -> None:
    weight = term.get("weight", 0)
    if not 1 <= weight <= 100:
        errors.append(bad_value(f"{path}.weight", weight, _WEIGHT))


def node_selector(errors: Errors, path: str, selector: Object) -> None:
    """Check a NodeSelector, which must have at least one term."""
    terms = selector.get("nodeSelectorTerms")
    if not terms:
        errors.append(required(f"{path}.nodeSelectorTerms", "must have at least one node selector term"))
    for index, term in enumerate(terms or ()):
        _node_term(errors, f"{path}.nodeSelectorTerms[{index}]", term, strict=True)


def _node_term(errors: Errors, path: str, term: Object, *, strict: bool) -> None:
    for index, requirement in enumerate(term.get("matchExpressions") or ()):
        _node_requirement(errors, f"{path}.matchExpressions[{index}]", requirement, strict=strict)
    for index, requirement in enumerate(term.get("matchFields") or ()):
        _field_requirement(errors, f"{path}.matchFields[{index}]", requirement)


def _node_requirement(errors: Errors, path: str, requirement: Object, *, strict: bool) -> None:
    operator, values = requirement.get("operator", ""), requirement.get("values") or []
    if operator in {"In", "NotIn"}:
        if not values:
            errors.append(required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            words = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(forbidden_field(f"{path}.values", words))
    elif operator in {"Gt", "Lt"}:
        if len(values) != 1:
            words = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.append(required(f"{path}.values", words))
    else:
        errors.append(bad_value(f"{path}.operator", operator, "not a valid selector operator"))
    syntax(errors, f"{path}.key", requirement.get("key", ""), texts.qualified)
    if strict:
        for index, value in enumerate(values):
            syntax(errors, f"{path}.values[{index}]", value, texts.label_value)


def _field_requirement(errors: Errors, path: str, requirement: Object) -> None:
    operator, values = requirement.get("operator", ""), requirement.get("values") or []
    if operator not in {"In", "NotIn"}:
        errors.append(bad_value(f"{path}.operator", operator, "not a valid selector operator"))
    elif len(values) != 1:
        words = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.append(required(f"{path}.values", words))
    if requirement.get("key") != "metadata.name":
        errors.append(bad_value(f"{path}.key", requirement.get("key", ""), "not a valid field selector key"))
        return
    for index, value in enumerate(values):
        syntax(errors, f"{path}.values[{index}]", value, texts.subdomain)


def _pod_term(errors: Errors, path: str, term: Object) -> None:
    label_selector(errors, f"{path}.labelSelector", term.get("labelSelector"))
    label_selector(errors, f"{path}.namespaceSelector", term.get("namespaceSelector"))
    for name in term.get("namespaces") or ():
        syntax(errors, f"{path}.namespace", name, texts.label)
    _label_keys(errors, path, term)
    topology = term.get("topologyKey", "")
    if not topology:
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    syntax(errors, f"{path}.topologyKey", topology, texts.qualified)


def _label_keys(errors: Errors, path: str, term: Object) -> None:
    """Check matchLabelKeys and mismatchLabelKeys: allowed only with a selector, and not with keys that it has."""
    selector = term.get("labelSelector")
    matched, mismatched = term.get("matchLabelKeys") or [], term.get("mismatchLabelKeys") or []
    for field, keys in (("matchLabelKeys", matched), ("mismatchLabelKeys", mismatched)):
        if keys and selector is None:
            errors.append(forbidden_field(f"{path}.{field}", "must not be specified when labelSelector is not set"))
            continue
        for index, key in enumerate(keys):
            syntax(errors, f"{path}.{field}[{index}]", key, texts.qualified)
    if selector is not None:
        known = set(selector.get("matchLabels") or ())
        for requirement in selector.get("matchExpressions") or ():
            key = requirement.get("key", "")
            if key in matched and key in known:
                words = "exists in both matchLabelKeys and labelSelector"
                errors.append(bad_value(f"{path}[{matched.index(key)}]", key, words))
            known.add(key)
    for index, key in enumerate(matched):
        if key in mismatched:
            words = "exists in both matchLabelKeys and mismatchLabelKeys"
            errors.append(bad_value(f"{path}.matchLabelKeys[{index}]", key, words))


def spread(errors: Errors, path: str, constraints: list[Object]) -> None:
    """Check topologySpreadConstraints."""
    later = Counter(
        (constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", "")) for constraint in constraints
    )
    for index, constraint in enumerate(constraints):
        at, action, topology = (
            f"{path}[{index}]",
            constraint.get("whenUnsatisfiable", ""),
            constraint.get("topologyKey", ""),
        )
        positive(errors, f"{at}.maxSkew", constraint.get("maxSkew", 0))
        if not topology:
            errors.append(required(f"{at}.topologyKey", "can not be empty"))
        among(errors, f"{at}.whenUnsatisfiable", action, ("DoNotSchedule", "ScheduleAnyway"))
        later[topology, action] -= 1
        if later[topology, action]:
            errors.append(duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", f"{{{topology}, {action}}}"))
        domains = constraint.get("minDomains")
        if domains is not None:
            positive(errors, f"{at}.minDomains", domains)
            if action != "DoNotSchedule":
                words = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                errors.append(bad_value(f"{at}.minDomains", domains, words))
        for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if constraint.get(field) is not None:
                among(errors, f"{at}.{field}", constraint[field], ("Honor", "Ignore"))
        _label_keys(errors, at, constraint)
        label_selector(errors, f"{at}.labelSelector", constraint.get("labelSelector"))


def gates(errors: Errors, path: str, gate_list: list[Object]) -> None:
    seen: set[str] = set()
    for index, gate in enumerate(gate_list):
        name = gate.get("name", "")
        syntax(errors, f"{path}[{index}]", name, texts.qualified)
        if name in seen:
            errors.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)
