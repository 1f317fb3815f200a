"""What the node's /dev offers beside the GPUs' own nodes."""

from __future__ import annotations

import os
import stat

from kgpu.deviceplugin.allocate import IMEX_NODE
from kgpu.deviceplugin.config import Settings
from kgpu.deviceplugin.model import HostFacts

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
GDS_NODE = "/dev/nvidia-fs0"
MOFED_FOLDER = "/dev/infiniband"
GDRCOPY_NODE = "/dev/gdrdrv"


def read_host_facts(settings: Settings, *, simulated: bool = False) -> HostFacts:
    """Look below the driver root where it is mounted here, and below ``/``.

    ``simulated`` also takes plain files for device nodes: a simulated driver has them where it may not make real ones.
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

    return HostFacts(
        control_nodes=tuple(path for path in CONTROL_NODES if is_node(path)),
        imex_channels=tuple(channel for channel in settings.imex_channel_ids if is_node(IMEX_NODE.format(channel))),
        gds=is_node(GDS_NODE),
        mofed=any(os.path.isdir(root + MOFED_FOLDER) for root in roots),
        gdrcopy=is_node(GDRCOPY_NODE),
    )
