"""Security contexts of pods and containers."""

from __future__ import annotations

import re
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    among,
    duplicate,
    in_range,
    not_supported,
    too_long,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.mounts import descending

_MAX_ID: Final = 2**31 - 1
_SEGMENT: Final = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL: Final = rf"({_SEGMENT}[\./])*{_SEGMENT}"
_PROFILES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_NET_SYSCTLS: Final = ("net.",)
_IPC_SYSCTLS: Final = ("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")


def container_security(errors: Errors, path: str, context: Object | None, *, host_users: bool) -> None:
    """Check a container's own context."""
    if not context:
        return
    for name in ("runAsUser", "runAsGroup"):
        in_range(errors, f"{path}.{name}", context.get(name), 0, _MAX_ID)
    mount = context.get("procMount")
    if mount is not None:
        if mount not in {"Default", "Unmasked"}:
            errors.append(not_supported(f"{path}.procMount", mount, ("Default", "Unmasked")))
        if host_users and mount == "Unmasked":
            errors.append(bad_value(f"{path}.procMount", mount, "`hostUsers` must be false to use `Unmasked`"))
    _seccomp(errors, f"{path}.seccompProfile", context.get("seccompProfile"))
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            words = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            errors.append(bad_value(path, _as_go(context), words))
        if "CAP_SYS_ADMIN" in (context.get("capabilities") or {}).get("add", ()):
            words = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            errors.append(bad_value(path, _as_go(context), words))
    _app_armor(errors, f"{path}.appArmorProfile", context.get("appArmorProfile"))


# The real server's internal type has no JSON names, so messages that quote it show Go's names.
_GO_CONTEXT: Final = (
    "capabilities", "privileged", "seLinuxOptions", "windowsOptions", "runAsUser", "runAsGroup", "runAsNonRoot",
    "readOnlyRootFilesystem", "allowPrivilegeEscalation", "procMount", "seccompProfile", "appArmorProfile",
)  # fmt: skip


def _as_go(context: Object) -> Object:
    shown = {}
    for name in _GO_CONTEXT:
        title = "SELinuxOptions" if name == "seLinuxOptions" else name[0].upper() + name[1:]
        shown[title] = context.get(name)
    capabilities = shown["Capabilities"]
    if capabilities is not None:
        shown["Capabilities"] = {"Add": capabilities.get("add"), "Drop": capabilities.get("drop")}
    return shown


def pod_security(errors: Errors, path: str, context: Object, spec: Object) -> None:
    """Check the pod's context."""
    for name in ("fsGroup", "runAsUser", "runAsGroup"):
        in_range(errors, f"{path}.{name}", context.get(name), 0, _MAX_ID)
    for index, group in enumerate(context.get("supplementalGroups") or ()):
        in_range(errors, f"{path}.supplementalGroups[{index}]", group, 0, _MAX_ID)
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        words = "ShareProcessNamespace and HostPID cannot both be enabled"
        errors.append(bad_value(f"{path}.shareProcessNamespace", True, words))
    if context.get("sysctls"):
        _sysctls(errors, f"{path}.sysctls", context["sysctls"], spec)
    if context.get("fsGroupChangePolicy") is not None:
        among(errors, f"{path}.fsGroupChangePolicy", context["fsGroupChangePolicy"], ("Always", "OnRootMismatch"))
    _seccomp(errors, f"{path}.seccompProfile", context.get("seccompProfile"))
    _app_armor(errors, f"{path}.appArmorProfile", context.get("appArmorProfile"))
    if context.get("supplementalGroupsPolicy") is not None:
        among(errors, f"{path}.supplementalGroupsPolicy", context["supplementalGroupsPolicy"], ("Merge", "Strict"))
    if context.get("seLinuxChangePolicy") is not None:
        among(errors, f"{path}.seLinuxChangePolicy", context["seLinuxChangePolicy"], ("MountOption", "Recursive"))


def _sysctls(errors: Errors, path: str, sysctls: list[Object], spec: Object) -> None:
    sysctl_names: set[str] = set()
    for index, sysctl in enumerate(sysctls):
        at, name = f"{path}[{index}].name", sysctl.get("name", "")
        if not name:
            errors.append(required(at))
        elif len(name) > 253 or not re.fullmatch(_SYSCTL, name):
            errors.append(bad_value(at, name, f"must have at most 253 characters and match regex ^{_SYSCTL}$"))
        elif name in sysctl_names:
            errors.append(duplicate(at, name))
        dotted = name.replace("/", ".")
        for field, prefixes in (("hostNetwork", _NET_SYSCTLS), ("hostIPC", _IPC_SYSCTLS)):
            if spec.get(field) and dotted.startswith(prefixes):
                errors.append(bad_value(at, name, f"may not be specified when '{field}' is true"))
        sysctl_names.add(name)


def _seccomp(errors: Errors, path: str, profile: Object | None) -> None:
    if profile is None:
        return
    kind, local = profile.get("type", ""), profile.get("localhostProfile")
    if not kind:
        errors.append(required(f"{path}.type", "type is required when seccompProfile is set"))
    elif kind not in _PROFILES:
        errors.append(not_supported(f"{path}.type", kind, _PROFILES))
    if kind == "Localhost":
        if local is None:
            errors.append(required(f"{path}.localhostProfile", "must be set when seccomp type is Localhost"))
        else:
            descending(errors, f"{path}.localhostProfile", local)
    elif local is not None:
        shown = {"Type": kind, "LocalhostProfile": local}
        words = "can only be set when seccomp type is Localhost"
        errors.append(bad_value(f"{path}.localhostProfile", shown, words))


def _app_armor(errors: Errors, path: str, profile: Object | None) -> None:
    if profile is None:
        return
    kind, local, at = profile.get("type", ""), profile.get("localhostProfile"), f"{path}.localhostProfile"
    if not kind:
        errors.append(required(f"{path}.type", "type is required when appArmorProfile is set"))
    elif kind not in _PROFILES:
        errors.append(not_supported(f"{path}.type", kind, _PROFILES))
    elif kind != "Localhost":
        if local is not None:
            errors.append(bad_value(at, local, "can only be set when AppArmor type is Localhost"))
    elif not (local or "").strip() and (local or "") == (local or "").strip():
        errors.append(required(at, "must be set when AppArmor type is Localhost"))
    elif local != (local or "").strip():
        errors.append(bad_value(at, local, "must not be padded with whitespace"))
    elif len(local or "") > 4095:
        errors.append(too_long(at, 4095))


def host_users(errors: Errors, path: str, spec: Object) -> None:
    """Check that a pod with its own user namespace has nothing that needs the host's."""
    if spec.get("hostUsers") is not False:
        return
    words = "when `hostUsers` is false"
    if spec.get("hostNetwork"):
        errors.append(forbidden_field(f"{path}.hostNetwork", words))
    for field, shown in (("hostPID", "HostPID"), ("hostIPC", "HostIPC")):
        if spec.get(field):
            errors.append(forbidden_field(f"{path}.{shown}", words))
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            if container.get("volumeDevices"):
                errors.append(forbidden_field(f"{path}.{field}[{index}].volumeDevices", words))
