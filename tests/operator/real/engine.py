"""The container engine of the lab's node, as somebody on the node sees it: its files, what it says, what the role says."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgpu.base.errors import KubeletError
from kgpu.formats import names
from kgpu.kubelet.cri import CriClient
from kgpu.lab.real.configs import CONTAINERD_SOCKET as SOCKET
from tests.operator.real.conftest import Site

FOLDER = "/etc/containerd"
CONFIG = f"{FOLDER}/config.toml"
HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
IMAGE = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"


@dataclass
class Engine:
    """``original``: its files before kgpu came."""

    site: Site
    original: dict[str, str]

    @classmethod
    def of(cls, site: Site) -> Engine:
        """The engine now, without kgpu."""
        found = cls(site, {})
        found.original = found.files()
        assert not HANDLERS & found.handlers()
        return found

    def files(self) -> dict[str, str]:
        """Every file of its configuration: path to content, in hexadecimal digits."""
        root = self._root()
        found = {}
        # A folder that is removed right now is none, other than for pathlib.
        paths = (Path(folder, name) for folder, _, names in os.walk(root / FOLDER.strip("/")) for name in names)
        for path in paths:
            with suppress(FileNotFoundError):  # it is replaced right now
                if path.is_file() and not path.is_symlink():
                    found[f"/{path.relative_to(root)}"] = path.read_bytes().hex()
        return found

    def _root(self) -> Path:
        """The node's root folder, seen from here: what is asked often needs no process in the node."""
        return Path(f"/proc/{self.site.lab.keeper}/root")

    def text(self) -> str:
        """Its main file."""
        return bytes.fromhex(self.files()[CONFIG]).decode()

    def write(self, text: str) -> None:
        """Replace its main file, as a package manager does."""
        self.site.shell(f"cat > {CONFIG}.new <<'END'\n{text}END\nmv {CONFIG}.new {CONFIG}")

    def status(self) -> dict[str, Any]:
        """What it says of itself; nothing while it does not answer."""
        with suppress(KubeletError, OSError):
            found = asyncio.run(CriClient(self._root() / SOCKET.strip("/")).status())
            return {"handlers": found.handlers, "cdi": found.cdi, "ready": found.ready}
        return {}

    def handlers(self) -> set[str]:
        """The handlers that it offers."""
        return set(self.status().get("handlers") or ())

    def pid(self) -> int:
        """Its process on the node, 0 while there is none."""
        return next(one["pid"] for one in self.site.lab.processes() if one["name"] == "containerd")

    def role(self) -> dict[str, Any]:
        """What the agent reports of the toolkit, in either layout."""
        return self.role_in(names.ROLES_ANNOTATION) or self.role_in(f"{names.ROLES_ANNOTATION_PREFIX}toolkit")

    def role_in(self, key: str) -> dict[str, Any]:
        """What that annotation of the Node says of it."""
        annotations = self.site.lab.node()["metadata"]["annotations"]
        found: dict[str, Any] = json.loads(annotations.get(key, "{}")).get("roles", {}).get("toolkit", {})
        return found

    def settled(self, what: str) -> None:
        """Wait until it offers the handlers and the role runs."""
        self.site.until(lambda: self.handlers() >= HANDLERS, f"containerd to have the handlers {what}")
        self.site.until(lambda: self.role().get("state") == "running", f"the toolkit to run {what}")

    def as_before(self, what: str) -> None:
        """Wait until it answers, with its own files and without the handlers."""
        self.site.until(lambda: self.files() == self.original, f"the original config {what}")
        self.site.until(lambda: self.status().get("ready") and not HANDLERS & self.handlers(), f"containerd {what}")


def pod(name: str, *, namespace: str = "default", gpus: int = 0, runtime_class: str = "", annotation: str = "") -> str:
    """A pod that adds two vectors on its GPUs."""
    container: dict[str, Any] = {"name": "cuda", "image": IMAGE}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if annotation:
        metadata["annotations"] = {names.NRI_CDI_ANNOTATION: annotation}
    spec: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def patch_policy(site: Site, path: str, value: Any) -> None:
    """Set one field of the ClusterPolicy."""
    patch = [{"op": "add", "path": path, "value": value}]
    site.lab.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=json", "-p", json.dumps(patch))
