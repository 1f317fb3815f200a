"""What the node offers besides the GPUs' own device nodes: others in /dev, and MPS control daemons."""

from __future__ import annotations

import os
import socket
import stat

from kgpu.deviceplugin.allocate import IMEX_NODE
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import HostDevices
from kgpu.formats.mps_folders import MPS_CONTAINER_ROOT, mps_control
from kgpu.formats.plugin_config import SharingKind
from kgpu.hw.vendor import vendors

GDS_NODE = "/dev/nvidia-fs0"
MOFED_FOLDER = "/dev/infiniband"
GDRCOPY_NODE = "/dev/gdrdrv"


def read_host_facts(settings: PluginSettings, *, simulated: bool = False) -> HostDevices:
    """Look below the driver root where it is mounted here, and below ``/``.

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

    return HostDevices(
        control_nodes=tuple(path for vendor in vendors().values() for path in vendor.control_nodes if is_node(path)),
        imex_channels=tuple(channel for channel in settings.imex_channel_ids if is_node(IMEX_NODE.format(channel))),
        gds=is_node(GDS_NODE),
        mofed=any(os.path.isdir(root + MOFED_FOLDER) for root in roots),
        gdrcopy=is_node(GDRCOPY_NODE),
        mps_daemons=_mps_daemons(settings),
    )


def _mps_daemons(settings: PluginSettings) -> frozenset[str]:
    """The shared resources whose daemon listens, below the MPS root or where the replaced plugin mounts it."""
    sharing = settings.sharing
    if sharing is None or sharing.kind is not SharingKind.MPS:
        return frozenset()
    offered = {sharing.offered_name(entry) for entry in sharing.resources}
    roots = (settings.mps_root, MPS_CONTAINER_ROOT)
    return frozenset(name for name in offered if any(_listens(mps_control(root, name)) for root in roots))


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
