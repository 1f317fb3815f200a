"""Mode ``management``: every node of the driver as one device, for containers that manage the GPUs of a node.

NVML is not asked, so that it works while the driver is being set up, and for GPUs in any MIG state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats.cdi import ALL_DEVICE, CdiDevice
from kgpu.formats.names import CDI_MANAGEMENT_KIND
from kgpu.host.driver.find import find_driver_files
from kgpu.toolkit.model import ModeFinding, ModeInput
from kgpu.toolkit.modes.base import Mode, check_only_all, gids, matching
from kgpu.toolkit.modes.driver import common_edits

NODES: Final = ("/dev/nvidia*", "/dev/nvidia-caps/nvidia-cap*", "/dev/nvidia-caps-imex-channels/channel*")
NOT_THESE: Final = ("/dev/nvidia-fs*", "/dev/nvidia-nvswitch*", "/dev/nvidia-nvlink*")


def find(look: ModeInput) -> ModeFinding:
    """One device, ``all``; no node at all is an error."""
    check_only_all(look, "management")
    paths = matching(look.root, NODES, NOT_THESE)
    if not paths:
        raise HostError(
            f"mode management found no device: /dev/nvidia* is not under {look.root.dev.here}",
            "the NVIDIA driver's device nodes",
            "load the driver and make its nodes (`nvidia-modprobe`), or point --dev-root at the folder that has /dev",
        )
    files = find_driver_files(look.root, search=replace(look.config.search, graphics=False))
    nodes = tuple(map(look.root.device_node, paths))
    return ModeFinding(
        devices=(CdiDevice(names=(ALL_DEVICE,), nodes=nodes, gids=gids(look, nodes)),),
        common=common_edits(look, files, whole=False),
        notes=files.notes,
        driver=files.report,
    )


_VENDOR, _, _CLASS = CDI_MANAGEMENT_KIND.partition("/")
MODE = Mode(name="management", help="every node of the driver", vendor=_VENDOR, device_class=_CLASS, find=find)
