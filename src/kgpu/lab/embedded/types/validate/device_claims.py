"""ResourceClaims, their templates, and DeviceClasses. The spec of a claim or template never changes.

Admin access, which depends on the namespace, is checked by ``admission.devices``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    annotation_map,
    finalizer_names,
    immutable,
    labels,
    metadata,
    metadata_update,
    needed,
    not_supported,
    syntax,
)
from kgpu.lab.embedded.types.validate.device_internal import CLAIM_SPEC, TEMPLATE_SPEC, internal
from kgpu.lab.embedded.types.validate.device_requests import reference_rule, request_names
from kgpu.lab.embedded.types.validate.device_status import claim_status
from kgpu.lab.embedded.types.validate.devices import (
    configuration,
    each,
    fully_qualified_name,
    selectors,
    toleration,
    unique,
)
from kgpu.lab.embedded.types.validate.resources import is_extended

MOST_REQUESTS: Final = 32
_MOST_CHOICES: Final = 8
_MOST_CONSTRAINTS: Final = 32
MOST_CONFIGS: Final = 32
_ONE_KIND: Final = "exactly one of `exactly` or `firstAvailable` is required"
_NO_ATTRIBUTE: Final = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'


def _metadata(errors: Errors, obj: Object, *, namespaced: bool) -> None:
    metadata(errors, obj["metadata"], namespaced=namespaced, rule=texts.subdomain)
    finalizer_names(errors, obj["metadata"])


def _metadata_update(errors: Errors, obj: Object, old: Object) -> None:
    metadata_update(errors, obj["metadata"], old["metadata"])
    finalizer_names(errors, obj["metadata"])


def _claim(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    if old is None:
        _metadata(errors, obj, namespaced=True)
        _claim_spec(errors, "spec", obj["spec"])
    elif subresource == "status":
        _metadata_update(errors, obj, old)
        claim_status(errors, obj, old, request_names(obj["spec"].get("devices") or {}))
    else:
        _metadata(errors, obj, namespaced=True)
        _metadata_update(errors, obj, old)
        if obj["spec"] != old["spec"]:
            immutable(errors, "spec", internal(CLAIM_SPEC, obj["spec"]), internal(CLAIM_SPEC, old["spec"]))


def _claim_template(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    spec = obj["spec"]
    _metadata(errors, obj, namespaced=True)
    _template_metadata(errors, "spec.metadata", spec.get("metadata") or {})
    _claim_spec(errors, "spec.spec", spec.get("spec") or {})
    if old is not None:
        _metadata_update(errors, obj, old)
        if spec != old["spec"]:
            immutable(errors, "spec", internal(TEMPLATE_SPEC, spec), internal(TEMPLATE_SPEC, old["spec"]))


def _template_metadata(errors: Errors, path: str, meta: Object) -> None:
    annotation_map(errors, f"{path}.annotations", meta.get("annotations"))
    labels(errors, f"{path}.labels", meta.get("labels"))
    for field in meta:
        if field not in {"annotations", "labels"}:
            errors.append(forbidden_field(f"{path}.{field}", "cannot be set"))


def _device_class(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    _metadata(errors, obj, namespaced=False)
    if old is not None:
        _metadata_update(errors, obj, old)
    spec = obj["spec"]
    selectors(errors, "spec.selectors", spec.get("selectors"))
    each(errors, "spec.config", spec.get("config"), configuration, most=MOST_CONFIGS)
    name = spec.get("extendedResourceName")
    if name is not None and not is_extended(name):
        errors.append(bad_value("spec.extendedResourceName", name, "must be a valid extended resource name"))


def _name(row: Object) -> str:
    return str(row.get("name") or "")


def _claim_spec(errors: Errors, path: str, spec: Object) -> None:
    devices = spec.get("devices") or {}
    refers = reference_rule(request_names(devices))
    at = f"{path}.devices"
    unique(errors, f"{at}.requests", devices.get("requests"), _request, most=MOST_REQUESTS, key=_name)

    def constraint(errors: Errors, path: str, row: Object) -> None:
        unique(errors, f"{path}.requests", row.get("requests"), refers, most=MOST_REQUESTS)
        for field in ("matchAttribute", "distinctAttribute"):
            if row.get(field) is not None:
                fully_qualified_name(errors, f"{path}.{field}", row[field])
                return
        errors.append(required(path, _NO_ATTRIBUTE))

    def config(errors: Errors, path: str, row: Object) -> None:
        unique(errors, f"{path}.requests", row.get("requests"), refers, most=MOST_REQUESTS)
        configuration(errors, path, row)

    each(errors, f"{at}.constraints", devices.get("constraints"), constraint, most=_MOST_CONSTRAINTS)
    each(errors, f"{at}.config", devices.get("config"), config, most=MOST_CONFIGS)


def _request(errors: Errors, at: str, request: Object) -> None:
    syntax(errors, f"{at}.name", _name(request), texts.label)
    exactly, choices = request.get("exactly"), request.get("firstAvailable") or []
    if exactly is None and not choices:
        errors.append(required(at, _ONE_KIND))
    elif exactly is not None and choices:
        errors.append(bad_value(at, None, f"{_ONE_KIND}, but multiple fields are set"))
    elif exactly is not None:
        _devices_asked(errors, f"{at}.exactly", exactly)
    else:
        unique(errors, f"{at}.firstAvailable", choices, _choice, most=_MOST_CHOICES, key=_name)


def _choice(errors: Errors, at: str, choice: Object) -> None:
    syntax(errors, f"{at}.name", _name(choice), texts.label)
    _devices_asked(errors, at, choice)


def _devices_asked(errors: Errors, at: str, request: Object) -> None:
    needed(errors, f"{at}.deviceClassName", request.get("deviceClassName"), texts.subdomain)
    selectors(errors, f"{at}.selectors", request.get("selectors"))
    mode, count = request.get("allocationMode") or "", request.get("count") or 0
    if mode == "All":
        if count:
            words = "must not be specified when allocationMode is 'All'"
            errors.append(bad_value(f"{at}.count", count, words))
    elif mode == "ExactCount":
        if count <= 0:
            errors.append(bad_value(f"{at}.count", count, "must be greater than zero"))
    else:
        errors.append(not_supported(f"{at}.allocationMode", mode, ("All", "ExactCount")))
    each(errors, f"{at}.tolerations", request.get("tolerations"), toleration)


CHECKS: Final[dict[tuple[str, str], Callable[[Errors, Object, Object | None, str], Any]]] = {
    ("resource.k8s.io", "resourceclaims"): _claim,
    ("resource.k8s.io", "resourceclaimtemplates"): _claim_template,
    ("resource.k8s.io", "deviceclasses"): _device_class,
}
