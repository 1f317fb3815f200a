"""The container of all kgpu's pods on nodes, ``kgpu agent --auto``, and its access to the host."""

from __future__ import annotations

import posixpath
from typing import Final

from kgpu.base.connection_limits import HOST_IP
from kgpu.formats import names
from kgpu.formats.mps_folders import MPS_CONTAINER_ROOT
from kgpu.operator.model import Object
from kgpu.operator.objects import shape
from kgpu.operator.objects.common import BIDIRECTIONAL, CREATE, HOST_TO_CONTAINER, Scene, field_env, host_volume, mount

RUN: Final = "run-kgpu"
"""The volume with the GPUs' verdicts, which one role writes and others read, and what processes tell each other."""

MPS: Final = "mps-root"
"""The volume of the MPS control daemons: their pipes, marks and shared memory."""

NODE_STATE: Final = "node-state"
"""The volume with the state of the whole node, of which uninstall removes what the agent's layout has left. For pods
that see CDI specs, as those may be among it.
"""

_DRA_FOLDERS: Final = {
    "dra-driver": names.DRA_GPU_DRIVER,
    "dra-driver-amd": names.DRA_AMD_DRIVER,
    "dra-driver-gaudi": names.DRA_GAUDI_DRIVER,
}
DRA_FOLDERS: Final = tuple(_DRA_FOLDERS)
"""The volumes with the DRA drivers' own folders below the kubelet's for plugins: sockets, and what is prepared. Which
one a node's agent uses shows only on the node.
"""
DRA_SOCKETS: Final = "kubelet-plugins-registry"
"""The volume where the kubelet looks for plugins."""

DRIVER_VOLUMES: Final = ("host-root", "dev", "run-nvidia", "driver-install-dir", "state", "pod-resources", RUN)
"""What a role needs to open the driver, to keep state, and to obey an operation on the node's GPUs: any of them may be
the one that tells who holds these, and what all processes have answered.
"""

# Measured with all roles on a node with 8 GPUs, plus room for the driver's library to grow.
RESOURCES: Final[Object] = {"requests": {"cpu": "20m", "memory": "80Mi"}, "limits": {"memory": "256Mi"}}
STARTUP_SECONDS: Final = 120
"""Seconds until a process that does not answer is restarted: a machine can be slow."""

# The validator's CUDA programs take 100 to 200 MB each, and two run at a time.
CUDA_RESOURCES: Final[Object] = {**RESOURCES, "limits": {"memory": "1Gi"}}


def agent_container(
    scene: Scene,
    *,
    name: str,
    args: list[str],
    env: list[Object],
    mounts: list[Object],
    readiness: str,
    resources: Object,
    ports: tuple[Object, ...] = (),
) -> Object:
    """A container of kgpu's own image that runs ``kgpu agent --auto``."""
    port = names.AGENT_HEALTH_PORT
    return {
        "name": name,
        "image": scene.settings.image,
        "imagePullPolicy": scene.settings.image_pull_policy,
        "args": ["agent", "--auto", "--health-address", f":{port}", *args],
        "env": [
            field_env("NODE_NAME", "spec.nodeName"),
            field_env("NAMESPACE", "metadata.namespace"),
            field_env("POD_NAME", "metadata.name"),
            field_env(HOST_IP, "status.hostIP"),
            {"name": names.ENV_HOST_ROOT, "value": names.HOST_ROOT},
            *([{"name": names.ENV_RUN_DIR, "value": names.RUN_DIR}] if _has(mounts, RUN) else []),
            *([{"name": names.ENV_NODE_STATE_DIR, "value": names.NODE_STATE_DIR}] if _has(mounts, NODE_STATE) else []),
            *env,
        ],
        "ports": [{"name": "health", "containerPort": port, "protocol": "TCP"}, *ports],
        # The delay lets the process listen first: every failed probe is a Warning Event.
        "startupProbe": _probe("/healthz", period=1, failures=STARTUP_SECONDS) | {"initialDelaySeconds": 2},
        "livenessProbe": _probe("/healthz", period=20, failures=3),
        "readinessProbe": _probe(readiness, period=5, failures=3),
        "resources": resources,
        # The pod's status then shows why it ended, such as a wrong argument.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"privileged": True},
        "volumeMounts": mounts,
    }


