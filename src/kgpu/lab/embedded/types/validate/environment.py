"""Environment variables of containers, and references to fields of the pod and its resources."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import Errors, needed, not_supported, quantity, syntax

ENV_FIELDS: Final = frozenset(
    {
        "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
        "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
    }
)  # fmt: skip
VOLUME_FIELDS: Final = frozenset(
    {"metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"}
)
_CONVERTIBLE: Final = ENV_FIELDS | VOLUME_FIELDS | {"spec.restartPolicy", "spec.schedulerName", "status.phase"}
_RESOURCES: Final = (
    "limits.cpu", "limits.ephemeral-storage", "limits.memory",
    "requests.cpu", "requests.ephemeral-storage", "requests.memory",
)  # fmt: skip
_HUGEPAGES: Final = ("requests.hugepages-", "limits.hugepages-")
_SUBSCRIPT: Final = re.compile(r"(.*)\['(.*)'\]")
_BYTES: Final = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
# Resources, their divisors, and their name in the message.
_DIVISORS: Final[tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...]] = (
    (("limits.cpu", "requests.cpu"), ("1m", "1"), "cpu"),
    (("limits.memory", "requests.memory"), _BYTES, "memory"),
    (("limits.ephemeral-storage", "requests.ephemeral-storage"), _BYTES, "local ephemeral storage"),
    (_HUGEPAGES, _BYTES, "hugepages"),
)


def environment(errors: Errors, path: str, container: Object) -> None:
    """Check ``env`` and ``envFrom``."""
    for index, variable in enumerate(container.get("env") or ()):
        at = f"{path}.env[{index}]"
        needed(errors, f"{at}.name", variable.get("name"), texts.environment_name)
        source = variable.get("valueFrom")
        if source is not None:
            _value_from(errors, f"{at}.valueFrom", source, variable.get("value", ""))
    for index, source in enumerate(container.get("envFrom") or ()):
        at = f"{path}.envFrom[{index}]"
        if source.get("prefix"):
            syntax(errors, f"{at}.prefix", source["prefix"], texts.environment_name)
        present = [name for name in ("configMapRef", "secretRef") if name in source]
        for name in present:
            needed(errors, f"{at}.{name}.name", source[name].get("name"), texts.prefix_of_name(texts.subdomain))
        if not present:
            words = "must specify one of: `configMapRef` or `secretRef`"
            errors.append(bad_value(f"{path}.envFrom", "", words))
        elif len(present) > 1:
            errors.append(bad_value(f"{path}.envFrom", "", "may not have more than one field specified at a time"))


def _value_from(errors: Errors, path: str, source: Object, value: str) -> None:
    present = [name for name in _SOURCES if name in source]
    for name in present:
        _SOURCES[name](errors, f"{path}.{name}", source[name])
    if not present:
        words = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        errors.append(bad_value(path, "", words))
    elif value:
        errors.append(bad_value(path, "", "may not be specified when `value` is not empty"))
    elif len(present) > 1:
        errors.append(bad_value(path, "", "may not have more than one field specified at a time"))


def field_reference(errors: Errors, path: str, reference: Object, fields: frozenset[str]) -> None:
    """Check an ObjectFieldSelector: its path must be one of the downward API and one of ``fields``."""
    if not reference.get("apiVersion"):
        errors.append(required(f"{path}.apiVersion"))
        return
    field = reference.get("fieldPath", "")
    if not field:
        errors.append(required(f"{path}.fieldPath"))
        return
    shape = _SUBSCRIPT.fullmatch(field)
    base = shape[1] if shape else field
    known = (
        base in {"metadata.labels", "metadata.annotations"} if shape else field in _CONVERTIBLE or field == "spec.host"
    )
    if reference["apiVersion"] != "v1":
        words = f"error converting fieldPath: unsupported pod version: {reference['apiVersion']}"
        errors.append(bad_value(f"{path}.fieldPath", field, words))
        return
    if not known:
        reason = f"field label does not support subscript: {field}" if shape else f"field label not supported: {field}"
        errors.append(bad_value(f"{path}.fieldPath", field, f"error converting fieldPath: {reason}"))
        return
    if shape:
        key = shape[2].lower() if base == "metadata.annotations" else shape[2]
        syntax(errors, path, key, texts.qualified)
        return
    actual = "spec.nodeName" if field == "spec.host" else field
    if actual not in fields:
        errors.append(not_supported(f"{path}.fieldPath", actual, sorted(fields)))


def resource_reference(errors: Errors, path: str, reference: Object, *, volume: bool = False) -> None:
    """Check a ResourceFieldSelector."""
    name = reference.get("resource", "")
    if volume and not reference.get("containerName"):
        errors.append(required(f"{path}.containerName"))
    elif not name:
        errors.append(required(f"{path}.resource"))
    elif name not in _RESOURCES and not name.startswith(_HUGEPAGES):
        errors.append(not_supported(f"{path}.resource", name, _RESOURCES))
    divisor = quantity(reference.get("divisor", "0"))
    if not divisor:
        return
    for names, allowed, called in _DIVISORS:
        matches = name.startswith(names) if names is _HUGEPAGES else name in names
        if matches and str(divisor) not in allowed:
            shown = "1m and 1" if called == "cpu" else ", ".join(allowed)
            words = f"only divisor's values {shown} are supported with the {called} resource"
            errors.append(bad_value(f"{path}.divisor", name, words))


def _key_reference(errors: Errors, path: str, reference: Object) -> None:
    syntax(errors, f"{path}.name", reference.get("name", ""), texts.subdomain)
    needed(errors, f"{path}.key", reference.get("key"), texts.config_key)


def _file_reference(errors: Errors, path: str, reference: Object) -> None:
    needed(errors, f"{path}.key", reference.get("key"), texts.environment_name)
    needed(errors, f"{path}.volumeName", reference.get("volumeName"), texts.label)
    if not reference.get("path"):
        errors.append(required(f"{path}.path"))


_SOURCES: Final[dict[str, Callable[[Errors, str, Object], None]]] = {
    "fieldRef": lambda errors, path, reference: field_reference(errors, path, reference, ENV_FIELDS),
    "resourceFieldRef": resource_reference,
    "configMapKeyRef": _key_reference,
    "secretKeyRef": _key_reference,
    "fileKeyRef": _file_reference,
}
