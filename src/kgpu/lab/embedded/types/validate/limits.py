"""ResourceQuotas and LimitRanges: their keys, scopes, and bounds that fit each other."""

from __future__ import annotations

from typing import Final

from kgpu.base.quantity import Quantity
from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    duplicate,
    finalizer_names,
    metadata,
    metadata_update,
    quantity,
    syntax,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.resources import (
    QUOTA,
    amount,
    container_resource_name,
    overcommit_allowed,
    resource_name,
)  # fmt: skip

_PODS: Final = frozenset({"pods"})
_COMPUTE: Final = frozenset({"cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"})
_SCOPES: Final[dict[str, frozenset[str] | None]] = {
    "Terminating": _PODS | _COMPUTE,
    "NotTerminating": _PODS | _COMPUTE,
    "NotBestEffort": _PODS | _COMPUTE,
    "PriorityClass": _PODS | _COMPUTE,
    "CrossNamespacePodAffinity": _PODS | _COMPUTE,
    "BestEffort": _PODS,
    "VolumeAttributesClass": frozenset({"persistentvolumeclaims", "requests.storage"}),
}
_ONLY_EXISTS: Final = frozenset(_SCOPES) - {"PriorityClass", "VolumeAttributesClass"}
_CONFLICTS: Final = ({"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"})


def _quota_name(errors: Errors, path: str, name: str) -> None:
    resource_name(errors, path, name)
    if "/" not in name and not _standard_quota(name):
        errors.append(bad_value(path, name, "must be a standard resource for quota"))


def _standard_quota(name: str) -> bool:
    return name in QUOTA or name.startswith(("hugepages-", "requests.hugepages-"))


def _amounts(errors: Errors, path: str, amounts: Object | None) -> None:
    for name, text in (amounts or {}).items():
        at = f"{path}[{name}]"
        _quota_name(errors, at, name)
        amount(errors, at, name, quantity(text))


