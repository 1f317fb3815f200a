"""Ingresses, IngressClasses, NetworkPolicies and EndpointSlices."""

from __future__ import annotations

import ipaddress
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    finalizer_names,
    immutable,
    label_selector,
    metadata,
    metadata_update,
    not_supported,
    one_of,
    syntax,
    too_long,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.containers import PROTOCOLS
from kgpu.lab.embedded.types.validate.core import endpoint_ip

_SEQUENCES: Final = ("//", "/./", "/../", "%2f", "%2F")
_SUFFIXES: Final = ("/..", "/.")


def _meta(errors: Errors, obj: Object, old: Object | None, *, namespaced: bool, again: bool) -> None:
    if old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
    if old is None or again:
        metadata(errors, obj["metadata"], namespaced=namespaced, rule=texts.subdomain)
    finalizer_names(errors, obj["metadata"])


def _ingress(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    if subresource == "status" and old is not None:
        metadata_update(errors, obj["metadata"], old["metadata"])
        return
    _meta(errors, obj, old, namespaced=True, again=True)
    spec = obj["spec"]
    rules, backend = spec.get("rules") or [], spec.get("defaultBackend")
    if not rules and backend is None:
        errors.append(bad_value("spec", None, "either `defaultBackend` or `rules` must be specified"))
    if backend is not None:
        _backend(errors, "spec.defaultBackend", backend)
    for index, rule in enumerate(rules):
        at, host = f"spec.rules[{index}]", rule.get("host", "")
        if host:
            _host(errors, f"{at}.host", host, address=True)
        if rule.get("http") is not None:
            _http(errors, f"{at}.http", rule["http"])
    for index, tls in enumerate(spec.get("tls") or ()):
        for number, host in enumerate(tls.get("hosts") or ()):
            _host(errors, f"spec.tls[{index}].hosts[{number}]", host, address=False)
        if tls.get("secretName"):
            syntax(errors, f"spec.tls[{index}].secretName", tls["secretName"], texts.subdomain)
    if spec.get("ingressClassName") is not None:
        syntax(errors, "spec.ingressClassName", spec["ingressClassName"], texts.subdomain)


def _host(errors: Errors, path: str, host: str, *, address: bool) -> None:
    if address and not texts.ip_address(host):
        errors.append(bad_value(path, host, "must be a DNS name, not an IP address"))
    syntax(errors, path, host, texts.wildcard_subdomain if "*" in host else texts.subdomain)


def _http(errors: Errors, path: str, http: Object) -> None:
    if not http.get("paths"):
        errors.append(required(f"{path}.paths"))
    for index, http_path in enumerate(http.get("paths") or ()):
        at, kind, url_path = f"{path}.paths[{index}]", http_path.get("pathType"), http_path.get("path", "")
        if kind is None:
            errors.append(required(f"{at}.pathType", "pathType must be specified"))
            continue
        if kind in {"Exact", "Prefix"}:
            if not url_path.startswith("/"):
                errors.append(bad_value(f"{at}.path", url_path, "must be an absolute path"))
            for part in _SEQUENCES:
                if part in url_path:
                    errors.append(bad_value(f"{at}.path", url_path, f"must not contain '{part}'"))
            for end in _SUFFIXES:
                if url_path.endswith(end):
                    errors.append(bad_value(f"{at}.path", url_path, f"cannot end with '{end}'"))
        elif kind == "ImplementationSpecific":
            if url_path and not url_path.startswith("/"):
                errors.append(bad_value(f"{at}.path", url_path, "must be an absolute path"))
        else:
            errors.append(not_supported(f"{at}.pathType", kind, ("Exact", "ImplementationSpecific", "Prefix")))
        _backend(errors, f"{at}.backend", http_path.get("backend") or {})


def _backend(errors: Errors, path: str, backend: Object) -> None:
    service, resource = backend.get("service"), backend.get("resource")
    if service is not None and resource is not None:
        errors.append(bad_value(path, "", "cannot set both resource and service backends"))
    elif resource is not None:
        for field in ("kind", "name"):
            if not resource.get(field):
                errors.append(required(f"{path}.resource.{field}"))
    elif service is not None:
        _service(errors, f"{path}.service", service)
    else:
        errors.append(required(path, "port name or number is required"))


def _service(errors: Errors, path: str, service: Object) -> None:
    name, port = service.get("name", ""), service.get("port") or {}
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        syntax(errors, f"{path}.name", name, texts.label_1035)
    if port.get("name") and port.get("number"):
        errors.append(bad_value(path, "", "cannot set both port name & port number"))
    elif port.get("name"):
        syntax(errors, f"{path}.port.name", port["name"], texts.port_name)
    elif port.get("number"):
        for message in texts.port_number(port["number"]):
            errors.append(bad_value(f"{path}.port.number", port["number"], message))
    else:
        errors.append(required(path, "port name or number is required"))


def _ingress_class(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    _meta(errors, obj, old, namespaced=False, again=False)
    controller = obj["spec"].get("controller", "")
    if old is not None:
        immutable(errors, "spec.controller", controller, old["spec"].get("controller", ""))
    if len(controller) > 250:
        errors.append(too_long("spec.controller", 250))
    host, slash, rest = controller.partition("/")
    if not controller:
        errors.append(required("spec.controller"))
    elif not slash or not host or not rest:
        words = 'must be a domain-prefixed path (such as "acme.io/foo")'
        errors.append(bad_value("spec.controller", controller, words))
    else:
        syntax(errors, "spec.controller", host, texts.subdomain)


def _network_policy(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    _meta(errors, obj, old, namespaced=True, again=False)
    spec = obj["spec"]
    label_selector(errors, "spec.podSelector", spec.get("podSelector"))
    for field, side in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(field) or ()):
            at = f"spec.{field}[{index}]"
            for number, port in enumerate(rule.get("ports") or ()):
                _policy_port(errors, f"{at}.ports[{number}]", port)
            for number, peer in enumerate(rule.get(side) or ()):
                _peer(errors, f"{at}.{side}[{number}]", peer)
    types = spec.get("policyTypes") or []
    if len(types) > 2:
        errors.append(bad_value("spec.policyTypes", types, "may not specify more than two policyTypes"))
        return
    for index, policy_type in enumerate(types):
        if policy_type not in {"Ingress", "Egress"}:
            errors.append(not_supported(f"spec.policyTypes[{index}]", policy_type, ("Ingress", "Egress")))


def _policy_port(errors: Errors, at: str, port: Object) -> None:
    if port.get("protocol") is not None and port["protocol"] not in PROTOCOLS:
        errors.append(not_supported(f"{at}.protocol", port["protocol"], ("TCP", "UDP", "SCTP")))
    first, last = port.get("port"), port.get("endPort")
    if isinstance(first, int):
        for message in texts.port_number(first):
            errors.append(bad_value(f"{at}.port", first, message))
        if last is not None:
            if last < first:
                errors.append(bad_value(f"{at}.endPort", first, "must be greater than or equal to `port`"))
            for message in texts.port_number(last):
                errors.append(bad_value(f"{at}.endPort", last, message))
    elif isinstance(first, str):
        if last is not None:
            errors.append(bad_value(f"{at}.endPort", last, "may not be specified when `port` is non-numeric"))
        syntax(errors, f"{at}.port", first, texts.port_name)
    elif last is not None:
        errors.append(bad_value(f"{at}.endPort", last, "may not be specified when `port` is not specified"))


def _peer(errors: Errors, at: str, peer: Object) -> None:
    for field in ("podSelector", "namespaceSelector"):
        label_selector(errors, f"{at}.{field}", peer.get(field))
    block = peer.get("ipBlock")
    if block is not None:
        _block(errors, f"{at}.ipBlock", block)
    present = [field for field in ("podSelector", "namespaceSelector", "ipBlock") if field in peer]
    if not present:
        errors.append(required(at, "must specify a peer"))
    elif len(present) > 1 and block is not None:
        errors.append(forbidden_field(at, "may not specify both ipBlock and another peer"))


def _block(errors: Errors, at: str, block: Object) -> None:
    cidr = block.get("cidr", "")
    if not cidr:
        errors.append(required(f"{at}.cidr"))
        return
    syntax(errors, f"{at}.cidr", cidr, texts.cidr)
    if texts.cidr(cidr):
        return
    whole = ipaddress.ip_network(cidr, strict=False)
    for index, text in enumerate(block.get("except") or ()):
        except_path = f"{at}.except[{index}]"
        syntax(errors, except_path, text, texts.cidr)
        if texts.cidr(text):
            continue
        part = ipaddress.ip_network(text, strict=False)
        if (
            part.version != whole.version
            or part.network_address not in whole
            or whole.prefixlen >= part.prefixlen
        ):  # fmt: skip
            errors.append(bad_value(except_path, text, "must be a strict subset of `cidr`"))


def _slice(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    del subresource
    _meta(errors, obj, old, namespaced=True, again=True)
    kind = obj.get("addressType", "")
    one_of(errors, "addressType", kind, ("FQDN", "IPv4", "IPv6"))
    if old is not None:
        immutable(errors, "addressType", kind, old.get("addressType", ""))
    for index, endpoint in enumerate(obj.get("endpoints") or ()):
        at = f"endpoints[{index}]"
        addresses = endpoint.get("addresses") or []
        if not addresses:
            errors.append(required(f"{at}.addresses", "must contain at least 1 address"))
        for number, address in enumerate(addresses):
            address_path = f"{at}.addresses[{number}]"
            if kind == "FQDN":
                syntax(errors, address_path, address, texts.subdomain)
                continue
            syntax(errors, address_path, address, texts.ip_address)
            if not texts.ip_address(address):
                endpoint_ip(errors, address_path, address)
    for index, port in enumerate(obj.get("ports") or ()):
        if port.get("name"):
            syntax(errors, f"ports[{index}].name", port["name"], texts.label)
        one_of(errors, f"ports[{index}].protocol", port.get("protocol", ""), PROTOCOLS)


CHECKS: Final = {
    ("networking.k8s.io", "ingresses"): _ingress,
    ("networking.k8s.io", "ingressclasses"): _ingress_class,
    ("networking.k8s.io", "networkpolicies"): _network_policy,
    ("discovery.k8s.io", "endpointslices"): _slice,
}
