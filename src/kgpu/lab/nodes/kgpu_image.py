"""Containers of kgpu's own image on a simulated node: this Python runs kgpu, with the node's folders as options.

They see this machine's file system and processes: no namespace is needed, so they work for every user. Where a
container on a real node has a mount, this process gets the folder's path in a variable of ``PLACES``. Mount points that
are no paths of the node's host, such as a ConfigMap's, are replaced where variables and arguments name them. All pods
share one network, so a program that would listen on every address listens on the pod's.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgpu.base.boot import ENV_BOOT_ID
from kgpu.formats.cdi import CdiMount
from kgpu.formats.mps_folders import MPS_CONTAINER_ROOT
from kgpu.formats.names import (
    CDI_DIR,
    DRA_DRIVERS,
    ENV_HOST_ROOT,
    ENV_MPS_FOLDER,
    ENV_NODE_STATE_DIR,
    ENV_RUN_DIR,
    ENV_SIMULATED_NVIDIA_RUN,
    ENV_SIMULATED_REBOOT,
    ENV_TERMINATION_LOG,
    ENV_WAIT_FOR_VALIDATION,
    HOST_ROOT,
    IMAGE_PATTERN,
    KUBELET_DEVICE_PLUGIN_DIR,
    KUBELET_ROOT,
    NODE_STATE_DIR,
    RUN_DIR,
    STATE_DIR,
)
from kgpu.formats.programs import ENTRYPOINT, LINKS, PROGRAM
from kgpu.lab.samples import SampleImage

SAMPLE: Final = SampleImage(
    name="kgpu",
    pattern=IMAGE_PATTERN,
    entrypoint=(ENTRYPOINT,),
)
# The image has kgpu under several names; the first word tells a process here which of them it is.
_START: Final = (sys.executable, "-c", "import sys; from kgpu.cli.main import main; sys.exit(main(sys.argv[1:]))")
TOKENS: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
# Mount point in a container -> the variable that names the folder here, and the path below the folder that goes in.
PLACES: Final = (
    (HOST_ROOT, ENV_HOST_ROOT, ""),
    (KUBELET_DEVICE_PLUGIN_DIR, "KUBELET_SOCKET", "kubelet.sock"),
    *((f"{KUBELET_ROOT}/plugins/{driver}", "KUBELET_PLUGINS_DIRECTORY_PATH", os.pardir) for driver in DRA_DRIVERS),
    (f"{KUBELET_ROOT}/plugins_registry", "KUBELET_REGISTRAR_DIRECTORY_PATH", ""),
    (CDI_DIR, "CDI_DIR", ""),
    (CDI_DIR, "CDI_ROOT", ""),
    (STATE_DIR, "STATE_DIR", ""),
    (NODE_STATE_DIR, ENV_NODE_STATE_DIR, ""),
    ("/run/nvidia", ENV_WAIT_FOR_VALIDATION, "validations"),
    ("/run/nvidia", ENV_SIMULATED_NVIDIA_RUN, ""),
    (RUN_DIR, ENV_RUN_DIR, ""),
    (f"{KUBELET_ROOT}/pod-resources", "DCGM_POD_RESOURCES_KUBELET_SOCKET", "kubelet.sock"),
    ("/driver-root", "DRIVER_ROOT_CTR_PATH", ""),
    (MPS_CONTAINER_ROOT, ENV_MPS_FOLDER, ""),
)
# A pod has no processes of its own here; those of this name are other people's.
SHARED: Final = {"SEND_SIGNAL": "false"}
# What the machine alone says: a pod that could would choose a file to be made, or another boot.
MACHINES_OWN: Final = frozenset({ENV_BOOT_ID, ENV_SIMULATED_REBOOT, ENV_SIMULATED_NVIDIA_RUN, ENV_TERMINATION_LOG})
# Variables for addresses to listen on, with the ports that kgpu uses when they are not set.
ADDRESSES: Final = (("METRICS_BIND_ADDRESS", 8080), ("HEALTH_PROBE_BIND_ADDRESS", 8081))
# A container that mounts parts of the host's root has this one, which every node has a copy of.
_PART: Final = "/etc/os-release"
# Where kgpu writes whether somebody has mounted them or not.
_WRITTEN: Final = (f"{KUBELET_ROOT}/", f"{STATE_DIR}/")
_SOURCE: Final = str(Path(__file__).resolve().parents[3])
_ANY_ADDRESS: Final = re.compile(r"(?P<flag>--[a-z-]+=)?(?P<port>:\d+)")


def is_own(image: str) -> bool:
    """Whether it is kgpu's own image, whatever its tag."""
    return re.fullmatch(SAMPLE.pattern, image) is not None


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, in which environment."""

    args: tuple[str, ...]
    env: Mapping[str, str]


def without_machines_own(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that are not a pod's to set."""
    return {name: value for name, value in env.items() if name not in MACHINES_OWN}