def _quota(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    if old is None:
        metadata(errors, meta, namespaced=True, rule=texts.subdomain)
    else:
        metadata_update(errors, meta, old["metadata"])
    finalizer_names(errors, meta)
    if subresource == "status" and old is not None:
        _amounts(errors, "status.hard", status.get("hard"))
        _amounts(errors, "status.used", status.get("used"))
        return
    _amounts(errors, "spec.hard", spec.get("hard"))
    _scopes(errors, spec)
    _scope_selector(errors, spec)
    if old is not None and set(spec.get("scopes") or ()) != set(old["spec"].get("scopes") or ()):
        errors.append(bad_value("spec.scopes", spec.get("scopes"), "field is immutable"))


def _unfit(scope: str, hard: Object) -> int:
    """The number of the quota's keys that the scope can't be applied to."""
    valid = _SCOPES.get(scope)
    return 0 if valid is None else sum(1 for name in hard if _standard_quota(name) and name not in valid)


def _scopes(errors: Errors, spec: Object) -> None:
    scopes, hard, at = spec.get("scopes") or [], spec.get("hard") or {}, "spec.scopes"
    for scope in scopes:
        if scope not in _SCOPES:
            errors.append(bad_value(at, scopes, "unsupported scope"))
        for _ in range(_unfit(scope, hard)):
            errors.append(bad_value(at, scopes, "unsupported scope applied to resource"))
    for pair in _CONFLICTS:
        if pair <= set(scopes):
            errors.append(bad_value(at, scopes, "conflicting scopes"))


def _scope_selector(errors: Errors, spec: Object) -> None:
    selector, hard = spec.get("scopeSelector"), spec.get("hard") or {}
    at, scopes = "spec.scopeSelector.matchExpressions", set()
    for requirement in (selector or {}).get("matchExpressions") or ():
        scope, operator, values = (
            requirement.get("scopeName", ""),
            requirement.get("operator", ""),
            requirement.get("values") or [],
        )
        if scope not in _SCOPES:
            errors.append(bad_value(f"{at}.scopeName", scope, "unsupported scope"))
        for _ in range(_unfit(scope, hard)):
            errors.append(bad_value(at, selector, "unsupported scope applied to resource"))
        if scope in _ONLY_EXISTS and operator != "Exists":
            words = (
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "
                "ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or "
                "ResourceQuotaScopeCrossNamespacePodAffinity"
            )
            errors.append(bad_value(f"{at}.operator", operator, words))
        if operator in {"In", "NotIn"}:
            if not values:
                words = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                errors.append(required(f"{at}.values", words))
        elif operator in {"Exists", "DoesNotExist"}:
            if values:
                words = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                errors.append(bad_value(f"{at}.values", values, words))
        else:
            errors.append(bad_value(f"{at}.operator", operator, "not a valid selector operator"))
        scopes.add(scope)
    for pair in _CONFLICTS:
        if pair <= scopes:
            errors.append(bad_value(at, spec.get("scopes"), "conflicting scopes"))


_TYPES: Final = frozenset({"Pod", "Container", "PersistentVolumeClaim"})
_FIELDS: Final = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")


def _limit_range(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
    metadata(errors, obj["metadata"], namespaced=True, rule=texts.subdomain)
    finalizer_names(errors, obj["metadata"])
    kinds: set[str] = set()
    for index, item in enumerate(obj["spec"].get("limits") or ()):
        at, kind = f"spec.limits[{index}]", item.get("type", "")
        before = len(errors)
        syntax(errors, f"{at}.type", kind, texts.qualified)
        if len(errors) == before and "/" not in kind and kind not in _TYPES:
            errors.append(bad_value(f"{at}.type", kind, "must be a standard limit type or fully qualified"))
        if kind in kinds:
            errors.append(duplicate(f"{at}.type", kind))
        kinds.add(kind)
        _item(errors, at, item, kind)


def _item(errors: Errors, at: str, item: Object, kind: str) -> None:
    amounts: dict[str, dict[str, Quantity]] = {}
    for field in _FIELDS:
        by_name = item.get(field) or {}
        if kind == "Pod" and field in {"default", "defaultRequest"}:
            if by_name:
                errors.append(forbidden_field(f"{at}.{field}", "may not be specified when `type` is 'Pod'"))
            continue
        if field == "maxLimitRequestRatio" and kind == "PersistentVolumeClaim":
            bounds = {*(item.get("min") or ()), *(item.get("max") or ())}
            if "storage" not in bounds:
                words = "either minimum or maximum storage value is required, but neither was provided"
                errors.append(required(f"{at}.limits", words))
        rule = container_resource_name if kind in {"Pod", "Container"} else resource_name
        for name in by_name:
            rule(errors, f"{at}.{field}[{name}]", name)
        amounts[field] = {name: quantity(text) for name, text in by_name.items()}
    for name in sorted({key for quantities in amounts.values() for key in quantities}):
        _bounds(
            errors, at, name, {field: quantities[name] for field, quantities in amounts.items() if name in quantities}
        )


# Lower field, upper field, the field that the error names, the field whose value it shows, the names of the two.
_ORDER: Final = (
    ("min", "max", "min", "min", "min", "max"),
    ("min", "defaultRequest", "defaultRequest", "defaultRequest", "min", "default request"),
    ("defaultRequest", "max", "defaultRequest", "defaultRequest", "default request", "max"),
    ("defaultRequest", "default", "defaultRequest", "defaultRequest", "default request", "default limit"),
    ("min", "default", "default", "min", "min", "default"),
    ("default", "max", "default", "max", "default", "max"),
)


def _bounds(errors: Errors, at: str, name: str, quantities: dict[str, Quantity]) -> None:
    for low, high, about, shown, low_word, high_word in _ORDER:
        if low in quantities and high in quantities and quantities[low] > quantities[high]:
            text = f"{low_word} value {quantities[low]} is greater than {high_word} value {quantities[high]}"
            errors.append(bad_value(f"{at}.{about}[{name}]", str(quantities[shown]), text))
    ratio = quantities.get("maxLimitRequestRatio")
    if ratio is not None:
        ratio_path = f"{at}.maxLimitRequestRatio[{name}]"
        if ratio < Quantity.of(1):
            errors.append(bad_value(ratio_path, str(ratio), f"ratio {ratio} is less than 1"))
        if "min" in quantities and "max" in quantities and quantities["min"]:
            limit = quantities["max"].milli / quantities["min"].milli
            if ratio.milli / 1000 > limit:
                errors.append(bad_value(ratio_path, str(ratio), f"ratio {ratio} is greater than max/min = {limit:f}"))
    default, request = quantities.get("default"), quantities.get("defaultRequest")
    if default is not None and request is not None and default != request and not overcommit_allowed(name):
        words = f"default value {default} must equal to defaultRequest value {request} in {name}"
        errors.append(bad_value(f"{at}.defaultRequest[{name}]", str(request), words))


CHECKS: Final = {("", "resourcequotas"): _quota, ("", "limitranges"): _limit_range}
