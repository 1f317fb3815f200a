"""The containers of a driver pod: commands, environment, probes and folders, as NVIDIA's images expect them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

import msgspec

from kgpu.formats import names
from kgpu.formats.crd.common import ComputeResources, Probe
from kgpu.operator.model import Object
from kgpu.operator.objects.common import (
    BIDIRECTIONAL,
    CREATE,
    HOST_TO_CONTAINER,
    env_list,
    field_env,
    manifest_of,
    mount,
    with_user_env,
)
from kgpu.operator.objects.driver_mounts import Files
from kgpu.operator.objects.driver_settings import DriverImage, DriverSettings
from kgpu.operator.objects.openshift import NO_PARTS, BuildToolkit, OpenShiftParts

CONTAINER: Final = names.DRIVER_CONTAINER
MANAGER: Final = names.DRIVER_MANAGER_CONTAINER
PROGRAM: Final = "driver-manager"
PROBE_MAP: Final = "nvidia-driver-startup-probe"
PROBE_FILE: Final = "startup-probe.sh"
PROBE_PATH: Final = f"/usr/local/bin/{PROBE_FILE}"
READY_FILE: Final = f"{names.VALIDATIONS_DIR}/.driver-ctr-ready"
DIGEST: Final = names.ENV_DRIVER_CONFIG_DIGEST

# How NVIDIA's image works together with OpenShift's driver toolkit.
ENTRY_POINT: Final = "ocp_dtk_entrypoint"
SHARED: Final = "shared-nvidia-driver-toolkit"
SHARED_PATH: Final = f"/mnt/{SHARED}"

# (volume, path on the host, its kind, path in the driver container, read only, propagation)
FOLDERS: Final = (
    ("run-nvidia", "/run/nvidia", CREATE, "/run/nvidia", False, BIDIRECTIONAL),
    ("run-nvidia-fabricmanager", "/run/nvidia-fabricmanager", CREATE, "/run/nvidia-fabricmanager", False, ""),
    ("run-nvidia-topologyd", "/run/nvidia-topologyd", CREATE, "/run/nvidia-topologyd", False, ""),
    ("var-log", "/var/log", "", "/var/log", False, ""),
    ("dev-log", "/dev/log", "", "/dev/log", False, ""),
    ("host-os-release", "/etc/os-release", "", "/host-etc/os-release", True, ""),
    ("run-mellanox-drivers", "/run/mellanox/drivers", CREATE, "/run/mellanox/drivers", False, HOST_TO_CONTAINER),
    ("mlnx-ofed-usr-src", "/run/mellanox/drivers/usr/src", CREATE, "/run/mellanox/drivers/usr/src", False,
     HOST_TO_CONTAINER),
    ("sysfs-devices-system", "/sys/devices/system", "Directory", "/sys/devices/system", False, ""),
    ("firmware-search-path", "/sys/module/firmware_class/parameters/path", "",
     "/sys/module/firmware_class/parameters/path", False, ""),
    ("nv-firmware", "/run/nvidia/driver/lib/firmware", CREATE, "/lib/firmware", False, ""),
)  # fmt: skip

_LAST_WORDS: Final[Object] = {"terminationMessagePolicy": "FallbackToLogsOnError"}
"""Why a driver could not be installed is in its log alone; the status of its container tells the end of it."""
PRIVILEGED: Final[Object] = {"privileged": True, "seLinuxOptions": {"level": "s0"}}
_STARTUP: Final[Object] = {"periodSeconds": 10, "timeoutSeconds": 60, "successThreshold": 1, "failureThreshold": 120}
_SIDE_STARTUP: Final[Object] = {
    "initialDelaySeconds": 10, "periodSeconds": 10, "timeoutSeconds": 10, "successThreshold": 1,
    "failureThreshold": 120,
}  # fmt: skip
_WAIT: Final = (
    "until [ -d /run/nvidia/driver/usr/src ] && [ -e /sys/module/nvidia/refcnt ]; do"
    " echo waiting for the driver to be installed; sleep 10; done; exec {program} install"
)


@dataclass(frozen=True, slots=True)
class Side:
    """A sidecar of the driver: its field in ``DriverSettings``, its name, its image's program and its kernel module.

    ``in_toolkit`` is what its entry point is asked for where OpenShift's driver toolkit builds the module, "" where the
    program builds it as everywhere.
    """

    key: str
    name: str
    program: str
    module: str
    in_toolkit: str = ""


SIDES: Final = (
    Side("gds", "nvidia-fs-ctr", "nvidia-gds-driver", "nvidia_fs"),
    Side("gdrcopy", "nvidia-gdrcopy-ctr", "nvidia-gdrcopy-driver", "gdrdrv", "gdrcopy-ctr-run-with-dtk"),
)


def switches(settings: DriverSettings) -> dict[str, str]:
    """The environment that says which additional modules to load; the containers that wait for them get it, too."""
    rows = {
        "GPU_DIRECT_RDMA_ENABLED": settings.rdma,
        "USE_HOST_MOFED": settings.host_mofed,
        "GDS_ENABLED": settings.gds is not None,
        "GDRCOPY_ENABLED": settings.gdrcopy is not None,
    }
    return {name: "true" for name, on in rows.items() if on}


def driver(settings: DriverSettings, image: str, number: str, files: Files, parts: OpenShiftParts = NO_PARTS) -> Object:
    toolkit = parts.toolkit
    env = [
        field_env("NODE_NAME", "spec.nodeName"),
        field_env("NODE_IP", "status.hostIP"),
        *env_list({names.ENV_VISIBLE_DEVICES: "void", DIGEST: number, "KERNEL_MODULE_TYPE": settings.module_type}),
        *env_list({"OPEN_KERNEL_MODULES_ENABLED": "true"} if settings.module_type == "open" else {}),
        *env_list(switches(settings)),
        *env_list(parts.env),
        *env_list({"RHCOS_IMAGE_MISSING": "true", "RHCOS_VERSION": toolkit.rhcos} if _has_fallback(toolkit) else {}),
    ]
    container: Object = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": settings.driver.pull_policy,
        **_LAST_WORDS,
        "command": ["nvidia-driver"] if toolkit is None else [ENTRY_POINT],
        "args": ["init" if toolkit is None else "nv-ctr-run-with-dtk", *settings.driver.args],
        "env": with_user_env(env, settings.driver.env),
        "securityContext": PRIVILEGED,
        "startupProbe": {
            "exec": {"command": ["sh", PROBE_PATH]},
            "initialDelaySeconds": settings.startup_delay,
            **_STARTUP,
            **_timing(settings.startup),
        },
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", f"rm -f {READY_FILE}"]}}},
        "volumeMounts": [
            *(
                mount(name, target, read_only=read_only, propagation=propagation)
                for name, _, _, target, read_only, propagation in FOLDERS
            ),
            mount("driver-startup-probe-script", PROBE_PATH, read_only=True, sub_path=PROBE_FILE),
            *([] if toolkit is None else [mount(SHARED, SHARED_PATH)]),
            *files.mounts,
        ],
    }
    checks = (("livenessProbe", settings.liveness, "test -e /sys/module/nvidia/refcnt"),
              ("readinessProbe", settings.readiness, f"test -e {READY_FILE}"))  # fmt: skip
    for key, probe, command in checks:
        if probe is not None:
            container[key] = {"exec": {"command": ["sh", "-c", command]}, **_timing(probe)}
    if settings.secret_env:
        container["envFrom"] = [{"secretRef": {"name": settings.secret_env}}]
    return _with_resources(container, settings.resources)


def _has_fallback(toolkit: BuildToolkit | None) -> TypeGuard[BuildToolkit]:
    """Whether there is no toolkit for the nodes, which the driver's container has to know."""
    return toolkit is not None and not toolkit.image


