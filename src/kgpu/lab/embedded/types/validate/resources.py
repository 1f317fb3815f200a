"""Resource names and amounts: containers' requests and limits, pod level, the rules of extended resources.

The extended ones (``nvidia.com/gpu``): whole numbers, never overcommitted, so that requests equal limits.
"""

from __future__ import annotations

from typing import Final

from kgpu.base.quantity import ZERO, Quantity, QuantityError
from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import Errors, duplicate, not_found, not_supported, quantity, syntax

HUGEPAGES: Final = "hugepages-"
_COMPUTE: Final = frozenset({"cpu", "memory"})
_CONTAINER: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_INTEGER: Final = frozenset(
    {
        "pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps",
        "persistentvolumeclaims", "services.nodeports", "services.loadbalancers",
    }
)  # fmt: skip
STANDARD: Final = frozenset(
    {
        "cpu", "memory", "ephemeral-storage", "requests.cpu", "requests.memory", "requests.ephemeral-storage",
        "limits.cpu", "limits.memory", "limits.ephemeral-storage", "pods", "resourcequotas", "services",
        "replicationcontrollers", "secrets", "configmaps", "persistentvolumeclaims", "storage", "requests.storage",
        "services.nodeports", "services.loadbalancers",
    }
)  # fmt: skip
QUOTA: Final = STANDARD - {"storage"}


def is_hugepages(name: str) -> bool:
    return name.startswith(HUGEPAGES)


def is_native(name: str) -> bool:
    """Whether the resource is Kubernetes' own: without a domain, or under kubernetes.io."""
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    """Whether the resource is an extended one, such as those of device plugins."""
    return not is_native(name) and not name.startswith("requests.") and not texts.qualified(f"requests.{name}")


def is_integer_only(name: str) -> bool:
    return name in _INTEGER or is_extended(name)


def overcommit_allowed(name: str) -> bool:
    return is_native(name) and not is_hugepages(name)


def resource_name(errors: Errors, path: str, name: str) -> bool:
    """Check any resource name and return whether it is valid."""
    before = len(errors)
    syntax(errors, path, name, texts.qualified)
    if len(errors) == before and "/" not in name and name not in STANDARD and not _prefixed_hugepages(name):
        errors.append(bad_value(path, name, "must be a standard resource type or fully qualified"))
    return len(errors) == before


def _prefixed_hugepages(name: str) -> bool:
    return name.startswith((HUGEPAGES, f"requests.{HUGEPAGES}"))


def container_resource_name(errors: Errors, path: str, name: str) -> None:
    resource_name(errors, path, name)
    if "/" not in name:
        if name not in _CONTAINER and not is_hugepages(name):
            errors.append(bad_value(path, name, "must be a standard resource for containers"))
    elif not is_native(name) and not is_extended(name):
        errors.append(bad_value(path, name, "doesn't follow extended resource name standard"))


def _pod_resource_name(errors: Errors, path: str, name: str) -> None:
    if resource_name(errors, path, name) and name not in _COMPUTE and not is_hugepages(name):
        errors.append(not_supported(path, name, ("cpu", "hugepages-", "memory")))


def amount(errors: Errors, path: str, name: str, value: Quantity) -> None:
    """Check that an amount is not negative, and whole for resources without fractions (QTA-01)."""
    if value.nanos < 0:
        errors.append(bad_value(path, str(value), "must be greater than or equal to 0"))
    if is_integer_only(name) and not value.is_integer:
        errors.append(bad_value(path, str(value), "must be an integer"))


def _hugepage_amount(errors: Errors, path: str, name: str, value: Quantity) -> None:
    try:
        size = Quantity.parse(name.removeprefix(HUGEPAGES))
    except QuantityError:
        size = ZERO
    if size.nanos <= 0 or not size.is_integer or value.value % size.value:
        errors.append(bad_value(path, str(value), f"{value} is not positive integer multiple of {name}"))


def requirements(
    errors: Errors, path: str, resources: Object, claim_names: set[str], *, pod_level: bool = False
) -> None:
    """Check requests, limits and claims of a container, or of a whole pod."""
    name_rule = _pod_resource_name if pod_level else container_resource_name
    limits = {name: quantity(text) for name, text in resources.get("limits", {}).items()}
    requests = {name: quantity(text) for name, text in resources.get("requests", {}).items()}
    requests_path, limits_path = f"{path}.requests", f"{path}.limits"
    for name, value in limits.items():
        at = f"{limits_path}[{name}]"
        name_rule(errors, at, name)
        amount(errors, at, name, value)
        if is_hugepages(name):
            _hugepage_amount(errors, at, name, value)
    for name, value in requests.items():
        at = f"{requests_path}[{name}]"
        name_rule(errors, at, name)
        amount(errors, at, name, value)
        limit = limits.get(name)
        if limit is not None:
            if value != limit and not overcommit_allowed(name):
                errors.append(bad_value(requests_path, str(value), f"must be equal to {name} limit of {limit}"))
            elif value > limit:
                words = f"must be less than or equal to {name} limit of {limit}"
                errors.append(bad_value(requests_path, str(value), words))
        elif not overcommit_allowed(name):
            errors.append(required(limits_path, "Limit must be set for non overcommitable resources"))
        if is_hugepages(name):
            _hugepage_amount(errors, at, name, value)
    named = {*limits, *requests}
    if any(is_hugepages(name) for name in named) and not named & _COMPUTE:
        errors.append(forbidden_field(path, "HugePages require cpu or memory"))
    if resources.get("claims"):
        _claims(errors, f"{path}.claims", resources["claims"], claim_names)


def _claims(errors: Errors, path: str, claims: list[Object], known: set[str]) -> None:
    keys: set[str] = set()
    for index, claim in enumerate(claims):
        at, name, request = f"{path}[{index}]", claim.get("name", ""), claim.get("request", "")
        if not name:
            errors.append(required(at))
            continue
        if name in keys:
            errors.append(duplicate(at, name))
        else:
            if request:
                syntax(errors, f"{at}.request", request, texts.label)
            key = f"{name}/{request}" if request else name
            if key in keys:
                errors.append(duplicate(at, key))
            elif not request and any(earlier.startswith(f"{name}/") for earlier in keys):
                errors.append(duplicate(at, name))
            keys.add(key)
        if name not in known:
            words = f": {', '.join(sorted(known))}" if known else " which is empty"
            errors.append(not_found(at, name, f"must be one of the names in pod.spec.resourceClaims{words}"))
