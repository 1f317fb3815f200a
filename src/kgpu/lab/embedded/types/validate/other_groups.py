"""The other API groups: disruption budgets, priority and runtime classes, leases, storage classes, autoscalers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    finalizer_names,
    immutable,
    label_selector,
    labels,
    metadata,
    metadata_update,
    needed,
    not_supported,
    one_of,
    quantity,
    syntax,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.resources import amount, container_resource_name
from kgpu.lab.embedded.types.validate.scheduling import tolerations
from kgpu.lab.embedded.types.validate.workloads import int_or_percent, share

HIGHEST_USER_PRIORITY: Final = 1_000_000_000
SYSTEM_PRIORITIES: Final = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_Check = Callable[[Errors, Object, Object | None, str], None]


def _meta(
    errors: Errors, obj: Object, old: Object | None, *, namespaced: bool, again: bool = False,
    rule: texts.NameRule = texts.subdomain,
) -> None:  # fmt: skip
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
    if old is None or again:
        metadata(errors, obj["metadata"], namespaced=namespaced, rule=rule)
    finalizer_names(errors, obj["metadata"])


def _budget(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
    else:
        metadata(errors, obj["metadata"], namespaced=True, rule=texts.subdomain)
    if subresource == "status":
        return
    spec = obj["spec"]
    if "minAvailable" in spec and "maxUnavailable" in spec:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        errors.append(bad_value("spec", shown, "minAvailable and maxUnavailable cannot be both set"))
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field)
        if value is not None:
            int_or_percent(errors, f"spec.{field}", value)
            if isinstance(value, str) and share(value) > 100:
                errors.append(bad_value(f"spec.{field}", value, "must not be greater than 100%"))
    label_selector(errors, "spec.selector", spec.get("selector"))
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in {"AlwaysAllow", "IfHealthyBudget"}:
        errors.append(not_supported("spec.unhealthyPodEvictionPolicy", policy, ("AlwaysAllow", "IfHealthyBudget")))


def _priority_class(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    value, policy = obj.get("value", 0), obj.get("preemptionPolicy")
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
        if value != old.get("value", 0):
            errors.append(forbidden_field("value", "may not be changed in an update."))
        immutable(errors, "preemptionPolicy", policy, old.get("preemptionPolicy"))
        return
    metadata(errors, obj["metadata"], namespaced=False, rule=texts.subdomain)
    name = obj["metadata"].get("name", "")
    if name.startswith("system-"):
        wrong = _system_class(name, value, obj.get("globalDefault", False))
        if wrong:
            words = f"priority class names with 'system-' prefix are reserved for system use only. error: {wrong}"
            errors.append(forbidden_field("metadata.name", words))
    elif value > HIGHEST_USER_PRIORITY:
        words = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        errors.append(forbidden_field("value", words))
    if policy is not None:
        one_of(errors, "preemptionPolicy", policy, ("PreemptLowerPriority", "Never"), order=True)


def _system_class(name: str, value: int, everybody: bool) -> str:
    known = SYSTEM_PRIORITIES.get(name)
    if known is None:
        return f"{name} is not a known system priority class"
    if value != known:
        return f"value of {name} PriorityClass must be {known}"
    return f"globalDefault of {name} PriorityClass must be false" if everybody else ""


def _lease(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    _meta(errors, obj, old, namespaced=True)
    spec = obj.get("spec") or {}
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        errors.append(bad_value("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    if transitions is not None and transitions < 0:
        errors.append(bad_value("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    if spec.get("preferredHolder") and not spec.get("strategy"):
        errors.append(forbidden_field("spec.preferredHolder", "may only be specified if `strategy` is defined"))


def _runtime_class(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
        immutable(errors, "handler", obj.get("handler", ""), old.get("handler", ""))
        return
    metadata(errors, obj["metadata"], namespaced=False, rule=texts.subdomain)
    syntax(errors, "handler", obj.get("handler", ""), texts.label)
    for name, text in ((obj.get("overhead") or {}).get("podFixed") or {}).items():
        at = f"overhead.limits[{name}]"
        container_resource_name(errors, at, name)
        amount(errors, at, name, quantity(text))
    scheduling = obj.get("scheduling") or {}
    labels(errors, "scheduling.nodeSelector", scheduling.get("nodeSelector"))
    tolerations(errors, "scheduling.tolerations", scheduling.get("tolerations") or [])


def _storage_class(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
        for field in ("parameters", "provisioner", "reclaimPolicy"):
            if (obj.get(field) or None) != (old.get(field) or None):
                errors.append(forbidden_field(field, f"updates to {field} are forbidden."))
        immutable(errors, "volumeBindingMode", obj.get("volumeBindingMode"), old.get("volumeBindingMode"))
        return
    metadata(errors, obj["metadata"], namespaced=False, rule=texts.subdomain)
    if not obj.get("provisioner"):
        errors.append(required("provisioner"))
    else:
        syntax(errors, "provisioner", obj["provisioner"].lower(), texts.qualified)
    policy, mode = obj.get("reclaimPolicy"), obj.get("volumeBindingMode")
    if policy and policy not in {"Delete", "Retain"}:
        errors.append(not_supported("reclaimPolicy", policy, ("Delete", "Retain")))
    if mode is None:
        errors.append(required("volumeBindingMode"))
    elif mode not in {"Immediate", "WaitForFirstConsumer"}:
        errors.append(not_supported("volumeBindingMode", mode, ("Immediate", "WaitForFirstConsumer")))


_METRICS: Final = {
    "Object": "object", "Pods": "pods", "Resource": "resource", "External": "external",
    "ContainerResource": "containerResource",
}  # fmt: skip


def _autoscaler(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    if subresource == "status" and old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
        return
    _meta(errors, obj, old, namespaced=True)
    spec = obj["spec"]
    low, high = spec.get("minReplicas"), spec.get("maxReplicas", 0)
    if low is not None and low < 1:
        errors.append(bad_value("spec.minReplicas", low, "must be greater than or equal to 1"))
    if high < 1:
        errors.append(bad_value("spec.maxReplicas", high, "must be greater than 0"))
    if low is not None and high < low:
        errors.append(bad_value("spec.maxReplicas", high, "must be greater than or equal to `minReplicas`"))
    target = spec.get("scaleTargetRef") or {}
    for field in ("kind", "name"):
        needed(errors, f"spec.scaleTargetRef.{field}", target.get(field), texts.path_segment)
    version = target.get("apiVersion", "")
    if "/" not in version and old is None:
        errors.append(bad_value("spec.scaleTargetRef.apiVersion", version, "apiVersion must specify API group"))
    for index, metric in enumerate(spec.get("metrics") or ()):
        at, kind = f"spec.metrics[{index}]", metric.get("type", "")
        if not kind:
            errors.append(required(f"{at}.type", "must specify a metric source type"))
        if kind not in _METRICS:
            errors.append(not_supported(f"{at}.type", kind, sorted(_METRICS)))
        elif _METRICS[kind] not in metric:
            words = "must populate information for the given metric source"
            errors.append(required(f"{at}.{_METRICS[kind]}", words))
        if "resource" in metric and not metric["resource"].get("name"):
            errors.append(required(f"{at}.resource.name", "must specify a resource name"))


def _api_service(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    """Check an APIService, which is named after version and group; the core group's name ends with a dot."""
    del subresource
    spec = obj["spec"]
    wanted = f"{spec.get('version', '')}.{spec.get('group', '')}"

    def rule(name: str) -> texts.Texts:
        complaints = texts.path_segment(name)
        return complaints or (() if name == wanted else (f'must be `spec.version+"."+spec.group`: "{wanted}"',))

    _meta(errors, obj, old, namespaced=False, rule=rule)


CHECKS: Final[dict[tuple[str, str], _Check]] = {
    ("policy", "poddisruptionbudgets"): _budget,
    ("scheduling.k8s.io", "priorityclasses"): _priority_class,
    ("coordination.k8s.io", "leases"): _lease,
    ("node.k8s.io", "runtimeclasses"): _runtime_class,
    ("storage.k8s.io", "storageclasses"): _storage_class,
    ("autoscaling", "horizontalpodautoscalers"): _autoscaler,
    ("apiregistration.k8s.io", "apiservices"): _api_service,
}