def manager(settings: DriverSettings, number: str) -> Object:
    """The init container that makes room for a new driver: kgpu's own program, or NVIDIA's where its image is named."""
    passed_on = {name: value for name, value in switches(settings).items() if name in _MANAGER_SWITCHES}
    env = [
        field_env("NODE_NAME", "spec.nodeName"),
        field_env("OPERATOR_NAMESPACE", "metadata.namespace"),
        *env_list({**_MANAGER_ENV, DIGEST: number, **passed_on}),
    ]
    return {
        "name": MANAGER,
        "image": settings.manager.image,
        "imagePullPolicy": settings.manager.pull_policy,
        **_LAST_WORDS,
        "command": ["kgpu", PROGRAM] if settings.own_manager else [PROGRAM],
        "args": ["uninstall_driver"],
        "env": with_user_env(env, settings.manager.env),
        "securityContext": {"privileged": True},
        "volumeMounts": [
            mount("run-nvidia", "/run/nvidia", propagation=BIDIRECTIONAL),
            mount("host-root", names.HOST_ROOT, read_only=True, propagation=HOST_TO_CONTAINER),
            mount("host-sys", "/sys"),
            mount("run-mellanox-drivers", "/run/mellanox/drivers", propagation=HOST_TO_CONTAINER),
        ],
    }


