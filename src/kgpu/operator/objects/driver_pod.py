"""The pod of NVIDIA's driver container, for one pool of nodes, and the number that says when it has to be replaced."""

from __future__ import annotations

import json
from typing import Any, Final

from kgpu.formats import names
from kgpu.operator.model import Object
from kgpu.operator.objects import driver_containers as containers
from kgpu.operator.objects import images, shape
from kgpu.operator.objects.common import host_volume
from kgpu.operator.objects.driver_containers import CONTAINER, FOLDERS, MANAGER, PROBE_MAP, READY_FILE, SIDES
from kgpu.operator.objects.driver_mounts import Files
from kgpu.operator.objects.driver_wish import DriverImage, DriverWish
from kgpu.operator.objects.pools import Pool, fnv32a

COMPONENT: Final = "nvidia-driver"

PROBE_SCRIPT: Final = f"""\
#!/bin/sh
# Ready when the kernel module is loaded, the driver's daemons are up and it answers. What the others
# have to check besides is left in the file that they wait for.
set -eu

fail() {{ echo "$1"; exit 1; }}

[ -e /sys/module/nvidia/refcnt ] || fail "the kernel module nvidia is not loaded yet"
daemons={names.VALIDATIONS_DIR}/.driver-daemons-status
if [ -e "$daemons" ]; then
    [ "$(cat "$daemons")" = Ready ] || fail "the driver's daemons are not ready: $(cat "$daemons")"
fi
nvidia-smi || fail "nvidia-smi does not get an answer"

ready={READY_FILE}
mkdir -p "${{ready%/*}}"
for name in GDRCOPY_ENABLED GDS_ENABLED GPU_DIRECT_RDMA_ENABLED; do
    eval "echo \\"$name: \\${{$name:-false}}\\""
done > "$ready.tmp"
mv "$ready.tmp" "$ready"
"""


def resolved_images(wish: DriverWish, pool: Pool) -> dict[str, str]:
    """The images for one pool, by container."""
    parts = {CONTAINER: wish.driver} | {row.name: part for row in SIDES if (part := getattr(wish, row.key))}
    by_container = {name: _image(wish, part, pool) for name, part in parts.items()}
    return by_container | {MANAGER: wish.manager.image}


def _image(wish: DriverWish, part: DriverImage, pool: Pool) -> str:
    if pool.kernel:
        return images.precompiled(wish.what, part.image, pool.kernel, pool.os_tag)
    return images.for_system(part.image, pool.os_tag)


def digest(wish: DriverWish, pool: Pool, paths: shape.HostFolders) -> str:
    """A decimal number that changes exactly when a driver has to be installed anew.

    A default image of the driver manager is not part of it: a new operator is no reason to restart drivers. Neither is
    a setting without a value, so that a new setting changes nothing where it is not used.
    """
    by_container = resolved_images(wish, pool)
    manager = "" if wish.default_manager else by_container.pop(MANAGER)
    by_container.pop(MANAGER, None)
    values: dict[str, Any] = {
        "images": by_container,
        "manager": manager,
        "type": "" if wish.driver_type == "gpu" else wish.driver_type,
        "modules": "" if wish.module_type == "auto" else wish.module_type,
        "args": wish.driver.args,
        "env": {row.name: row.value or "" for row in wish.driver.env},
        "manager env": {row.name: row.value or "" for row in wish.manager.env},
        "gds env": {row.name: row.value or "" for row in (wish.gds.env if wish.gds else ())},
        "gdrcopy env": {row.name: row.value or "" for row in (wish.gdrcopy.env if wish.gdrcopy else ())},
        "secret env": wish.secret_env,
        "rdma": wish.rdma,
        "host mofed": wish.host_mofed,
        "license": wish.license_secret or wish.license_map,
        "topology": wish.topology,
        "module config": wish.module_config,
        "repositories": wish.repositories,
        "certificates": wish.certificates,
        "kernel": pool.kernel,
        "root": "" if paths.root_fs == "/" else paths.root_fs,
    }
    text = json.dumps({key: value for key, value in values.items() if value}, sort_keys=True)
    return str(fnv32a(text.encode()))


def pod_spec(
    wish: DriverWish, pool: Pool, paths: shape.HostFolders, *, account: str, files: Files, manager_image: str
) -> Object:
    """The pod's ``spec``."""
    image = resolved_images(wish, pool)
    number = digest(wish, pool, paths)
    parts = [part for part in (wish.driver, wish.manager, wish.gds, wish.gdrcopy) if part is not None]
    spec: Object = {
        "serviceAccountName": account,
        "priorityClassName": wish.priority_class,
        "tolerations": [dict(toleration) for toleration in wish.tolerations],
        "nodeSelector": {f"{names.LABEL_DEPLOY_PREFIX}driver": "true", **pool.selector, **wish.node_selector},
        "affinity": _affinity(wish),
        "hostPID": True,
        "initContainers": [containers.manager(wish, number, manager_image)],
        "containers": [
            containers.driver(wish, image[CONTAINER], number, files),
            *([containers.peermem(wish, image[CONTAINER], files)] if wish.rdma else []),
            *(
                containers.side(row, part, image[row.name], wish.resources)
                for row in SIDES
                if (part := getattr(wish, row.key)) is not None
            ),
        ],
        "volumes": [
            *(host_volume(name, source, kind) for name, source, kind, *_ in FOLDERS),
            host_volume("host-root", paths.root_fs),
            host_volume("host-sys", "/sys", "Directory"),
            {"name": "driver-startup-probe-script", "configMap": {"name": PROBE_MAP, "defaultMode": 0o755}},
            *files.volumes,
        ],
    }
    if wish.security_context is not None:
        spec["securityContext"] = wish.security_context
    if secrets := dict.fromkeys(secret for part in parts for secret in part.pull_secrets):
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    shape.host_network(spec, wanted=wish.host_network)
    return spec


def _affinity(wish: DriverWish) -> Object:
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
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }
    if wish.node_affinity:
        affinity["nodeAffinity"] = wish.node_affinity
    return affinity
