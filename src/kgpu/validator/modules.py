"""Kernel modules that are asked for beside the driver's own: GPUDirect Storage, GDRCopy, GPUDirect RDMA. Pure.

The driver's container tells in ``.driver-ctr-ready`` which of them its pod was made to load. GPUs work without: what is
missing is told, and takes no GPU away. The replaced program's driver check fails in that case, and the node with it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kgpu.formats.validation_report import CheckTrouble

ASKED_FILE: Final = ".driver-ctr-ready"
"""Lines such as ``GDS_ENABLED: true``, written by the startup probe of the driver's container."""
MLX5: Final = "mlx5_core"
MOFED: Final = "mofed"


@dataclass(frozen=True, slots=True)
class SideModule:
    """One such module. ``component`` is the replaced program's name for its check, ``asked_by`` its key in
    ``ASKED_FILE``, ``setting`` the ClusterPolicy's field, and ``container`` the one of the driver's pod that loads it.
    """

    component: str
    module: str
    asked_by: str
    setting: str
    container: str

    def trouble(self, loaded: Collection[str]) -> CheckTrouble | None:
        """What is wrong where only the modules ``loaded`` are, None if this one is among them."""
        if self.module in loaded:
            return None
        return CheckTrouble(
            what=f"the kernel module {self.module} is not loaded",
            expected=f"{self.module} in the kernel, for {self.setting}",
            remedy=f"read what the container {self.container} of the node's driver pod says (kubectl logs -c "
            f"{self.container}); with a driver on the host: modprobe {self.module}",
        )


SIDE_MODULES: Final = (
    SideModule("nvidia-fs", "nvidia_fs", "GDS_ENABLED", "gds.enabled", "nvidia-fs-ctr"),
    SideModule("gdrcopy", "gdrdrv", "GDRCOPY_ENABLED", "gdrcopy.enabled", "nvidia-gdrcopy-ctr"),
    SideModule("nvidia-peermem", "nvidia_peermem", "GPU_DIRECT_RDMA_ENABLED", "driver.rdma.enabled",
               "nvidia-peermem-ctr"),
)  # fmt: skip
BY_COMPONENT: Final = {row.component: row for row in SIDE_MODULES}
MODULES: Final = tuple(row.module for row in SIDE_MODULES)


def asked_modules(text: str) -> frozenset[str]:
    """The modules that a file ``ASKED_FILE`` asks for; lines of another form are ignored."""
    pairs = (line.partition(":") for line in text.splitlines())
    switched_on = {key.strip() for key, _, value in pairs if value.strip() == "true"}
    return frozenset(row.module for row in SIDE_MODULES if row.asked_by in switched_on)


def missing_modules(asked: Collection[str], loaded: Collection[str]) -> dict[str, CheckTrouble]:
    """What is asked for and not loaded, by component."""
    found = {row.component: row.trouble(loaded) for row in SIDE_MODULES if row.module in asked}
    return {component: trouble for component, trouble in found.items() if trouble is not None}


def mofed_trouble(*, loaded: bool, on_host: bool) -> CheckTrouble | None:
    """What is wrong with the network cards' driver, None if it is ``loaded``. ``on_host``: the host brings it."""
    if loaded:
        return None
    if on_host:
        return CheckTrouble(
            what=f"the kernel module {MLX5} is not loaded",
            expected="the network cards' driver of the host, as driver.rdma.useHostMofed says",
            remedy=f"install MLNX_OFED or DOCA on the node and `modprobe {MLX5}`, or set driver.rdma.useHostMofed: "
            "false where NVIDIA's network operator brings it",
        )
    return CheckTrouble(
        what="the network cards' driver is not there: /run/mellanox/drivers/.driver-ready is missing",
        expected="a driver that the network operator has installed, before GPUDirect RDMA is set up",
        remedy="look at the network operator's driver pods; where the host has that driver itself, set "
        "driver.rdma.useHostMofed: true",
    )
