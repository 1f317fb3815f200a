"""Mode ``mofed``: RDMA, the user-space nodes of InfiniBand and RoCE adapters."""

from __future__ import annotations

from kgpu.toolkit.modes.nodes import NodeMode, node_mode

MODE = node_mode(
    NodeMode(
        name="mofed",
        help="RDMA over InfiniBand or RoCE",
        nodes=("/dev/infiniband/uverbs*",),
        needs="the RDMA drivers (MLNX_OFED, DOCA-OFED or the kernel's own)",
        optional=(("/dev/infiniband/rdma_cm", "connections by address (rdma_cm) can't be made"),),
    )
)
