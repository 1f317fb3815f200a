"""Namespaces, nodes, ConfigMaps, Secrets, service accounts, events and endpoints."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    duplicate,
    finalizer_name,
    finalizer_names,
    immutable,
    metadata,
    metadata_update,
    needed,
    not_negative,
    not_supported,
    one_of,
    quantity,
    syntax,
    too_long,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.containers import PROTOCOLS
from kgpu.lab.embedded.types.validate.pod import template
from kgpu.lab.embedded.types.validate.resources import amount
from kgpu.lab.embedded.types.validate.scheduling import EFFECTS

_MAX_DATA: Final = 1024 * 1024
_IMMUTABLE: Final = "field is immutable when `immutable` is set"


def _namespace(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    meta = obj["metadata"]
    if old is None:
        metadata(errors, meta, namespaced=False, rule=texts.label)
        finalizer_names(errors, meta)
        for name in obj["spec"].get("finalizers") or ():
            syntax(errors, "spec.finalizers", name, texts.qualified)
            finalizer_name(errors, "spec.finalizers", name)
        return
    metadata_update(errors, meta, old["metadata"])
    finalizer_names(errors, meta)
    phase = (obj.get("status") or {}).get("phase", "")
    if subresource == "status":
        wanted, words = ("Terminating", "not empty") if meta.get("deletionTimestamp") else ("Active", "empty")
        if phase != wanted:
            at = "status.Phase"
            errors.append(bad_value(at, phase, f"may only be '{wanted}' if `deletionTimestamp` is {words}"))
    if subresource == "finalize":
        for index, name in enumerate(obj["spec"].get("finalizers") or ()):
            syntax(errors, f"spec.finalizers[{index}]", name, texts.qualified)
            finalizer_name(errors, f"spec.finalizers[{index}]", name)


def taints(errors: Errors, path: str, taint_list: list[Object]) -> None:
    pairs: set[tuple[str, str]] = set()
    for index, taint in enumerate(taint_list):
        at, key, effect = f"{path}[{index}]", taint.get("key", ""), taint.get("effect", "")
        syntax(errors, f"{at}.key", key, texts.qualified)
        messages = texts.label_value(taint.get("value", ""))
        if messages:
            errors.append(bad_value(f"{at}.value", taint.get("value", ""), ";".join(messages)))
        one_of(errors, f"{at}.effect", effect, EFFECTS, order=True)
        if (key, effect) in pairs:
            shown = {"Key": key, "Value": taint.get("value", ""), "Effect": effect, "TimeAdded": taint.get("timeAdded")}
            error = duplicate(at, shown)
            errors.append(type(error)(error.type, at, shown, "taints must be unique by key and effect pair"))
        pairs.add((key, effect))


def _node(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    if old is None or subresource == "":
        metadata(errors, meta, namespaced=False, rule=texts.subdomain)
        finalizer_names(errors, meta)
        _node_parts(errors, spec, status)
        cidrs = spec.get("podCIDRs") or []
        for index, cidr in enumerate(cidrs):
            syntax(errors, f"spec.podCIDRs[{index}]", cidr, texts.cidr)
        if len(cidrs) > 2 or (len(cidrs) == 2 and len({":" in cidr for cidr in cidrs}) == 1):
            words = "may specify no more than one CIDR for each IP family"
            errors.append(bad_value("spec.podCIDRs", cidrs, words))
    if old is None:
        return
    before = old.get("spec") or {}
    metadata_update(errors, meta, old["metadata"])
    _node_parts(errors, spec, status)
    addresses: list[Object] = []
    for index, address in enumerate(status.get("addresses") or ()):
        if address in addresses:
            shown = {"Type": address.get("type", ""), "Address": address.get("address", "")}
            errors.append(duplicate(f"status.addresses[{index}]", shown))
        addresses.append(address)
    if before.get("podCIDRs") and before["podCIDRs"] != spec.get("podCIDRs"):
        words = 'node updates may not change podCIDR except from "" to valid'
        errors.append(forbidden_field("spec.podCIDRs", words))
    if before.get("providerID") and before["providerID"] != spec.get("providerID"):
        words = 'node updates may not change providerID except from "" to valid'
        errors.append(forbidden_field("spec.providerID", words))


def _node_parts(errors: Errors, spec: Object, status: Object) -> None:
    taints(errors, "metadata.taints", spec.get("taints") or [])
    for field in ("capacity", "allocatable"):
        for name, text in (status.get(field) or {}).items():
            amount(errors, f"status.{field}.{name}", name, quantity(text))


def _config_map(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
        _kept(errors, obj, old, ("data", "binaryData"))
    metadata(errors, obj["metadata"], namespaced=True, rule=texts.subdomain)
    finalizer_names(errors, obj["metadata"])
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    size = 0
    for field, entries in (("data", data), ("binaryData", binary)):
        for key, value in entries.items():
            syntax(errors, f"{field}[{key}]", key, texts.config_key)
            if field == "data" and key in binary:
                errors.append(bad_value(f"data[{key}]", key, "duplicate of key present in binaryData"))
            size += len(value.encode()) if field == "data" else _decoded_size(value)
    if size > _MAX_DATA:
        errors.append(too_long("", _MAX_DATA))


def _kept(errors: Errors, obj: Object, old: Object, fields: tuple[str, ...]) -> None:
    """Check that nothing has changed once ``immutable`` is set."""
    if not old.get("immutable"):
        return
    if not obj.get("immutable"):
        errors.append(forbidden_field("immutable", _IMMUTABLE))
    for field in fields:
        if (obj.get(field) or {}) != (old.get(field) or {}):
            errors.append(forbidden_field(field, _IMMUTABLE))


def _decoded_size(text: str) -> int:
    return len(text) * 3 // 4 - text[-2:].count("=")


# Secret type -> keys that its data must have.
_SECRET_KEYS: Final = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_JSON_SECRETS: Final = frozenset({"kubernetes.io/dockercfg", "kubernetes.io/dockerconfigjson"})


def _secret(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    meta, data, kind = obj["metadata"], obj.get("data") or {}, obj.get("type", "")
    if old is not None:
        metadata_update(errors, meta, old["metadata"])
        immutable(errors, "type", kind, old.get("type", ""))
        _kept(errors, obj, old, ("data",))
    metadata(errors, meta, namespaced=True, rule=texts.subdomain)
    finalizer_names(errors, meta)
    for key in data:
        syntax(errors, f"data[{key}]", key, texts.config_key)
    if sum(_decoded_size(value or "") for value in data.values()) > _MAX_DATA:
        errors.append(too_long("data", _MAX_DATA))
    if kind == "kubernetes.io/service-account-token":
        if not (meta.get("annotations") or {}).get("kubernetes.io/service-account.name"):
            errors.append(required("metadata.annotations[kubernetes.io/service-account.name]"))
    elif kind == "kubernetes.io/basic-auth" and not {"username", "password"} & set(data):
        errors += [required("data[username]"), required("data[password]")]
    for key in _SECRET_KEYS.get(kind, ()):
        if key not in data or (kind == "kubernetes.io/ssh-auth" and not data[key]):
            errors.append(required(f"data[{key}]"))
        elif kind in _JSON_SECRETS and (wrong := _not_an_object(data[key])):
            errors.append(bad_value(f"data[{key}]", "<secret contents redacted>", wrong))


def _not_an_object(encoded: str) -> str:
    try:
        decoded = json.loads(base64.b64decode(encoded))
    except (ValueError, binascii.Error):
        return "invalid character in JSON"
    if isinstance(decoded, dict) or decoded is None:
        return ""
    kind = {list: "array", str: "string", bool: "bool"}.get(type(decoded), "number")
    return f"json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"


def _service_account(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
    metadata(errors, obj["metadata"], namespaced=True, rule=texts.subdomain)
    finalizer_names(errors, obj["metadata"])


_EVENT_LIMITS: Final = (("reportingInstance", 128), ("action", 128), ("reason", 128))


def _event(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    """Events of both groups: those of events.k8s.io have more rules, such as a type and an eventTime."""
    del subresource
    modern = obj.get("apiVersion", "").startswith("events.k8s.io/")
    namespace = obj["metadata"].get("namespace", "")
    about = (obj.get("regarding" if modern else "involvedObject") or {}).get("namespace", "")
    at = "involvedObject.namespace"
    if obj.get("eventTime"):
        if not about and namespace not in {"default", "kube-system"}:
            errors.append(bad_value(at, about, "does not match event.namespace"))
        reporter = "reportingController" if modern else "reportingComponent"
        needed(errors, reporter, obj.get(reporter), None)
        syntax(errors, reporter, obj.get(reporter, ""), texts.qualified)
        for field, limit in _EVENT_LIMITS:
            value = obj.get(field, "")
            if not value:
                errors.append(required(field))
            if len(value) > limit:
                errors.append(bad_value(field, "", f"can have at most {limit} characters"))
        if len(obj.get("note" if modern else "message", "")) > 1024:
            errors.append(bad_value("message", "", "can have at most 1024 characters"))
    elif (about and about != namespace) or (not about and namespace not in {"", "default"}):
        errors.append(bad_value(at, about, "does not match event.namespace"))
    if not modern:
        return
    if old is None:
        metadata(errors, obj["metadata"], namespaced=True, rule=texts.subdomain)
        if not obj.get("eventTime"):
            errors.append(required("eventTime"))
        if obj.get("type") not in {"Normal", "Warning"}:
            errors.append(bad_value("type", "", f"has invalid value: {obj.get('type', '')}"))
    else:
        metadata_update(errors, obj["metadata"], old["metadata"])
    series = obj.get("series")
    if series is not None and series.get("count", 0) < 2:
        errors.append(bad_value("series.count", "", "should be at least 2"))


def _endpoints(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
    metadata(errors, obj["metadata"], namespaced=True, rule=texts.subdomain)
    for index, subset in enumerate(obj.get("subsets") or ()):
        at = f"subsets[{index}]"
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            errors.append(required(at, "must specify `addresses` or `notReadyAddresses`"))
        for field in ("addresses", "notReadyAddresses"):
            for number, address in enumerate(subset.get(field) or ()):
                syntax(errors, f"{at}.{field}[{number}].ip", address.get("ip", ""), texts.ip_address)
                endpoint_ip(errors, f"{at}.{field}[{number}].ip", address.get("ip", ""))
        for number, port in enumerate(subset.get("ports") or ()):
            port_path = f"{at}.ports[{number}]"
            if port.get("name"):
                syntax(errors, f"{port_path}.name", port["name"], texts.label)
            elif len(subset["ports"]) > 1:
                errors.append(required(f"{port_path}.name"))
            for message in texts.port_number(port.get("port", 0)):
                errors.append(bad_value(f"{port_path}.port", port.get("port", 0), message))
            one_of(errors, f"{port_path}.protocol", port.get("protocol", ""), PROTOCOLS)


def endpoint_ip(errors: Errors, path: str, text: str) -> None:
    """Refuse addresses that no traffic can be sent to."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        errors.append(bad_value(path, text, "must be a valid IP address"))
        return
    if address.is_unspecified:
        errors.append(bad_value(path, text, f"may not be unspecified ({text})"))
    if address.is_loopback:
        errors.append(bad_value(path, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)"))
    if address.is_link_local:
        errors.append(bad_value(path, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"))


def _pod_template(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
    metadata(errors, obj["metadata"], namespaced=True, rule=texts.subdomain)
    template(errors, "template", obj.get("template") or {})


def _controller_revision(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
    metadata(errors, obj["metadata"], namespaced=True, rule=texts.subdomain)
    not_negative(errors, "revision", obj.get("revision", 0))
    if old is None and obj.get("data") is None:
        errors.append(required("data", "data is mandatory"))
    elif old is None and not isinstance(obj["data"], dict):
        errors.append(required("data", "data must be a valid JSON object"))
    elif old is not None:
        immutable(errors, "data", obj.get("data"), old.get("data"))


def _binding(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del old, subresource
    target = obj.get("target") or {}
    if target.get("kind") not in {None, "", "Node"}:
        errors.append(not_supported("target.kind", target["kind"], ("Node", "<empty>")))
    if not target.get("name"):
        errors.append(required("target.name"))


CHECKS: Final = {
    ("", "namespaces"): _namespace,
    ("", "nodes"): _node,
    ("", "configmaps"): _config_map,
    ("", "secrets"): _secret,
    ("", "serviceaccounts"): _service_account,
    ("", "events"): _event,
    ("events.k8s.io", "events"): _event,
    ("", "endpoints"): _endpoints,
    ("", "podtemplates"): _pod_template,
    ("", "bindings"): _binding,
    ("apps", "controllerrevisions"): _controller_revision,
}