def _has(mounts: list[Object], volume: str) -> bool:
    return any(entry["name"] == volume for entry in mounts)


def _probe(path: str, *, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def host_access(paths: shape.HostFolders, user: str = "", *, claims: bool = False) -> tuple[list[Object], list[Object]]:
    """The volumes and mounts of what the roles read and write on the host.

    ``user`` names a process's own state folder if a node has several processes. With ``claims``, also what the DRA
    driver needs: at the host's own paths, as the kubelet is told where its socket is.
    """
    kubelet = paths.kubelet_root
    rows = [
        ("host-root", paths.root_fs, names.HOST_ROOT, "", HOST_TO_CONTAINER),
        ("dev", "/dev", "/dev", "", ""),
        ("run-nvidia", "/run/nvidia", "/run/nvidia", CREATE, HOST_TO_CONTAINER),
        ("device-plugins", f"{kubelet}/device-plugins", names.KUBELET_DEVICE_PLUGIN_DIR, CREATE, ""),
        ("pod-resources", f"{kubelet}/pod-resources", f"{names.KUBELET_ROOT}/pod-resources", CREATE, ""),
        ("cdi", names.CDI_DIR, names.CDI_DIR, CREATE, ""),
        (RUN, names.RUN_DIR, names.RUN_DIR, CREATE, ""),
        # The daemons' shared memory is mounted below it, and has to reach the host, where clients get it from.
        (MPS, paths.mps_root, MPS_CONTAINER_ROOT, CREATE, BIDIRECTIONAL),
        ("state", posixpath.join(names.STATE_DIR, user).rstrip("/"), names.STATE_DIR, CREATE, ""),
    ]
    if claims:
        sockets = "plugins_registry"
        # The device plugin looks into the folder where every kubelet usually has it. MPS daemons of claims have their
        # shared memory mounted below it.
        roots = dict.fromkeys((names.KUBELET_ROOT, kubelet))
        rows += [
            (volume, f"{kubelet}/plugins/{driver}", f"{root}/plugins/{driver}", CREATE, BIDIRECTIONAL)
            for volume, driver in _DRA_FOLDERS.items()
            for root in roots
        ]
        rows.append((DRA_SOCKETS, f"{kubelet}/{sockets}", f"{kubelet}/{sockets}", CREATE, ""))
    if user:
        rows.append((NODE_STATE, names.STATE_DIR, names.NODE_STATE_DIR, CREATE, ""))
        # The engines' original configs are in one place, whichever layout has saved them.
        engines = posixpath.join(names.STATE_DIR, names.ENGINES_FOLDER)
        rows.append(("engines", engines, engines, CREATE, ""))
    if posixpath.commonpath(["/run/nvidia", paths.driver_install_dir]) != "/run/nvidia":
        # Below /run/nvidia it is in the volume run-nvidia already.
        install_dir = paths.driver_install_dir
        rows.append(("driver-install-dir", install_dir, install_dir, CREATE, HOST_TO_CONTAINER))
    sources = {name: (source, kind) for name, source, _, kind, _ in rows}
    volumes = [host_volume(name, source, kind) for name, (source, kind) in sources.items()]
    mounts = [
        mount(name, target, read_only=name == "host-root", propagation=propagation)
        for name, _, target, _, propagation in rows
    ]
    return volumes, mounts


def affinity(operator: str) -> Object:
    """The affinity for nodes with the agent's label (``Exists``), or for all others (``DoesNotExist``)."""
    return {"affinity": required_nodes(names.AGENT_NODE_LABEL, operator)}


def required_nodes(key: str, operator: str, *values: str) -> Object:
    """A pod's affinity for the nodes whose label ``key`` is so."""
    expression: Object = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
