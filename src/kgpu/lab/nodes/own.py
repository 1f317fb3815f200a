"""Containers of kgpu's own image on a simulated node: this Python runs kgpu, with the node's folders told as options.

They see this machine's file system: no namespace is needed, so they work for every user. What a container of a real
node finds by its mounts, it is told by the variables of ``PLACES``. All pods have one network: what listens on every
address listens on the pod's.
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

from kgpu.formats.cdi import CdiMount
from kgpu.formats.names import (
    CDI_DIR,
    ENV_HOST_ROOT,
    ENV_RUN_DIR,
    ENV_WAIT_FOR_VALIDATION,
    HOST_ROOT,
    IMAGE_REPOSITORY,
    KUBELET_DEVICE_PLUGIN_DIR,
    RUN_DIR,
    STATE_DIR,
)
from kgpu.formats.programs import ENTRYPOINT, LINKS, PROGRAM
from kgpu.lab.samples import SampleImage

SAMPLE: Final = SampleImage(
    name="kgpu",
    pattern=rf"{re.escape(IMAGE_REPOSITORY)}([:@].*)?",
    entrypoint=(ENTRYPOINT,),
)
# The image has kgpu under several names; a process here is told which of them it is by its first word.
_START: Final = (sys.executable, "-c", "import sys; from kgpu.cli.main import main; sys.exit(main(sys.argv[1:]))")
TOKENS: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
# Where a container has it -> the variable by which kgpu is told, and what of the folder it names.
PLACES: Final = (
    (HOST_ROOT, ENV_HOST_ROOT, ""),
    (KUBELET_DEVICE_PLUGIN_DIR, "KUBELET_SOCKET", "kubelet.sock"),
    (CDI_DIR, "CDI_DIR", ""),
    (STATE_DIR, "STATE_DIR", ""),
    ("/run/nvidia", ENV_WAIT_FOR_VALIDATION, "validations"),
    (RUN_DIR, ENV_RUN_DIR, ""),
)
# Variables of addresses to listen on that a process has without being told, and its ports.
ADDRESSES: Final = (("METRICS_BIND_ADDRESS", 8080), ("HEALTH_PROBE_BIND_ADDRESS", 8081))
# A container that has parts of the host's root has this one, which is every node's own.
_PART: Final = "/etc/os-release"
_SOURCE: Final = str(Path(__file__).resolve().parents[3])
_EVERYWHERE: Final = re.compile(r"(?P<flag>--[a-z-]+=)?(?P<port>:\d+)")


def is_own(image: str) -> bool:
    """Whether it is kgpu's own image, whatever its tag."""
    return re.fullmatch(SAMPLE.pattern, image) is not None


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, in which environment."""

    args: tuple[str, ...]
    env: Mapping[str, str]


def command(
    args: tuple[str, ...], env: Mapping[str, str], *, mounts: Sequence[CdiMount], address: str, kubeconfig: Path
) -> Command:
    """The container's command as it can run beside others; ``kubeconfig`` is where ``connection`` is written."""
    seen = {mount.container_path: mount.host_path for mount in mounts}
    if HOST_ROOT + _PART in seen:
        seen.setdefault(HOST_ROOT, seen[HOST_ROOT + _PART].removesuffix(_PART) or "/")
    variables = {name: str(Path(seen[path], part)) for path, name, part in PLACES if path in seen}
    if TOKENS in seen:
        variables["KUBECONFIG"] = str(kubeconfig)
    listening = {name: f"{address}:{port}" for name, port in ADDRESSES if name not in env}
    modules = os.pathsep.join(filter(None, (_SOURCE, env.get("PYTHONPATH"))))
    name = os.path.basename(args[0]) if args else ""
    words = (*_START, name, *args[1:]) if name in (PROGRAM, *LINKS) else args
    return Command(
        tuple(_at(address, word) for word in words),
        {**listening, **env, **variables, "PYTHONPATH": modules, "PYTHONSAFEPATH": "1"},
    )


def _at(address: str, word: str) -> str:
    """``:8090`` and ``--flag=:8090`` with the address before the port."""
    found = _EVERYWHERE.fullmatch(word)
    return f"{found['flag'] or ''}{address}{found['port']}" if found else word


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
    """Write it, if there is one. Raises OSError."""
    if (found := connection(mounts, env)) is not None:
        path.write_text(json.dumps(found))
