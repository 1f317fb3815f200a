"""Pods: the spec that workloads' templates share, and the checks of a pod itself."""

from __future__ import annotations

from typing import Final

from kgpu.formats.names import MIRROR_ANNOTATION
from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.defaults.pod import sum_requests
from kgpu.lab.embedded.types.validate import scheduling, texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    annotation_map,
    duplicate,
    finalizer_names,
    in_range,
    labels,
    metadata,
    not_supported,
    one_of,
    quantity,
    syntax,
    too_long,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.containers import (
    PodContext,
    containers,
    ephemeral_containers,
    image_padding,
    init_containers,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.resources import amount, container_resource_name, is_hugepages, requirements
from kgpu.lab.embedded.types.validate.security import host_users, pod_security
from kgpu.lab.embedded.types.validate.volumes import volumes

_RESTART: Final = ("Always", "OnFailure", "Never")
_DNS: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_MAX_INT32: Final = 2**31 - 1
_CONTAINER_FIELDS: Final = ("initContainers", "containers", "ephemeralContainers")


def pod(errors: Errors, obj: Object) -> None:
    """Check metadata and spec, on a create and again on every update."""
    meta, spec = obj["metadata"], obj["spec"]
    metadata(errors, meta, namespaced=True, rule=texts.subdomain)
    finalizer_names(errors, meta)
    _annotations(errors, meta, spec)
    pod_spec(errors, "spec", spec, name=meta.get("name", ""), of_pod=True)
    if not spec.get("serviceAccountName"):
        for index, volume in enumerate(spec.get("volumes") or ()):
            for number, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
                if "serviceAccountToken" in source:
                    at = f"spec.volumes[{index}].projected.sources[{number}].serviceAccountToken"
                    errors.append(forbidden_field(at, "must not be specified when serviceAccountName is not set"))
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            image_padding(errors, f"spec.{field}[{index}]", container)


def pod_created(errors: Errors, obj: Object) -> None:
    """Check what only a create must not have."""
    spec = obj["spec"]
    if spec.get("ephemeralContainers"):
        errors.append(forbidden_field("spec.ephemeralContainers", "cannot be set on create"))
    if spec.get("nodeName") and spec.get("schedulingGates"):
        errors.append(forbidden_field("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))


def _annotations(errors: Errors, meta: Object, spec: Object) -> None:
    annotations = meta.get("annotations") or {}
    mirror = annotations.get(MIRROR_ANNOTATION)
    if mirror is not None and not spec.get("nodeName"):
        words = "must set spec.nodeName if mirror pod annotation is set"
        errors.append(bad_value(f"metadata.annotations[{MIRROR_ANNOTATION}]", mirror, words))
    cost = annotations.get("controller.kubernetes.io/pod-deletion-cost")
    if cost is not None and not _is_int32(cost):
        at = "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]"
        errors.append(bad_value(at, cost, "must be a 32bit integer"))


def _is_int32(text: str) -> bool:
    bare = text.removeprefix("-")
    if not bare.isascii() or not bare.isdecimal() or (len(bare) > 1 and bare[0] == "0"):
        return False
    return -(2**31) <= int(text) <= _MAX_INT32


def template(errors: Errors, path: str, pod_template: Object) -> None:
    """Check a pod template inside a workload."""
    meta = pod_template.get("metadata") or {}
    labels(errors, f"{path}.labels", meta.get("labels"))
    annotation_map(errors, f"{path}.annotations", meta.get("annotations"))
    pod_spec(errors, f"{path}.spec", pod_template.get("spec") or {})
    if (pod_template.get("spec") or {}).get("ephemeralContainers"):
        words = "ephemeral containers not allowed in pod template"
        errors.append(forbidden_field(f"{path}.spec.ephemeralContainers", words))


def pod_spec(errors: Errors, path: str, spec: Object, *, name: str = "", of_pod: bool = False) -> None:
    """Check a PodSpec; ``name`` is the pod's, "" in a template."""
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is None:
        errors.append(required(f"{path}.terminationGracePeriodSeconds"))
    known = volumes(errors, f"{path}.volumes", spec.get("volumes") or [], name)
    claims = spec.get("resourceClaims") or []
    if claims:
        _claims(errors, f"{path}.resourceClaims", claims)
    pod_context = PodContext(
        volumes=known,
        claims={claim["name"] for claim in claims if claim.get("name")},
        restart_policy=spec.get("restartPolicy", ""),
        host_users=spec.get("hostUsers") is not False,
        grace=grace,
        system=(spec.get("os") or {}).get("name", ""),
    )
    main, first = spec.get("containers") or [], spec.get("initContainers") or []
    containers(errors, f"{path}.containers", main, pod_context)
    init_containers(errors, f"{path}.initContainers", first, main, pod_context)
    ephemeral_containers(
        errors, f"{path}.ephemeralContainers", spec.get("ephemeralContainers") or [], main + first, pod_context
    )
    if spec.get("resources") is not None:
        _pod_level(errors, f"{path}.resources", spec, pod_context)
    if spec.get("hostNetwork"):
        _host_network(errors, path, main, of_pod=of_pod)
    one_of(errors, f"{path}.restartPolicy", spec.get("restartPolicy", ""), _RESTART, order=True)
    one_of(errors, f"{path}.dnsPolicy", spec.get("dnsPolicy", ""), _DNS, order=True)
    labels(errors, f"{path}.nodeSelector", spec.get("nodeSelector"))
    pod_security(errors, f"{path}.securityContext", spec.get("securityContext") or {}, spec)
    scheduling.affinity(errors, f"{path}.affinity", spec.get("affinity"))
    _dns_config(errors, f"{path}.dnsConfig", spec)
    for index, gate in enumerate(spec.get("readinessGates") or ()):
        syntax(errors, f"{path}.readinessGates[{index}].conditionType", gate.get("conditionType", ""), texts.qualified)
    scheduling.gates(errors, f"{path}.schedulingGates", spec.get("schedulingGates") or [])
    scheduling.spread(errors, f"{path}.topologySpreadConstraints", spec.get("topologySpreadConstraints") or [])
    host_users(errors, path, spec)
    _host_name(errors, path, spec)
    for field, rule in (("serviceAccountName", texts.subdomain), ("nodeName", texts.subdomain)):
        if spec.get(field):
            syntax(errors, f"{path}.{field}", spec[field], rule)
    in_range(errors, f"{path}.activeDeadlineSeconds", spec.get("activeDeadlineSeconds"), 1, _MAX_INT32)
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            syntax(errors, f"{path}.{field}", spec[field], texts.label)
    scheduling.tolerations(errors, f"{path}.tolerations", spec.get("tolerations") or [])
    _host_aliases(errors, f"{path}.hostAliases", spec.get("hostAliases") or [])
    if spec.get("priorityClassName"):
        syntax(errors, f"{path}.priorityClassName", spec["priorityClassName"], texts.subdomain)
    if spec.get("runtimeClassName") is not None:
        syntax(errors, f"{path}.runtimeClassName", spec["runtimeClassName"], texts.subdomain)
    if spec.get("preemptionPolicy") is not None:
        policies = ("PreemptLowerPriority", "Never")
        one_of(errors, f"{path}.preemptionPolicy", spec["preemptionPolicy"], policies, order=True)
    for resource, size in (spec.get("overhead") or {}).items():
        at = f"{path}.overhead.limits[{resource}]"
        container_resource_name(errors, at, resource)
        amount(errors, at, resource, quantity(size))
    if spec.get("os") is not None:
        system = spec["os"].get("name", "")
        if not system:
            errors.append(required(f"{path}.os.name", "cannot be empty"))
        elif system not in {"linux", "windows"}:
            errors.append(not_supported(f"{path}.os", system, ("linux", "windows")))


def _claims(errors: Errors, path: str, claims: list[Object]) -> None:
    claim_names: set[str] = set()
    for index, claim in enumerate(claims):
        at, name = f"{path}[{index}]", claim.get("name", "")
        if not name:
            errors.append(required(f"{at}.name"))
        elif name in claim_names:
            errors.append(duplicate(f"{at}.name", name))
        else:
            syntax(errors, f"{at}.name", name, texts.label)
            claim_names.add(name)
        present = [
            field for field in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(field) is not None
        ]
        go = {
            "Name": name,
            "ResourceClaimName": claim.get("resourceClaimName"),
            "ResourceClaimTemplateName": claim.get("resourceClaimTemplateName"),
        }
        if len(present) > 1:
            words = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            errors.append(bad_value(at, go, words))
        if not present:
            words = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            errors.append(bad_value(at, go, words))
        for field in present:
            syntax(errors, f"{at}.{field}", claim[field], texts.subdomain)


def _pod_level(errors: Errors, path: str, spec: Object, pod_context: PodContext) -> None:
    resources = spec["resources"]
    if pod_context.system == "windows":
        errors.append(forbidden_field(path, "may not be set for a windows pod"))
        return
    if "claims" in resources:
        errors.append(forbidden_field(f"{path}.claims", "claims may not be set for Resources at pod-level"))
    requirements(errors, path, resources, pod_context.claims, pod_level=True)
    for name, together in sum_requests(spec).items():
        own = resources.get("requests", {}).get(name)
        if own is not None and together > quantity(own):
            words = f"must be greater than or equal to aggregate container requests of {together}"
            errors.append(bad_value(f"{path}.requests[{name}]", str(quantity(own)), words))
    limits = resources.get("limits", {})
    for name, together in sum_requests(spec, "limits").items():
        if is_hugepages(name) and name in limits and together > quantity(limits[name]):
            words = f"must be greater than or equal to aggregate container limits of {together}"
            errors.append(bad_value(f"{path}.limits[{name}]", str(quantity(limits[name])), words))
    for index, container in enumerate(spec.get("containers") or ()):
        for name, size in (container.get("resources") or {}).get("limits", {}).items():
            if name in limits and quantity(size) > quantity(limits[name]):
                words = f"must be less than or equal to pod limits of {quantity(limits[name])}"
                errors.append(bad_value(f"{path}.containers[{index}][{name}].limits", str(quantity(size)), words))


def _host_network(errors: Errors, path: str, main: list[Object], *, of_pod: bool) -> None:
    for index, container in enumerate(main):
        for number, port in enumerate(container.get("ports") or ()):
            on_host, inside = port.get("hostPort", 0), port.get("containerPort", 0)
            if (of_pod or on_host) and on_host != inside:
                at = f"{path}.containers[{index}].ports[{number}].hostPort"
                errors.append(bad_value(at, on_host, "must match `containerPort` when `hostNetwork` is true"))


def _host_name(errors: Errors, path: str, spec: Object) -> None:
    wanted = spec.get("hostnameOverride")
    if wanted is None:
        return
    at = f"{path}.hostnameOverride"
    if spec.get("setHostnameAsFQDN"):
        errors.append(forbidden_field(at, "may not be specified when setHostnameAsFQDN is true"))
    if spec.get("hostNetwork"):
        errors.append(forbidden_field(at, "may not be specified when hostNetwork is true"))
    if len(wanted) > 64:
        errors.append(too_long(at, 64))
    syntax(errors, at, wanted, texts.subdomain)


def _host_aliases(errors: Errors, path: str, aliases: list[Object]) -> None:
    for index, alias in enumerate(aliases):
        syntax(errors, f"{path}[{index}].ip", alias.get("ip", ""), texts.ip_address)
        for number, name in enumerate(alias.get("hostnames") or ()):
            syntax(errors, f"{path}[{index}].hostnames[{number}]", name, texts.subdomain)


def _dns_config(errors: Errors, path: str, spec: Object) -> None:
    config = spec.get("dnsConfig")
    if spec.get("dnsPolicy") == "None":
        if config is None:
            errors.append(required(path, "must provide `dnsConfig` when `dnsPolicy` is None"))
            return
        if not config.get("nameservers"):
            words = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            errors.append(required(f"{path}.nameservers", words))
            return
    if config is None:
        return
    servers, searches = config.get("nameservers") or [], config.get("searches") or []
    if len(servers) > 3:
        errors.append(bad_value(f"{path}.nameservers", servers, "must not have more than 3 nameservers"))
    for index, server in enumerate(servers):
        syntax(errors, f"{path}.nameservers[{index}]", server, texts.ip_address)
    if len(searches) > 32:
        errors.append(bad_value(f"{path}.searches", searches, "must not have more than 32 search paths"))
    if len(" ".join(searches)) > 2048:
        words = "must not have more than 2048 characters (including spaces) in the search list"
        errors.append(bad_value(f"{path}.searches", searches, words))
    for index, search in enumerate(searches):
        if search != ".":
            syntax(errors, f"{path}.searches[{index}]", search.removesuffix("."), texts.loose_subdomain)
    for index, option in enumerate(config.get("options") or ()):
        if not option.get("name"):
            errors.append(required(f"{path}.options[{index}]", "must not be empty"))
