"""What the node offers besides the GPUs' own device nodes: others in /dev, a vendor's settings, MPS control daemons."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection
from pathlib import Path

from kgpu.base.inotify import nearest_existing
from kgpu.deviceplugin.allocate import IMEX_NODE
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import HostDevices
from kgpu.formats.mps_folders import MPS_CONTAINER_ROOT, mps_control, read_served, started_file
from kgpu.formats.names import ENV_MPS_FOLDER
from kgpu.formats.plugin_config import SharingKind
from kgpu.host.root import Tree, read_some
from kgpu.hw.vendor import vendor_of

GDS_NODE = "/dev/nvidia-fs0"
MOFED_FOLDER = "/dev/infiniband"
GDRCOPY_NODE = "/dev/gdrdrv"
MARK_BYTES = 65536


def read_host_facts(settings: PluginSettings, *, vendors: Collection[str] = (), simulated: bool = False) -> HostDevices:
    """Look below the driver root where it is mounted here, and below ``/``, for the control nodes of these vendors.
    Their settings count in the first of the two alone: the other may be a container's own.

    With ``simulated``, plain files count as device nodes: a simulated driver makes them if it may not make real ones.
    """
    driver = settings.container_driver_root.rstrip("/")
    roots = [driver, ""] if driver and os.path.isdir(f"{driver}/dev") else [""]

    def is_node(path: str) -> bool:
        for root in roots:
            try:
                mode = os.stat(root + path).st_mode
            except OSError:
                continue
            if stat.S_ISCHR(mode) or (simulated and stat.S_ISREG(mode)):
                return True
        return False

    daemons = _mps_daemons(settings)
    tree = Tree.at(roots[0] or "/")
    return HostDevices(
        files=tuple(path for name in vendors for path in vendor_of(name).host_files if tree.is_file(path)),
        control_nodes=tuple(path for name in vendors for path in vendor_of(name).control_nodes if is_node(path)),
        imex_channels=tuple(channel for channel in settings.imex_channel_ids if is_node(IMEX_NODE.format(channel))),
        gds=is_node(GDS_NODE),
        mofed=any(os.path.isdir(root + MOFED_FOLDER) for root in roots),
        gdrcopy=is_node(GDRCOPY_NODE),
        mps_daemons=frozenset(daemons),
        mps_shares={name: shares for name, shares in daemons.items() if shares is not None},
    )


def _mps_daemons(settings: PluginSettings) -> dict[str, dict[str, int] | None]:
    """The shared resources whose daemon serves, below the MPS root or where the replaced plugin mounts it, and what
    each says of its shares.
    """
    found: dict[str, dict[str, int] | None] = {}
    for name in mps_resources(settings):
        root = next((root for root in _mps_roots(settings) if _serves(root, name)), None)
        if root is not None:
            raw = read_some(Path(started_file(root, name)), MARK_BYTES)
            found[name] = read_served(raw.decode(errors="replace"))
    return found


def mps_marks(settings: PluginSettings) -> tuple[tuple[str, int, int], ...]:
    """What the marks of serving daemons are now: another one is there when a daemon has come, gone or changed."""
    marks = []
    for name in sorted(mps_resources(settings)):
        for root in _mps_roots(settings):
            path = started_file(root, name)
            with contextlib.suppress(OSError):
                about = os.stat(path)
                marks.append((path, about.st_ino, about.st_mtime_ns))
    return tuple(marks)


def mps_folders(settings: PluginSettings) -> set[Path]:
    """The folders in which those marks come and go, or will once they are made."""
    return {
        nearest_existing(Path(started_file(root, name)).parent)
        for name in mps_resources(settings)
        for root in _mps_roots(settings)
    }


def mps_resources(settings: PluginSettings) -> frozenset[str]:
    """The resources that are to be shared by MPS."""
    sharing = settings.sharing
    if sharing is None or sharing.kind is not SharingKind.MPS:
        return frozenset()
    return frozenset(sharing.offered_name(entry) for entry in sharing.resources)


def _mps_roots(settings: PluginSettings) -> tuple[str, ...]:
    if folder := os.environ.get(ENV_MPS_FOLDER):  # of a simulated node: the others would be this machine's
        return (folder,)
    return (settings.mps_root, MPS_CONTAINER_ROOT)


def _serves(root: str, name: str) -> bool:
    """Whether a daemon listens that has its limits: it does so before it has them."""
    return os.path.exists(started_file(root, name)) and _listens(mps_control(root, name))


def _listens(path: str) -> bool:
    """Whether a process listens on a socket or named pipe; a dead daemon leaves its files."""
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # ENXIO without a reader
            return True
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1.0)
            connection.connect(path)
    except OSError:
        return False
    return True
