"""ResourceSlices: where a pool's devices are, their attributes and capacities, counters that they share, taints."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    finalizer_names,
    immutable,
    metadata,
    metadata_update,
    syntax,
    too_long,
)
from kgpu.lab.embedded.types.validate.device_capacity import request_policy
from kgpu.lab.embedded.types.validate.device_internal import ATTRIBUTE, NODE_TERMS, internal
from kgpu.lab.embedded.types.validate.devices import (
    binding_conditions,
    by_key,
    device_name,
    driver_name,
    each,
    pool_name,
    qualified_name,
    taint,
    unique,
)
from kgpu.lab.embedded.types.validate.scheduling import node_selector

_MOST_DEVICES: Final = 128
_MOST_TAINTED: Final = 64  # devices, where any has taints or uses counters
_MOST_COUNTER_SETS: Final = 8
_MOST_COUNTERS: Final = 32
_MOST_USES: Final = 2
_MOST_TAINTS: Final = 16
_MOST_PROPERTIES: Final = 32
_LONGEST_KEY: Final = 63 + 1 + 32
_LONGEST_VALUE: Final = 64
_PLACES: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_ONE_PLACE: Final = f"exactly one of {', '.join(f'`{place}`' for place in _PLACES)} is required"
_OWN_PLACE: Final = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true "
    "in the ResourceSlice spec"
)
_NO_OWN_PLACE: Final = (
    "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the "
    "ResourceSlice spec"
)
_ONE_VALUE: Final = "exactly one value must be specified"
_NUMBER: Final = r"(0|[1-9]\d*)"
_BEFORE: Final = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_BUILD: Final = "[0-9a-zA-Z-]+"
_SEMVER: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_BEFORE}(\.{_BEFORE})*)?(\+{_BUILD}(\.{_BUILD})*)?", re.ASCII
)


def _slice(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    if old is None:
        metadata(errors, obj["metadata"], namespaced=False, rule=texts.subdomain)
    else:
        metadata_update(errors, obj["metadata"], old["metadata"])
    finalizer_names(errors, obj["metadata"])
    spec = obj["spec"]
    before = old["spec"] if old is not None else None
    driver_name(errors, "spec.driver", spec.get("driver"))
    pool = spec.get("pool") or {}
    _pool(errors, "spec.pool", pool)
    if before is not None:
        immutable(errors, "spec.pool.name", pool.get("name"), (before.get("pool") or {}).get("name"))
        immutable(errors, "spec.driver", spec.get("driver"), before.get("driver"))
        immutable(errors, "spec.nodeName", spec.get("nodeName"), before.get("nodeName"))
    _place(errors, spec)
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        errors.append(bad_value("spec", "", "only one of `sharedCounters` or `devices` is allowed"))
    devices = spec.get("devices") or []
    tainted = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    known = {device.get("name"): device for device in (before or {}).get("devices") or ()}
    per_device = bool(spec.get("perDeviceNodeSelection"))

    def check(errors: Errors, at: str, device: Object) -> None:
        _device(errors, at, device, known.get(device.get("name")), per_device=per_device)

    most = _MOST_TAINTED if tainted else _MOST_DEVICES
    unique(errors, "spec.devices", devices, check, most=most, key=_name)
    unique(errors, "spec.sharedCounters", spec.get("sharedCounters"), _counter_set, most=_MOST_COUNTER_SETS, key=_name)


def _name(row: Object) -> str:
    return str(row.get("name") or "")


def _pool(errors: Errors, path: str, pool: Object) -> None:
    pool_name(errors, f"{path}.name", pool.get("name"))
    count, generation = pool.get("resourceSliceCount") or 0, pool.get("generation") or 0
    if count <= 0:
        errors.append(bad_value(f"{path}.resourceSliceCount", count, "must be greater than zero"))
    if generation < 0:
        errors.append(bad_value(f"{path}.generation", generation, "must be greater than or equal to zero"))


def _node_name(errors: Errors, path: str, name: str, empty: str) -> bool:
    if not name:
        errors.append(bad_value(path, name, empty))
        return False
    syntax(errors, path, name, texts.subdomain)
    return True


def _flag(errors: Errors, path: str, value: bool) -> bool:
    if not value:
        errors.append(bad_value(path, value, "must be either unset or set to true"))
    return value


def _place(errors: Errors, spec: Object) -> None:
    """Check where the slice's devices are: exactly one of the fields that say it."""
    found: list[str] = []
    if spec.get("nodeName") is not None:
        words = "must be either unset or set to a non-empty string"
        found += ["nodeName"] * _node_name(errors, "spec.nodeName", spec["nodeName"], words)
    selector = spec.get("nodeSelector")
    if selector is not None:
        found.append("nodeSelector")
        node_selector(errors, "spec.nodeSelector", selector)
        terms = selector.get("nodeSelectorTerms")
        if len(terms or ()) != 1:
            # More would make it hard to merge the selectors of several slices.
            at = "spec.nodeSelector.nodeSelectorTerms"
            errors.append(bad_value(at, internal(NODE_TERMS, terms or []), "must have exactly one node selector term"))
    for field in _PLACES[2:]:
        if spec.get(field) is not None:
            found += [field] * _flag(errors, f"spec.{field}", spec[field])
    if not found:
        errors.append(required("spec", _ONE_PLACE))
    elif len(found) > 1:
        errors.append(bad_value("spec", _listed(found), f"{_ONE_PLACE}, but multiple fields are set"))


