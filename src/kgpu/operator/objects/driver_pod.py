"""The pod of NVIDIA's driver container for one pool of nodes, and the digest that decides when it has
to be replaced.
"""

from __future__ import annotations

import json
from typing import Any, Final

from kgpu.formats import names
from kgpu.operator.model import Object
from kgpu.operator.objects import driver_containers as containers
from kgpu.operator.objects import driver_toolkit, images, shape
from kgpu.operator.objects.common import host_volume
from kgpu.operator.objects.driver_containers import CONTAINER, FOLDERS, MANAGER, PROBE_MAP, READY_FILE, SIDES
from kgpu.operator.objects.driver_mounts import Files
from kgpu.operator.objects.driver_settings import DriverImage, DriverSettings
from kgpu.operator.objects.openshift import NO_PARTS, TOOLKIT, BuildToolkit, OpenShiftParts
from kgpu.operator.objects.pools import Pool, fnv32a

COMPONENT: Final = names.DRIVER_COMPONENT
TERMINATION_LOG: Final = "/dev/termination-log"
"""Where a container leaves its last words, unless its pod says otherwise."""

PROBE_SCRIPT: Final = f"""\
#!/bin/sh
# Ready when the kernel module is loaded, the driver's daemons are up and it answers. What the others
# have to check besides is left in the file that they wait for. Whoever stops a container whose probe fails says nothing
# of why, so what is wrong with its daemons is left as the container's last words; of all else its log has them.
set -eu

leave() {{ {{ printf %s "$1" > {TERMINATION_LOG}; }} 2> /dev/null || true; }}
fail() {{ echo "$1"; exit 1; }}

[ -e /sys/module/nvidia/refcnt ] || fail "the kernel module nvidia is not loaded yet"
daemons={names.VALIDATIONS_DIR}/.driver-daemons-status
if [ -e "$daemons" ]; then
    why="the driver's daemons are not ready: $(cat "$daemons")"
    [ "$(cat "$daemons")" = Ready ] || {{ leave "$why"; fail "$why"; }}
fi
nvidia-smi || fail "nvidia-smi does not get an answer"

ready={READY_FILE}
mkdir -p "${{ready%/*}}"
for name in GDRCOPY_ENABLED GDS_ENABLED GPU_DIRECT_RDMA_ENABLED; do
    eval "echo \\"$name: \\${{$name:-false}}\\""
done > "$ready.tmp"
mv "$ready.tmp" "$ready"
leave ""
"""


def resolved_images(settings: DriverSettings, pool: Pool, toolkit: BuildToolkit | None = None) -> dict[str, str]:
    """The images for one pool, by container."""
    parts = {CONTAINER: settings.driver} | {row.name: part for row in SIDES if (part := getattr(settings, row.key))}
    by_container = {name: _image(settings, part, pool) for name, part in parts.items()}
    if toolkit is not None:
        by_container[TOOLKIT] = toolkit.image or by_container[CONTAINER]
    return by_container | {MANAGER: settings.manager.image}


def _image(settings: DriverSettings, part: DriverImage, pool: Pool) -> str:
    if pool.kernel:
        return images.precompiled(settings.what, part.image, pool.kernel, pool.os_tag)
    return images.for_system(part.image, pool.os_tag)


