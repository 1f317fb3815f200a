"""Mode ``gdrcopy``: copies by the CPU from and to GPU memory, through the gdrdrv module's node."""

from __future__ import annotations

from kgpu.toolkit.modes.nodes import NodeMode, node_mode

MODE = node_mode(
    NodeMode(name="gdrcopy", help="GDRCopy", nodes=("/dev/gdrdrv",), needs="the gdrdrv module")
)  # fmt: skip
