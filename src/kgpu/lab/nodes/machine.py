"""A full node's own machine: which folder of its own stands for which path of the host, and the files of its ``/``.

The simulated driver root is the ``/`` of a node with GPUs: it has the driver, its device nodes and its PCI bus, as a
machine has them with a driver installed on the host. Paths for which a node has nothing of its own are this machine's.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec.structs import replace as changed

from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.formats.names import (
    CDI_DIR,
    CDI_STATIC_DIR,
    DRIVER_INSTALL_DIR,
    KUBELET_DEVICE_PLUGIN_DIR,
    KUBELET_ROOT,
    MPS_ROOT,
    NFD_OS_ID,
    NFD_OS_VERSION,
    RUN_DIR,
    STATE_DIR,
)
from kgpu.lab.nodes.oci import OciConfig
from kgpu.lab.nodes.podresources import FOLDER as POD_RESOURCES

HARDWARE: Final = "hw"
PLUGINS: Final = "dp"  # the kubelet's folder of device plugins
REGISTRY: Final = "plugins_registry"  # where it finds the sockets of DRA drivers
CLAIM_DRIVERS: Final = "p"  # these drivers' own folders
MPS: Final = "m"  # sockets of MPS control daemons, whose names are long, and what lies beside them
# What says what a machine is: nodes have this one's processor and kernel, and the system that their Nodes tell.
COPIED: Final = ("proc/cpuinfo", "proc/sys/kernel/osrelease")
_UBUNTU: Final = {"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04.2 LTS"}


def os_release(labels: Mapping[str, str]) -> dict[str, str]:
    """The system of a node that is registered with these labels: the one that discovery's labels name, else Ubuntu."""
    name, version = labels.get(NFD_OS_ID, ""), labels.get(NFD_OS_VERSION, "")
    if not (name and version) or (name, version) == (_UBUNTU["ID"], _UBUNTU["VERSION_ID"]):
        return _UBUNTU
    return {"ID": name, "VERSION_ID": version, "PRETTY_NAME": f"{name} {version}"}


@dataclass(frozen=True, slots=True)
class NodeMachine:
    """``root`` is the node's ``/``; ``places`` are folders of its own by their paths on the host."""

    root: Path
    places: Mapping[str, Path]

    def find(self, path: str) -> Path:
        """Where a path of the node's host is: in the folder of its own, in its ``/``, or else on this machine."""
        clean = posixpath.normpath("/" + path.lstrip("/"))  # two slashes at the beginning would stay
        inside = clean
        while inside != "/":
            if inside in self.places:
                return self.places[inside] / clean[len(inside) :].lstrip("/")
            inside = posixpath.dirname(inside) or "/"
        own = self.root / clean.lstrip("/")
        return own if os.path.lexists(own) else Path(path)

    def applied(self, config: OciConfig) -> OciConfig:
        """The configuration with the node's own files and device nodes in place of the host's."""
        return replace(
            config,
            mounts=tuple(changed(mount, host_path=str(self.find(mount.host_path))) for mount in config.mounts),
            devices=tuple(
                changed(device, host_path=str(self.find(device.host_path or device.path))) for device in config.devices
            ),
        )


def of_node(folder: Path, sockets: Path, *, gpus: bool, container_driver: bool = False) -> NodeMachine:
    """The machine of the node in ``folder``; ``sockets`` is a short path to it, for the sockets of
    kubelet and MPS.

    A driver on the host is also where driver containers install theirs, so that one ClusterPolicy fits all nodes. With
    ``container_driver`` there is nothing until such a container has.
    """
    own = folder / "host"
    root = folder / HARDWARE if gpus else own / "root"
    nvidia = root / "run/nvidia" if container_driver else own / "run-nvidia"
    return NodeMachine(
        root,
        {
            # Verdicts of simulated GPUs must never be read as those of this machine's.
            RUN_DIR: root / RUN_DIR.lstrip("/"),
            f"/var{RUN_DIR}": root / RUN_DIR.lstrip("/"),
            "/run/nvidia": nvidia,
            "/var/run/nvidia": nvidia,
            MPS_ROOT: sockets / MPS,
            f"/var{MPS_ROOT}": sockets / MPS,
            **({} if container_driver else {DRIVER_INSTALL_DIR: folder / HARDWARE}),
            KUBELET_DEVICE_PLUGIN_DIR: sockets / PLUGINS,
            f"{KUBELET_ROOT}/pod-resources": sockets / POD_RESOURCES,
            f"{KUBELET_ROOT}/plugins": sockets / CLAIM_DRIVERS,
            f"{KUBELET_ROOT}/plugins_registry": sockets / REGISTRY,
            CDI_DIR: folder / "cdi",
            CDI_DIR.removeprefix("/var"): folder / "cdi",
            CDI_STATIC_DIR: folder / "cdi-static",
            STATE_DIR: own / "state",
        },
    )


def create_files(machine: NodeMachine, labels: Mapping[str, str]) -> None:
    """Create the files in its ``/`` that describe the machine of a node with these labels. Raises HostError."""
    system = "".join(f'{key}="{value}"\n' for key, value in os_release(labels).items())
    for name, content in {"etc/os-release": system.encode(), **{path: _content(path) for path in COPIED}}.items():
        place = machine.root / name
        try:
            if content and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(place, content)
        except OSError as error:
            raise HostError(
                f"{place} can't be made: {error.strerror}", "a folder of this user", "look at its permissions"
            ) from error


def _content(name: str) -> bytes:
    """The content of a file of this machine; empty when it has none."""
    try:
        return Path("/", name).read_bytes()
    except OSError:
        return b""
