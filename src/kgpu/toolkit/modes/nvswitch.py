"""Mode ``nvswitch``: the nodes of NVSwitches, for a fabric manager that runs in a container."""

from __future__ import annotations

from kgpu.toolkit.modes.nodes import NodeMode, node_mode

MODE = node_mode(
    NodeMode(
        name="nvswitch",
        help="NVSwitch management",
        nodes=("/dev/nvidia-nvswitch[0-9]*",),
        needs="the NVIDIA driver on a machine with NVSwitches",
        optional=(("/dev/nvidia-nvswitchctl", "a fabric manager can't start"),),
    )
)
