"""What objects use of a ResourceQuota, and which quotas count them. Pure; for admission and for the quota controller.

Amounts are exact. Rules: the quota evaluators of pods, services, claims of volumes and of devices, and object counts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Final

from kgpu.base.quantity import ZERO, Quantity
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.defaults.pod import POD_LEVEL, sum_requests
from kgpu.lab.embedded.types.prepare_pod import qos_class
from kgpu.lab.embedded.types.validate.resources import is_extended, is_hugepages

Usage = dict[str, Quantity]
Key = tuple[str, str]
ONE: Final = Quantity.of(1)
PODS: Final = ("", "pods")
CLAIMS: Final = ("", "persistentvolumeclaims")
SERVICES: Final = ("", "services")
RESOURCE_CLAIMS: Final = ("resource.k8s.io", "resourceclaims")
# Kinds of the core group that have a quota key of their own.
_COUNTED: Final = (
    "configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services",
)  # fmt: skip
# Kinds with an evaluator of their own.
_USUAL: Final = (PODS, RESOURCE_CLAIMS, *(("", plural) for plural in _COUNTED))
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
# Keys that every container must state when a quota limits them.
_STATED: Final = {
    "cpu": ("requests", "cpu"), "requests.cpu": ("requests", "cpu"), "limits.cpu": ("limits", "cpu"),
    "memory": ("requests", "memory"), "requests.memory": ("requests", "memory"),
    "limits.memory": ("limits", "memory"),
}  # fmt: skip
_CLASS: Final = ".storageclass.storage.k8s.io/"
_DEVICES: Final = ".deviceclass.resource.k8s.io/devices"
_MOST_DEVICES: Final = 32  # of one claim: what a request for all devices counts


def count_key(key: Key) -> str:
    """The quota key that counts the kind's objects, such as ``count/deployments.apps``."""
    group, plural = key
    return f"count/{plural}.{group}" if group else f"count/{plural}"


def object_usage(group: str, plural: str, obj: Object) -> Usage:
    """What one object uses, by every quota key that could count it. A finished pod counts as an object alone."""
    used: Usage = {count_key((group, plural)): ONE}
    if (group, plural) == PODS:
        if _runs(obj):
            used |= _pod(obj["spec"])
    elif (group, plural) == RESOURCE_CLAIMS:
        used |= _devices(obj["spec"])
    elif not group and plural in _COUNTED:
        used[plural] = ONE
        if plural == "services":
            used |= _service(obj["spec"])
        elif plural == "persistentvolumeclaims":
            used |= _claim(obj)
    return used


def _runs(pod: Object) -> bool:
    if (pod.get("status") or {}).get("phase") in {"Failed", "Succeeded"}:
        return False
    gone, grace = pod["metadata"].get("deletionTimestamp"), pod["metadata"].get("deletionGracePeriodSeconds")
    if not gone or grace is None:
        return True
    end = dt.datetime.fromisoformat(gone) + dt.timedelta(seconds=grace)
    return dt.datetime.now(dt.UTC) <= end


def pod_amounts(spec: Object, field: str) -> Usage:
    """Requests or limits of a whole pod with its overhead; amounts of the pod itself replace the containers' sum."""
    amounts = sum_requests(spec, field)
    for name, text in ((spec.get("resources") or {}).get(field) or {}).items():
        if name in POD_LEVEL or is_hugepages(name):
            amounts[name] = Quantity.parse(text)
    for name, text in (spec.get("overhead") or {}).items():
        if field == "requests" or name in amounts:
            amounts[name] = amounts.get(name, ZERO) + Quantity.parse(text)
    return amounts


def _pod(spec: Object) -> Usage:
    used: Usage = {"pods": ONE}
    for name, amount in pod_amounts(spec, "requests").items():
        if name in _COMPUTE or is_hugepages(name):
            used[name] = used[f"requests.{name}"] = amount
        elif is_extended(name):
            used[f"requests.{name}"] = amount
    for name, amount in pod_amounts(spec, "limits").items():
        if name in _COMPUTE:
            used[f"limits.{name}"] = amount
    return used


def _service(spec: Object) -> Usage:
    ports = Quantity.of(len(spec.get("ports") or ()))
    kind = spec.get("type")
    if kind == "LoadBalancer":
        return {"services.loadbalancers": ONE, "services.nodeports": ports}
    return {"services.nodeports": ports} if kind == "NodePort" else {}


def _claim(obj: Object) -> Usage:
    spec = obj["spec"]
    used: Usage = {}
    name = spec.get("storageClassName") or ""
    size = (spec.get("resources") or {}).get("requests", {}).get("storage")
    if name:
        used[f"{name}{_CLASS}persistentvolumeclaims"] = ONE
    if size is not None:
        used["requests.storage"] = Quantity.parse(size)
        if name:
            used[f"{name}{_CLASS}requests.storage"] = used["requests.storage"]
    return used