def command(
    args: tuple[str, ...], env: Mapping[str, str], *, mounts: Sequence[CdiMount], address: str, kubeconfig: Path,
    boot: str = "", reboot: Path | None = None, private: Sequence[CdiMount] = (),
) -> Command:  # fmt: skip
    """The container's command, changed so that several can run here; ``kubeconfig`` is the path for ``connection``.

    ``private`` are the mounts whose paths in the container are none on the node's host.
    ``boot`` is the machine's once it has been rebooted; ``reboot`` the file with which the container may ask for that.
    """
    env = without_machines_own(env)
    host_paths = {mount.container_path: mount.host_path for mount in mounts}
    if HOST_ROOT + _PART in host_paths:
        host_paths.setdefault(HOST_ROOT, host_paths[HOST_ROOT + _PART].removesuffix(_PART) or "/")
    # What is not mounted would be in the container's own file system, and never this machine's.
    root = kubeconfig.with_name("root")
    variables = {
        name: str(Path(host_paths.get(path, f"{root}{path}"), part))
        for path, name, part in PLACES
        if path in host_paths or (f"{path}/".startswith(_WRITTEN) and name not in env)
    }
    if TOKENS in host_paths:
        variables["KUBECONFIG"] = str(kubeconfig)
    variables[ENV_TERMINATION_LOG] = str(kubeconfig.with_name("termination-log"))
    if boot:
        variables[ENV_BOOT_ID] = boot
    if reboot is not None:
        variables[ENV_SIMULATED_REBOOT] = str(reboot)
    listening = {name: f"{address}:{port}" for name, port in ADDRESSES if name not in env}
    modules = os.pathsep.join(filter(None, (_SOURCE, env.get("PYTHONPATH"))))
    env = {name: _at(address, _outside(private, value)) for name, value in env.items()}
    args = tuple(_outside(private, word) for word in args)
    name = os.path.basename(args[0]) if args else ""
    words = (*_START, name, *args[1:]) if name in (PROGRAM, *LINKS) else args
    return Command(
        tuple(_at(address, word) for word in words),
        {**listening, **env, **variables, **SHARED, "PYTHONPATH": modules, "PYTHONSAFEPATH": "1"},
    )


def _outside(private: Sequence[CdiMount], word: str) -> str:
    """A path, or ``--flag=PATH``, with the folder here in place of the innermost mount that it is in."""
    flag, equals, path = word.rpartition("=") if word.startswith("-") else ("", "", word)
    inside = [mount for mount in private if f"{path}/".startswith(f"{mount.container_path.rstrip('/')}/")]
    if not inside:
        return word
    mount = max(inside, key=lambda one: len(one.container_path))
    return f"{flag}{equals}{mount.host_path}{path.removeprefix(mount.container_path.rstrip('/'))}"


def _at(address: str, word: str) -> str:
    """``:8090`` and ``--flag=:8090`` with the address before the port."""
    match = _ANY_ADDRESS.fullmatch(word)
    return f"{match['flag'] or ''}{address}{match['port']}" if match else word


def connection(mounts: Sequence[CdiMount], env: Mapping[str, str]) -> dict[str, Any] | None:
    """A kubeconfig of what a pod finds in its mounts and environment; None without a service account's token."""
    folder = next((Path(mount.host_path) for mount in mounts if mount.container_path == TOKENS), None)
    if folder is None:
        return None
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    cluster = {"server": server, "certificate-authority": str(folder / "ca.crt")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "pod", "user": {"tokenFile": str(folder / "token")}}],
        "contexts": [{"name": "pod", "context": {"cluster": "lab", "user": "pod"}}],
        "current-context": "pod",
    }


def write_connection(path: Path, mounts: Sequence[CdiMount], env: Mapping[str, str]) -> None:
    """Write that kubeconfig to ``path``, if there is one. Raises OSError."""
    if (kubeconfig := connection(mounts, env)) is not None:
        path.write_text(json.dumps(kubeconfig))
