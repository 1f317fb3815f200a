"""Mode ``gds``: GPUDirect Storage, the nodes of the nvidia-fs module and what the cuFile library reads."""

from __future__ import annotations

from kgpu.toolkit.modes.nodes import NodeMode, node_mode

MODE = node_mode(
    NodeMode(
        name="gds",
        help="GPUDirect Storage",
        nodes=("/dev/nvidia-fs*",),
        needs="the nvidia-fs module",
        dev_mounts=("/run/udev",),
        mounts=("/etc/cufile.json",),
    )
)
