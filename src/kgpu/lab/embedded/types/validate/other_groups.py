"""The other API groups: disruption budgets, priority and runtime classes, leases, storage classes, autoscalers, DRA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    duplicate,
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
    too_many,
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


def _claim(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    if subresource == "status" and old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
        status = obj.get("status") or {}
        if status.get("reservedFor") and status.get("allocation") is None:
            words = "may not be specified when `allocated` is not set"
            errors.append(forbidden_field("status.reservedFor", words))
        return
    metadata(errors, obj["metadata"], namespaced=True, rule=texts.subdomain)
    finalizer_names(errors, obj["metadata"])
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
        immutable(errors, "spec", obj["spec"], old["spec"])
        return
    _device_claim(errors, "spec.devices", (obj["spec"].get("devices") or {}))


def _claim_template(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    metadata(errors, obj["metadata"], namespaced=True, rule=texts.subdomain)
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
        immutable(errors, "spec", obj["spec"], old["spec"])
        return
    _device_claim(errors, "spec.spec.devices", ((obj["spec"].get("spec") or {}).get("devices") or {}))


def _device_claim(errors: Errors, path: str, devices: Object) -> None:
    requests = devices.get("requests") or []
    names = _request_names(errors, f"{path}.requests", requests)
    for index, request in enumerate(requests):
        _device_request(errors, f"{path}.requests[{index}]", request)
    known = names | {
        f"{request.get('name')}/{sub.get('name')}"
        for request in requests
        for sub in request.get("firstAvailable") or ()
    }
    for index, constraint in enumerate(devices.get("constraints") or ()):
        at = f"{path}.constraints[{index}]"
        _references(errors, f"{at}.requests", constraint.get("requests") or [], known)
        if constraint.get("matchAttribute") is None and constraint.get("distinctAttribute") is None:
            errors.append(required(f"{at}.matchAttribute"))
    for index, config in enumerate(devices.get("config") or ()):
        at = f"{path}.config[{index}]"
        _references(errors, f"{at}.requests", config.get("requests") or [], known)
        if config.get("opaque") is None:
            errors.append(required(f"{at}.opaque"))


def _request_names(errors: Errors, path: str, requests: list[Object], limit: int = 32) -> set[str]:
    names: set[str] = set()
    if len(requests) > limit:
        errors.append(too_many(path, len(requests), limit))
    for index, request in enumerate(requests):
        name = request.get("name", "")
        if name in names:
            errors.append(duplicate(f"{path}[{index}]", name))
        names.add(name)
    return names


def _references(errors: Errors, path: str, references: list[str], known: set[str]) -> None:
    words = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
    for index, name in enumerate(references):
        if name not in known:
            errors.append(bad_value(f"{path}[{index}]", name, words))


def _device_request(errors: Errors, at: str, request: Object) -> None:
    syntax(errors, f"{at}.name", request.get("name", ""), texts.label)
    exactly, choices = request.get("exactly"), request.get("firstAvailable") or []
    words = "exactly one of `exactly` or `firstAvailable` is required"
    if exactly is None and not choices:
        errors.append(required(at, words))
    elif exactly is not None and choices:
        errors.append(bad_value(at, None, f"{words}, but multiple fields are set"))
    elif exactly is not None:
        _exact(errors, f"{at}.exactly", exactly)
    else:
        _request_names(errors, f"{at}.firstAvailable", choices, 8)
        for index, choice in enumerate(choices):
            syntax(errors, f"{at}.firstAvailable[{index}].name", choice.get("name", ""), texts.label)
            _exact(errors, f"{at}.firstAvailable[{index}]", choice)


def _exact(errors: Errors, at: str, request: Object) -> None:
    needed(errors, f"{at}.deviceClassName", request.get("deviceClassName"), texts.subdomain)
    _selectors(errors, f"{at}.selectors", request.get("selectors") or [])
    mode, count = request.get("allocationMode", ""), request.get("count", 0)
    if mode == "All":
        if count:
            words = "must not be specified when allocationMode is 'All'"
            errors.append(bad_value(f"{at}.count", count, words))
    elif mode == "ExactCount":
        if count <= 0:
            errors.append(bad_value(f"{at}.count", count, "must be greater than zero"))
    else:
        errors.append(not_supported(f"{at}.allocationMode", mode, ("All", "ExactCount")))


def _selectors(errors: Errors, path: str, selectors: list[Object]) -> None:
    if len(selectors) > 32:
        errors.append(too_many(path, len(selectors), 32))
    for index, selector in enumerate(selectors):
        if selector.get("cel") is None:
            errors.append(required(f"{path}[{index}].cel"))


def _device_class(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    _meta(errors, obj, old, namespaced=False)
    _selectors(errors, "spec.selectors", obj["spec"].get("selectors") or [])
    name = obj["spec"].get("extendedResourceName")
    if name is not None:
        syntax(errors, "spec.extendedResourceName", name, texts.qualified)


def _slice(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    _meta(errors, obj, old, namespaced=False)
    spec = obj["spec"]
    needed(errors, "spec.driver", spec.get("driver"), texts.subdomain)
    pool = spec.get("pool") or {}
    needed(errors, "spec.pool.name", pool.get("name"))
    if pool.get("resourceSliceCount", 0) <= 0:
        words = "must be greater than zero"
        errors.append(bad_value("spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), words))
    where = [field for field in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection") if spec.get(field)]
    words = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
    if not where:
        errors.append(required("spec", words))
    elif len(where) > 1:
        shown = "{" + ", ".join(f"`{field}`" for field in where) + "}"
        errors.append(bad_value("spec", shown, f"{words}, but multiple fields are set"))
    if old is not None:
        for field in ("driver", "nodeName"):
            immutable(errors, f"spec.{field}", spec.get(field), old["spec"].get(field))
    device_names: set[str] = set()
    for index, device in enumerate(spec.get("devices") or ()):
        at, name = f"spec.devices[{index}]", device.get("name", "")
        needed(errors, f"{at}.name", name, texts.label)
        if name in device_names:
            errors.append(duplicate(at, name))
        device_names.add(name)


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
    ("resource.k8s.io", "resourceclaims"): _claim,
    ("resource.k8s.io", "resourceclaimtemplates"): _claim_template,
    ("resource.k8s.io", "deviceclasses"): _device_class,
    ("resource.k8s.io", "resourceslices"): _slice,
    ("apiregistration.k8s.io", "apiservices"): _api_service,
}
