"""Containers of a pod spec: main, init and ephemeral ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    duplicate,
    needed,
    not_found,
    not_supported,
    one_of,
    syntax,
    too_long,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.environment import environment
from kgpu.lab.embedded.types.validate.mounts import devices, mounts
from kgpu.lab.embedded.types.validate.probes import lifecycle, probe
from kgpu.lab.embedded.types.validate.resources import requirements
from kgpu.lab.embedded.types.validate.security import container_security

PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_PULL: Final = ("Always", "IfNotPresent", "Never")
_MESSAGES: Final = ("File", "FallbackToLogsOnError")
_RESTART: Final = ("Always", "Never", "OnFailure")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_ONLY_SIDECARS: Final = "may not be set for init containers without restartPolicy=Always"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """What the checks of a container need of its pod."""

    volumes: Mapping[str, Object]
    claims: set[str]
    restart_policy: str
    host_users: bool
    grace: int | None
    system: str


def containers(errors: Errors, path: str, container_list: list[Object], pod_context: PodContext) -> None:
    """Check ``spec.containers``."""
    if not container_list:
        errors.append(required(path))
        return
    names: set[str] = set()
    for index, container in enumerate(container_list):
        at = f"{path}[{index}]"
        _common(errors, at, container, pod_context)
        _unique(errors, at, container, names)
        _hooks(errors, at, container, pod_context)
        _restart_rules(errors, at, container)
    host_ports(errors, path, container_list)


def init_containers(
    errors: Errors, path: str, container_list: list[Object], main: list[Object], pod_context: PodContext
) -> None:
    """Check ``spec.initContainers``; their names must differ from those of the main ones."""
    names = {container.get("name", "") for container in main}
    for index, container in enumerate(container_list):
        at = f"{path}[{index}]"
        _common(errors, at, container, pod_context)
        _restart_rules(errors, at, container)
        _unique(errors, at, container, names)
        host_ports(errors, path, [container])
        if container.get("restartPolicy") == "Always":
            _hooks(errors, at, container, pod_context)
            continue
        for field in ("lifecycle", *_PROBES):
            if field in container:
                errors.append(forbidden_field(f"{at}.{field}", _ONLY_SIDECARS))


def ephemeral_containers(
    errors: Errors, path: str, container_list: list[Object], others: list[Object], pod_context: PodContext
) -> None:
    """Check ``spec.ephemeralContainers``."""
    known = {container.get("name", "") for container in others}
    names = set(known)
    for index, container in enumerate(container_list):
        at = f"{path}[{index}]"
        _common(errors, at, container, pod_context)
        image_padding(errors, at, container)
        _unique(errors, at, container, names)
        target = container.get("targetContainerName")
        if target and target not in known:
            errors.append(not_found(f"{at}.targetContainerName", target))
        for field in ("ports", "resources", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
            if container.get(field):
                errors.append(forbidden_field(f"{at}.{field}", "cannot be set for an Ephemeral Container"))
        for number, mount in enumerate(container.get("volumeMounts") or ()):
            for field in ("subPath", "subPathExpr"):
                if mount.get(field):
                    words = "cannot be set for an Ephemeral Container"
                    errors.append(forbidden_field(f"{at}.volumeMounts[{number}].{field}", words))


def image_padding(errors: Errors, path: str, container: Object) -> None:
    """Check that the image has no whitespace around it; pods only, not templates."""
    image = container.get("image", "")
    if image != image.strip():
        errors.append(bad_value(f"{path}.image", image, "must not have leading or trailing whitespace"))


def _unique(errors: Errors, path: str, container: Object, names: set[str]) -> None:
    name = container.get("name", "")
    if name in names:
        errors.append(duplicate(f"{path}.name", name))
    else:
        names.add(name)


def _hooks(errors: Errors, path: str, container: Object, pod_context: PodContext) -> None:
    lifecycle(errors, f"{path}.lifecycle", container.get("lifecycle"), pod_context.grace, pod_context.system)
    for kind in _PROBES:
        probe(errors, f"{path}.{kind}", container.get(kind), kind, pod_context.grace)


def _common(errors: Errors, path: str, container: Object, pod_context: PodContext) -> None:
    needed(errors, f"{path}.name", container.get("name"), texts.label)
    if not container.get("image"):
        errors.append(required(f"{path}.image"))
    one_of(
        errors, f"{path}.terminationMessagePolicy", container.get("terminationMessagePolicy", ""), _MESSAGES, order=True
    )
    if container.get("ports"):
        ports(errors, f"{path}.ports", container["ports"])
    environment(errors, path, container)
    mounts(errors, f"{path}.volumeMounts", container, pod_context.volumes)
    devices(errors, f"{path}.volumeDevices", container, pod_context.volumes)
    one_of(errors, f"{path}.imagePullPolicy", container.get("imagePullPolicy", ""), _PULL)
    if container.get("resources"):
        requirements(errors, f"{path}.resources", container["resources"], pod_context.claims)
    if container.get("resizePolicy"):
        _resize(errors, f"{path}.resizePolicy", container["resizePolicy"], pod_context.restart_policy)
    container_security(
        errors, f"{path}.securityContext", container.get("securityContext"), host_users=pod_context.host_users
    )


def ports(errors: Errors, path: str, container_ports: list[Object]) -> None:
    names: set[str] = set()
    for index, port in enumerate(container_ports):
        at, name = f"{path}[{index}]", port.get("name", "")
        if name:
            wrong = texts.port_name(name)
            syntax(errors, f"{at}.name", name, texts.port_name)
            if name in names:
                errors.append(duplicate(f"{at}.name", name))
            elif not wrong:
                names.add(name)
        number = port.get("containerPort", 0)
        if number == 0:
            errors.append(required(f"{at}.containerPort"))
        for field, value in (("containerPort", number), ("hostPort", port.get("hostPort", 0))):
            for message in texts.port_number(value) if value else ():
                errors.append(bad_value(f"{at}.{field}", value, message))
        one_of(errors, f"{at}.protocol", port.get("protocol", ""), PROTOCOLS)


def host_ports(errors: Errors, path: str, container_list: list[Object]) -> None:
    """Check that no two containers want the same port of the node."""
    taken: set[str] = set()
    for index, container in enumerate(container_list):
        for number, port in enumerate(container.get("ports") or ()):
            wanted = port.get("hostPort", 0)
            if not wanted:
                continue
            key = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{wanted}"
            if key in taken:
                errors.append(duplicate(f"{path}[{index}].ports[{number}].hostPort", key))
            taken.add(key)


def _resize(errors: Errors, path: str, rules: list[Object], restart_policy: str) -> None:
    resource_names: set[str] = set()
    for index, rule in enumerate(rules):
        name, policy = rule.get("resourceName", ""), rule.get("restartPolicy", "")
        if name in resource_names:
            errors.append(duplicate(f"{path}[{index}]", name))
        resource_names.add(name)
        one_of(errors, path, name, ("cpu", "memory"))
        one_of(errors, path, policy, ("NotRequired", "RestartContainer"))
        if restart_policy == "Never" and policy != "NotRequired":
            errors.append(bad_value(path, policy, "must be 'NotRequired' when `restartPolicy` is 'Never'"))


def _restart_rules(errors: Errors, path: str, container: Object) -> None:
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules") or []
    if policy is None:
        if rules:
            words = "must specify restartPolicy when restart rules are used"
            errors.append(required(f"{path}.restartPolicy", words))
    elif policy not in _RESTART:
        errors.append(not_supported(f"{path}.restartPolicy", policy, _RESTART))
    if len(rules) > 20:
        errors.append(too_long(f"{path}.restartPolicyRules", 20))
    for index, rule in enumerate(rules):
        at, codes = f"{path}.restartPolicyRules[{index}]", rule.get("exitCodes")
        if rule.get("action") != "Restart":
            errors.append(not_supported(f"{at}.action", rule.get("action", ""), ("Restart",)))
        if codes is None:
            errors.append(required(f"{at}.exitCodes", "must be specified"))
            continue
        if codes.get("operator") not in {"In", "NotIn"}:
            errors.append(not_supported(f"{at}.exitCodes.operator", codes.get("operator", ""), ("In", "NotIn")))
        if len(codes.get("values") or ()) > 255:
            errors.append(too_long(f"{at}.exitCodes.values", 255))