def _listed(fields: list[str]) -> str:
    return "{" + ", ".join(f"`{field}`" for field in fields) + "}"


def _device(errors: Errors, at: str, device: Object, old: Object | None, *, per_device: bool) -> None:
    device_name(errors, f"{at}.name", device.get("name"))
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    total = len(attributes) + len(capacity)
    if total > _MOST_PROPERTIES:
        words = f"the total number of attributes and capacities must not exceed {_MOST_PROPERTIES}"
        errors.append(bad_value(at, total, words))
    by_key(errors, f"{at}.attributes", attributes, _attribute, keys=qualified_name, longest=_LONGEST_KEY)
    shared = bool(device.get("allowMultipleAllocations"))
    rule = request_policy if shared else _no_request_policy
    by_key(errors, f"{at}.capacity", capacity, rule, keys=qualified_name, longest=_LONGEST_KEY)
    if old is None or (old.get("taints") or []) != (device.get("taints") or []):
        each(errors, f"{at}.taints", device.get("taints"), taint, most=_MOST_TAINTS)
    uses = device.get("consumesCounters")
    unique(
        errors, f"{at}.consumesCounters", uses, _use, most=_MOST_USES, key=lambda row: str(row.get("counterSet") or "")
    )
    if per_device:
        _device_place(errors, at, device)
    elif any(device.get(field) is not None for field in _PLACES[:3]):
        errors.append(bad_value(at, None, _NO_OWN_PLACE))
    binding_conditions(errors, at, device)


def _device_place(errors: Errors, at: str, device: Object) -> None:
    found: list[str] = []
    if device.get("nodeName") is not None:
        found += ["nodeName"] * _node_name(errors, f"{at}.nodeName", device["nodeName"], "must not be empty")
    if device.get("nodeSelector") is not None:
        found.append("nodeSelector")
        node_selector(errors, f"{at}.nodeSelector", device["nodeSelector"])
    if device.get("allNodes") is not None:
        found += ["allNodes"] * _flag(errors, f"{at}.allNodes", device["allNodes"])
    if not found:
        errors.append(required(at, _OWN_PLACE))
    elif len(found) > 1:
        errors.append(bad_value(at, _listed(found), _OWN_PLACE))


def _attribute(errors: Errors, at: str, attribute: Object) -> None:
    text, version = attribute.get("string"), attribute.get("version")
    if text is not None and len(text.encode()) > _LONGEST_VALUE:
        errors.append(too_long(f"{at}.string", _LONGEST_VALUE))
    if version is not None:
        if not _SEMVER.fullmatch(version):
            words = "must be a string compatible with semver.org spec 2.0.0"
            errors.append(bad_value(f"{at}.version", version, words))
        if len(version.encode()) > _LONGEST_VALUE:
            errors.append(too_long(f"{at}.version", _LONGEST_VALUE))
    values = sum(attribute.get(field) is not None for field in ("bool", "int", "string", "version"))
    if values == 0:
        errors.append(bad_value(at, "", _ONE_VALUE))
    elif values > 1:
        errors.append(bad_value(at, internal(ATTRIBUTE, attribute), _ONE_VALUE))


def _no_request_policy(errors: Errors, at: str, capacity: Object) -> None:
    if capacity.get("requestPolicy") is not None:
        errors.append(forbidden_field(f"{at}.requestPolicy", "allowMultipleAllocations must be true"))


def _counter_set(errors: Errors, at: str, row: Object) -> None:
    _counters(errors, at, row, "name")


def _use(errors: Errors, at: str, row: Object) -> None:
    _counters(errors, at, row, "counterSet")


def _counter_set_of(row: Object) -> str:
    return str(row.get("counterSet") or "")


def _any_amount(*_: Any) -> None:
    return


def _counters(errors: Errors, at: str, row: Object, name: str) -> None:
    """Check a set of counters, or the use of one: any amount is valid."""
    if not row.get(name):
        errors.append(required(f"{at}.{name}"))
    else:
        syntax(errors, f"{at}.{name}", row[name], texts.label)
    counters = row.get("counters")
    if not counters:
        errors.append(required(f"{at}.counters"))
    else:
        by_key(errors, f"{at}.counters", counters, _any_amount, keys=device_name, longest=63, most=_MOST_COUNTERS)


CHECKS: Final[dict[tuple[str, str], Callable[[Errors, Object, Object | None, str], Any]]] = {
    ("resource.k8s.io", "resourceslices"): _slice,
}