def digest(settings: DriverSettings, pool: Pool, paths: shape.HostFolders, toolkit: BuildToolkit | None = None) -> str:
    """A decimal number that changes exactly when a driver has to be reinstalled.

    It leaves out the driver manager's default image, as a new operator must not restart drivers, and settings without a
    value, so that a new setting changes nothing where it is not used. It leaves out OpenShift's release, proxy and
    certificates, too: they are for the next installation, and no reason to empty a node.

    Whoever makes it in another way counts ``names.THIS_DRIVER_DIGEST_VERSION`` up: pods with a digest of another
    version are compared by their image.
    """
    by_container = resolved_images(settings, pool, toolkit)
    manager = "" if settings.default_manager else by_container.pop(MANAGER)
    by_container.pop(MANAGER, None)
    values: dict[str, Any] = {
        "images": by_container,
        "manager": manager,
        "type": "" if settings.driver_type == "gpu" else settings.driver_type,
        "modules": "" if settings.module_type == "auto" else settings.module_type,
        "args": settings.driver.args,
        "env": {row.name: row.value or "" for row in settings.driver.env},
        "manager env": {row.name: row.value or "" for row in settings.manager.env},
        "gds env": {row.name: row.value or "" for row in (settings.gds.env if settings.gds else ())},
        "gdrcopy env": {row.name: row.value or "" for row in (settings.gdrcopy.env if settings.gdrcopy else ())},
        "secret env": settings.secret_env,
        "rdma": settings.rdma,
        "host mofed": settings.host_mofed,
        "license": settings.license_secret or settings.license_map,
        "topology": settings.topology,
        "module config": settings.module_config,
        "repositories": settings.repositories,
        "certificates": settings.certificates,
        "kernel": pool.kernel,
        "root": "" if paths.root_fs == "/" else paths.root_fs,
    }
    text = json.dumps({key: value for key, value in values.items() if value}, sort_keys=True)
    return str(fnv32a(text.encode()))


def pod_spec(
    settings: DriverSettings,
    pool: Pool,
    paths: shape.HostFolders,
    *,
    account: str,
    files: Files,
    openshift: OpenShiftParts = NO_PARTS,
) -> Object:
    """The pod's ``spec``."""
    toolkit = openshift.toolkit
    image = resolved_images(settings, pool, toolkit)
    number = digest(settings, pool, paths, toolkit)
    parts = [part for part in (settings.driver, settings.manager, settings.gds, settings.gdrcopy) if part is not None]
    spec: Object = {
        "serviceAccountName": account,
        "priorityClassName": settings.priority_class,
        "tolerations": [dict(toleration) for toleration in settings.tolerations],
        "nodeSelector": {f"{names.LABEL_DEPLOY_PREFIX}driver": "true", **pool.selector, **settings.node_selector},
        "affinity": _affinity(settings),
        "hostPID": True,
        "initContainers": [containers.manager(settings, number)],
        "containers": [
            containers.driver(settings, image[CONTAINER], number, files, openshift),
            *([containers.peermem(settings, image[CONTAINER], files)] if settings.rdma else []),
            *(
                containers.side(row, part, image[row.name], settings.resources, toolkit=toolkit is not None)
                for row in SIDES
                if (part := getattr(settings, row.key)) is not None
            ),
            *([] if toolkit is None else [driver_toolkit.container(settings, toolkit, image[TOOLKIT], number)]),
        ],
        "volumes": [
            *(host_volume(name, source, kind) for name, source, kind, *_ in FOLDERS),
            host_volume("host-root", paths.root_fs),
            host_volume("host-sys", "/sys", "Directory"),
            {"name": "driver-startup-probe-script", "configMap": {"name": PROBE_MAP, "defaultMode": 0o755}},
            *([] if toolkit is None else [driver_toolkit.SHARED_VOLUME]),
            *files.volumes,
        ],
    }
    if settings.security_context is not None:
        spec["securityContext"] = settings.security_context
    if secrets := dict.fromkeys(secret for part in parts for secret in part.pull_secrets):
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    shape.host_network(spec, wanted=settings.host_network)
    return spec


def _affinity(settings: DriverSettings) -> Object:
    affinity: Object = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {
                        "matchExpressions": [
                            {
                                "key": names.COMPONENT_LABEL,
                                "operator": "In",
                                "values": [COMPONENT, "nvidia-vgpu-manager"],
                            }
                        ]
                    },
                    "topologyKey": names.LABEL_HOSTNAME,
                }
            ]
        }
    }
    if settings.node_affinity:
        affinity["nodeAffinity"] = settings.node_affinity
    return affinity
