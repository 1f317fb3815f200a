"""The finder: an unprivileged pod that publishes node features on nodes without known GPUs.

It has access to world-readable files of the host, and only to those that the role ``features`` reads: sysfs, the
os-release file, the places of a kernel's configuration, and the folder of feature files. The kernel's facts are in its
own ``/proc``. Its state ends with its pod. It meets Pod Security's level ``restricted`` except for its volumes: host
paths make a pod ``privileged``.
"""

from __future__ import annotations

import posixpath
from typing import Final

from kgpu.formats import names
from kgpu.operator.labels import has_agent
from kgpu.operator.model import AgentNodes, NodeLayout, Object
from kgpu.operator.objects import shape
from kgpu.operator.objects.common import HOST_TO_CONTAINER, Scene, host_volume, mount

USER: Final = 65532
"""The image's user; a pod that sets it can read its own token."""

POD_SECURITY: Final[Object] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Object] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
# Measured: 31 MB. The rest is for nodes with hundreds of PCI functions.
RESOURCES: Final[Object] = {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "128Mi"}}

_HOST: Final = (
    ("host-sys", "sys", "", HOST_TO_CONTAINER),
    # Without the type, a container engine would create a folder of that name on a host that lacks the file.
    ("host-os-release", "etc/os-release", "File", ""),
    ("host-usr-lib", "usr/lib", "", ""),
    ("host-boot", "boot", "", ""),
    # Feature files, rules and the config of a worker. Made where it is missing, as node feature discovery's own chart
    # does: what other programs leave there later has to be seen.
    ("host-features", names.NFD_FOLDER.lstrip("/"), "DirectoryOrCreate", ""),
)
"""Volume, path below the host's root, kind, propagation."""

DRIVER: Final = "driver-install-dir"
STATE: Final = "state"
VOLUMES: Final = (*(row[0] for row in _HOST), DRIVER, STATE)


def host_access(paths: shape.HostFolders) -> tuple[list[Object], list[Object]]:
    """The volumes and mounts; those of the host are read-only.

    They include a driver root outside /run/nvidia, as simulated hardware has its PCI bus there. It is mounted below the
    host's root like everything else, as only root may look below the image's own /root. The default driver root is not
    included, as that would create the folder on hosts that never get a driver.
    """
    rows = [
        (name, posixpath.join(paths.root_fs, part), posixpath.join(names.HOST_ROOT, part), kind, propagation)
        for name, part, kind, propagation in _HOST
    ]
    if posixpath.commonpath(["/run/nvidia", paths.driver_install_dir]) != "/run/nvidia":
        seen = names.HOST_ROOT + paths.driver_install_dir
        rows.append((DRIVER, paths.driver_install_dir, seen, "", HOST_TO_CONTAINER))
    volumes = [host_volume(name, source, kind) for name, source, _, kind, _ in rows]
    mounts = [mount(name, target, read_only=True, propagation=how) for name, _, target, _, how in rows]
    volumes.append({"name": STATE, "emptyDir": {"sizeLimit": "1Mi"}})
    mounts.append(mount(STATE, names.STATE_DIR))
    return volumes, mounts


def is_needed(scene: Scene) -> bool:
    """Whether any node may need the finder: not if agents run everywhere, nor if another discovery labels nodes and has
    published all that kgpu's own has.
    """
    settings, observed = scene.settings, scene.observed
    agents = settings.layout is NodeLayout.AGENT
    if agents and settings.agent_nodes is AgentNodes.ALL and not settings.agent_selector:
        return False
    if not observed.foreign_nfd:
        return True
    return any(node.discovered and not (agents and has_agent(node)) for node in observed.nodes)
