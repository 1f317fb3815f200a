"""Services: ports, addresses, traffic policies, and immutable fields."""

from __future__ import annotations

from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    duplicate,
    finalizer_names,
    labels,
    metadata,
    metadata_update,
    not_supported,
    one_of,
    port_or_name,
    syntax,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.containers import PROTOCOLS
from kgpu.lab.embedded.types.validate.core import endpoint_ip

_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_FAMILIES: Final = ("IPv4", "IPv6")
_POLICIES: Final = ("PreferDualStack", "RequireDualStack", "SingleStack")
_DISTRIBUTIONS: Final = ("PreferClose", "PreferSameZone", "PreferSameNode")
_FROZEN: Final = "may not change once set"
_ONLY_BALANCERS: Final = "may only be used when `type` is 'LoadBalancer'"


def _service(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    meta, spec = obj["metadata"], obj["spec"]
    if old is None:
        metadata(errors, meta, namespaced=True, rule=texts.label_1035)
    else:
        metadata_update(errors, meta, old["metadata"])
    finalizer_names(errors, meta)
    if subresource == "status":
        return
    if old is not None:
        _addresses_kept(errors, spec, old["spec"])
    _spec(errors, spec)


def _headless(spec: Object) -> bool:
    return spec.get("clusterIPs") == ["None"]


def _addresses_kept(errors: Errors, spec: Object, old: Object) -> None:
    if "ExternalName" in {spec.get("type"), old.get("type")}:
        return
    new, before = spec.get("clusterIPs") or [], old.get("clusterIPs") or []
    if _headless(spec) and _headless(old):
        return
    if len(new) == len(before):
        for index, address in enumerate(before):
            if address != new[index]:
                errors.append(bad_value(f"spec.clusterIPs[{index}]", new, _FROZEN))
    elif len(before) > len(new):
        if not new:
            errors.append(bad_value("spec.clusterIPs[0]", None, "primary clusterIP can not be unset"))
        elif new[0] != before[0]:
            errors.append(bad_value("spec.clusterIPs[0]", new, _FROZEN))
        if len(new) == 1 and spec.get("ipFamilyPolicy") != "SingleStack":
            words = "must be set to 'SingleStack' when releasing the secondary clusterIP"
            errors.append(bad_value("spec.ipFamilyPolicy", spec.get("ipFamilyPolicy"), words))
    elif before and new[0] != before[0]:
        errors.append(bad_value("spec.clusterIPs[0]", new, _FROZEN))
    families, before_families = spec.get("ipFamilies") or [], old.get("ipFamilies") or []
    if _headless(spec) == _headless(old) and families and before_families and families[0] != before_families[0]:
        errors.append(bad_value("spec.ipFamilies[0]", families, _FROZEN))


def _spec(errors: Errors, spec: Object) -> None:
    kind, ports = spec.get("type", ""), spec.get("ports") or []
    if not ports and not _headless(spec) and kind != "ExternalName":
        errors.append(required("spec.ports"))
    if kind in {"LoadBalancer", "NodePort"} and _headless(spec):
        errors.append(bad_value("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services"))
    if kind == "ExternalName":
        _external_name(errors, spec)
    names: set[str] = set()
    for index, port in enumerate(ports):
        _port(errors, f"spec.ports[{index}]", port, names, named=len(ports) > 1)
    labels(errors, "spec.selector", spec.get("selector"))
    one_of(errors, "spec.sessionAffinity", spec.get("sessionAffinity", ""), ("ClientIP", "None"))
    if spec.get("sessionAffinity") == "ClientIP":
        seconds = ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds", 0)
        if not 0 < seconds <= 86400:
            at = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
            errors.append(bad_value(at, seconds, "must be greater than 0 and less than 86400"))
    if kind != "ExternalName":
        _cluster_addresses(errors, spec)
    for index, address in enumerate(spec.get("externalIPs") or ()):
        before = len(errors)
        syntax(errors, f"spec.externalIPs[{index}]", address, texts.ip_address)
        if len(errors) == before:
            endpoint_ip(errors, f"spec.externalIPs[{index}]", address)
    one_of(errors, "spec.type", kind, _TYPES)
    _unique_ports(errors, ports, kind)
    _balancer(errors, spec, kind)
    _traffic(errors, spec, kind)


def _external_name(errors: Errors, spec: Object) -> None:
    for field in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if spec.get(field):
            errors.append(forbidden_field(f"spec.{field}", "may not be set for ExternalName services"))
    name = spec.get("externalName", "").removesuffix(".")
    if name:
        syntax(errors, "spec.externalName", name, texts.subdomain)
    else:
        errors.append(required("spec.externalName"))


def _port(errors: Errors, at: str, port: Object, names: set[str], *, named: bool) -> None:
    name = port.get("name", "")
    if named and not name:
        errors.append(required(f"{at}.name"))
    elif name:
        syntax(errors, f"{at}.name", name, texts.label)
        if name in names:
            errors.append(duplicate(f"{at}.name", name))
        names.add(name)
    for message in texts.port_number(port.get("port", 0)):
        errors.append(bad_value(f"{at}.port", port.get("port", 0), message))
    one_of(errors, f"{at}.protocol", port.get("protocol", ""), PROTOCOLS)
    port_or_name(errors, f"{at}.targetPort", port.get("targetPort", 0))
    if port.get("appProtocol") is not None:
        syntax(errors, f"{at}.appProtocol", port["appProtocol"], texts.qualified)


def _cluster_addresses(errors: Errors, spec: Object) -> None:
    primary, addresses = spec.get("clusterIP", ""), spec.get("clusterIPs") or []
    at = "spec.clusterIPs"
    if primary and not addresses:
        errors.append(required(at))
    elif primary and addresses[0] != primary:
        errors.append(bad_value(at, addresses, "first value must match `clusterIP`"))
    elif not primary and addresses:
        errors.append(bad_value(at, addresses, "must be empty when `clusterIP` is not specified"))
    families: set[str] = set()
    for index, family in enumerate(spec.get("ipFamilies") or ()):
        if family not in _FAMILIES:
            errors.append(not_supported(f"spec.ipFamilies[{index}]", family, _FAMILIES))
        if family in families:
            errors.append(duplicate(f"spec.ipFamilies[{index}]", family))
        families.add(family)
    policy = spec.get("ipFamilyPolicy")
    if policy is not None and policy not in _POLICIES:
        errors.append(not_supported("spec.ipFamilyPolicy", policy, _POLICIES))
    for index, address in enumerate(addresses):
        if index == 0 and address == "None":
            if len(addresses) > 1:
                errors.append(bad_value(at, addresses, "'None' must be the first and only value"))
            continue
        syntax(errors, f"{at}[{index}]", address, texts.ip_address)
    if len(addresses) > 2:
        errors.append(bad_value(at, addresses, "may only hold up to 2 values"))


def _unique_ports(errors: Errors, ports: list[Object], kind: str) -> None:
    if kind == "ClusterIP":
        for index, port in enumerate(ports):
            if port.get("nodePort"):
                words = "may not be used when `type` is 'ClusterIP'"
                errors.append(forbidden_field(f"spec.ports[{index}].nodePort", words))
    used: set[tuple[str, int]] = set()
    for index, port in enumerate(ports):
        key = (port.get("protocol", ""), port.get("nodePort", 0))
        if key[1] and key in used:
            errors.append(duplicate(f"spec.ports[{index}].nodePort", key[1]))
        used.add(key)
    used = set()
    for index, port in enumerate(ports):
        key = (port.get("protocol", ""), port.get("port", 0))
        if key in used:
            shown = {
                "Name": "", "Protocol": key[0], "AppProtocol": None, "Port": key[1], "TargetPort": 0, "NodePort": 0,
            }  # fmt: skip
            errors.append(duplicate(f"spec.ports[{index}]", shown))
        used.add(key)


def _balancer(errors: Errors, spec: Object, kind: str) -> None:
    ranges = spec.get("loadBalancerSourceRanges") or []
    if ranges and kind != "LoadBalancer":
        errors.append(forbidden_field("spec.LoadBalancerSourceRanges", _ONLY_BALANCERS))
    for index, text in enumerate(ranges):
        syntax(errors, f"spec.LoadBalancerSourceRanges[{index}]", text.strip(), texts.cidr)
    if spec.get("allocateLoadBalancerNodePorts") is not None and kind != "LoadBalancer":
        errors.append(forbidden_field("spec.allocateLoadBalancerNodePorts", _ONLY_BALANCERS))
    name = spec.get("loadBalancerClass")
    if name is not None:
        if kind == "LoadBalancer":
            syntax(errors, "spec.loadBalancerClass", name, texts.qualified)
        else:
            errors.append(forbidden_field("spec.loadBalancerClass", _ONLY_BALANCERS))


def _traffic(errors: Errors, spec: Object, kind: str) -> None:
    outside, at = spec.get("externalTrafficPolicy", ""), "spec.externalTrafficPolicy"
    if kind in {"LoadBalancer", "NodePort"} or (kind == "ClusterIP" and spec.get("externalIPs")):
        one_of(errors, at, outside, ("Cluster", "Local"))
    elif outside:
        errors.append(bad_value(at, outside, "may only be set for externally-accessible services"))
    check = spec.get("healthCheckNodePort", 0)
    if check and not (kind == "LoadBalancer" and outside == "Local"):
        words = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        errors.append(bad_value("spec.healthCheckNodePort", check, words))
    inside = spec.get("internalTrafficPolicy")
    if inside is None:
        if kind in {"NodePort", "LoadBalancer", "ClusterIP"}:
            errors.append(required("spec.internalTrafficPolicy"))
    elif inside not in {"Cluster", "Local"}:
        errors.append(not_supported("spec.internalTrafficPolicy", inside, ("Cluster", "Local")))
    spread = spec.get("trafficDistribution")
    if spread is not None and spread not in _DISTRIBUTIONS:
        errors.append(not_supported("spec.trafficDistribution", spread, _DISTRIBUTIONS))


CHECKS: Final = {("", "services"): _service}