_MANAGER_SWITCHES: Final = frozenset({"GPU_DIRECT_RDMA_ENABLED", "USE_HOST_MOFED"})
_MANAGER_ENV: Final = {
    names.ENV_VISIBLE_DEVICES: "void",
    "ENABLE_GPU_POD_EVICTION": "true",
    "ENABLE_AUTO_DRAIN": "false",
    "DRAIN_USE_FORCE": "false",
    "DRAIN_POD_SELECTOR_LABEL": "",
    "DRAIN_TIMEOUT_SECONDS": "0s",
    "DRAIN_DELETE_EMPTYDIR_DATA": "false",
}


def peermem(settings: DriverSettings, image: str, files: Files) -> Object:
    check = {"exec": {"command": ["sh", "-c", "nvidia-driver probe_nvidia_peermem"]}}
    container = {
        "name": "nvidia-peermem-ctr",
        "image": image,
        "imagePullPolicy": settings.driver.pull_policy,
        **_LAST_WORDS,
        "command": ["nvidia-driver"],
        "args": ["reload_nvidia_peermem"],
        "env": env_list({names.ENV_VISIBLE_DEVICES: "void", **switches(settings)}),
        "securityContext": PRIVILEGED,
        "startupProbe": {**check, **_SIDE_STARTUP},
        "livenessProbe": {
            **check, "initialDelaySeconds": 30, "periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 1,
        },
        "volumeMounts": [
            mount("run-nvidia", "/run/nvidia", propagation=BIDIRECTIONAL),
            mount("var-log", "/var/log"),
            mount("dev-log", "/dev/log", read_only=True),
            mount("run-mellanox-drivers", "/run/mellanox/drivers", propagation=HOST_TO_CONTAINER),
            *files.mounts,
        ],
    }  # fmt: skip
    return _with_resources(container, settings.resources)


def side(
    row: Side, part: DriverImage, image: str, resources: ComputeResources | None, *, toolkit: bool = False
) -> Object:
    """``toolkit``: OpenShift's driver toolkit is in the pod."""
    in_toolkit = toolkit and bool(row.in_toolkit)
    # The words after the script are its $0, $1 and so on, so the policy's arguments go to the program.
    script = [_WAIT.format(program=row.program) + ' "$@"', row.name]
    container: Object = {
        "name": row.name,
        "image": image,
        "imagePullPolicy": part.pull_policy,
        **_LAST_WORDS,
        "command": [ENTRY_POINT] if in_toolkit else ["bash", "-c"],
        "args": [*([row.in_toolkit] if in_toolkit else script), *part.args],
        "securityContext": PRIVILEGED,
        "startupProbe": {"exec": {"command": ["sh", "-c", f"test -d /sys/module/{row.module}"]}, **_SIDE_STARTUP},
        "volumeMounts": [
            mount("run-nvidia", "/run/nvidia", propagation=HOST_TO_CONTAINER),
            mount("var-log", "/var/log"),
            mount("dev-log", "/dev/log", read_only=True),
            *([mount(SHARED, SHARED_PATH)] if in_toolkit else []),
        ],
    }
    if part.env:
        container["env"] = with_user_env([], part.env)
    return _with_resources(container, resources)


def _with_resources(container: Object, resources: ComputeResources | None) -> Object:
    return {**container, **({"resources": manifest_of(resources)} if resources is not None else {})}


def _timing(probe: Probe | None) -> Mapping[str, int]:
    fields: dict[str, int] = msgspec.to_builtins(probe) if probe is not None else {}
    return fields