def _devices(spec: Object) -> Usage:
    """The devices of each class; of a request's alternatives the most of a class count."""
    total: dict[str, int] = {}
    for request in (spec.get("devices") or {}).get("requests") or ():
        most: dict[str, int] = {}
        for choice in request.get("firstAvailable") or [request.get("exactly") or {}]:
            key = f"{choice.get('deviceClassName') or ''}{_DEVICES}"
            count = _MOST_DEVICES if choice.get("allocationMode") == "All" else int(choice.get("count") or 0)
            most[key] = max(most.get(key, 0), count)
        for key, count in most.items():
            total[key] = total.get(key, 0) + count
    return {key: Quantity.of(count) for key, count in total.items()}


def matches(quota: Object, group: str, plural: str, obj: Object) -> bool:
    """Whether the quota has a key that counts the kind, and its scopes select the object."""
    key = (group, plural)
    if not any(counts(name, key) for name in quota["spec"].get("hard") or ()):
        return False
    scopes = [{"scopeName": scope, "operator": "Exists"} for scope in quota["spec"].get("scopes") or ()]
    scopes += (quota["spec"].get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(key == PODS and _in_scope(scope, obj) for scope in scopes)


def counts(name: str, key: Key) -> bool:
    """Whether the quota key ``name`` counts objects of the kind."""
    if name == count_key(key):
        return True
    group, plural = key
    if key == RESOURCE_CLAIMS:
        return name.endswith(_DEVICES)
    if key == PODS:
        bare = name.removeprefix("requests.").removeprefix("limits.")
        if name == "pods" or bare in _COMPUTE or is_hugepages(bare):
            return True
        return name.startswith("requests.") and is_extended(bare) and _CLASS not in name
    if group or plural not in _COUNTED:
        return False
    if key == CLAIMS:
        return name in {plural, "requests.storage"} or _CLASS in name
    return name == plural or (key == SERVICES and name.startswith("services."))


def _in_scope(requirement: Object, pod: Object) -> bool:
    spec: Object = pod["spec"]
    scope = requirement.get("scopeName")
    if scope == "PriorityClass":
        name = str(spec.get("priorityClassName") or "")
        values: list[str] = requirement.get("values") or []
        match requirement.get("operator"):
            case "In":
                return name in values
            case "NotIn":
                return name not in values
            case "DoesNotExist":
                return not name
            case _:
                return bool(name)
    ends = (spec.get("activeDeadlineSeconds") or -1) >= 0
    modest = (pod.get("status") or {}).get("qosClass", qos_class(spec)) == "BestEffort"
    in_scope = {
        "Terminating": ends, "NotTerminating": not ends, "BestEffort": modest, "NotBestEffort": not modest,
        "CrossNamespacePodAffinity": _crosses(spec),
    }  # fmt: skip
    return bool(in_scope.get(str(scope), False))


def _crosses(spec: Object) -> bool:
    for side in ("podAffinity", "podAntiAffinity"):
        terms = (spec.get("affinity") or {}).get(side) or {}
        every = [*(terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ())]
        every += [
            weighted.get("podAffinityTerm") or {}
            for weighted in terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        ]
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in every):
            return True
    return False


def missing_amounts(hard: Iterable[str], spec: Object) -> str:
    """``must specify limits.cpu for: a`` when containers leave out what the quota limits; "" when none does."""
    if spec.get("resources"):
        return ""
    missing: dict[str, set[str]] = {}
    for name in hard:
        field, resource = _STATED.get(name, ("", ""))
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())) if field else ():
            if resource not in (container.get("resources") or {}).get(field, {}):
                missing.setdefault(name, set()).add(container.get("name", ""))
    if not missing:
        return ""
    return "must specify " + "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))


def kinds_needed(quota: Object, known: Iterable[Key] = ()) -> set[Key]:
    """The (group, plural) of every kind that the quota's keys count. ``known``: kinds that ``count/`` may name."""
    hard = quota["spec"].get("hard") or {}
    return {key for key in {*_USUAL, *known} if any(counts(name, key) for name in hard)}


def _counted(name: str) -> bool:
    return any(counts(name, key) for key in _USUAL)


def quota_usage(quota: Object, objects: Mapping[Key, Iterable[Object]]) -> Usage:
    """``status.used`` exactly: one entry for every key of ``spec.hard`` that some evaluator knows, zero without use.

    A key that none knows, such as ``limits.nvidia.com/gpu``, limits nothing and has no entry. ``objects`` by (group,
    plural), those of the quota's namespace; ``kinds_needed`` says which.
    """
    names = [name for name in quota["spec"].get("hard") or () if name.startswith("count/") or _counted(name)]
    used: Usage = {name: _zero(name, quota) for name in names}
    for (group, plural), kind_objects in objects.items():
        for obj in kind_objects:
            if matches(quota, group, plural, obj):
                for name, amount in object_usage(group, plural, obj).items():
                    if name in used:
                        used[name] = used[name] + amount
    return used


def _zero(name: str, quota: Object) -> Quantity:
    """A zero that prints in the format of the limit."""
    return Quantity(0, Quantity.parse(quota["spec"]["hard"][name]).format)


def amounts_text(amounts: Mapping[str, Quantity]) -> str:
    """The amounts as messages list them: ``pods=1,requests.nvidia.com/gpu=2``."""
    return ",".join(f"{name}={amounts[name]}" for name in sorted(amounts))
