"""How this node's kernel is told of modes: attributes in sysfs, and ``modprobe`` in the host's root.

``modprobe -r`` fails while anything has the driver open, so that nothing is taken from who uses a GPU. A simulated
root has a kernel of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats.simulated import state_file
from kgpu.host.commands import CommandResult
from kgpu.hw.partitioning import ModeKernel

MODULE: Final = "amdgpu"
MODPROBE: Final = "modprobe"


class HostKernel:
    """Implements ``ModeKernel``. ``call`` runs a program of the host."""

    def __init__(self, call: Callable[[Sequence[str]], CommandResult]) -> None:
        self._call = call

    def store(self, path: str, text: str) -> None:
        """Write an attribute in one write, as sysfs wants it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"{text}\n".encode("ascii"))
        finally:
            os.close(descriptor)

    def reload(self) -> None:
        """Unload the driver, and load it again, also if it could not be unloaded."""
        unloaded = self._call([MODPROBE, "-r", MODULE])
        loaded = self._call([MODPROBE, MODULE])
        for done, what in ((unloaded, "unloaded"), (loaded, "loaded again")):
            if done.code != 0:
                raise HostError(
                    f"the driver {MODULE} can't be {what}: {done.last_lines or f'{MODPROBE} says nothing'}",
                    "a driver that no program and no display has open",
                    "end what uses it (`lsof /dev/kfd /dev/dri/*`), or reboot the node and set the label anew",
                )  # fmt: skip


def node_kernel(root: Path, call: Callable[[Sequence[str]], CommandResult]) -> ModeKernel:
    """The kernel of the node whose driver is below ``root``."""
    if state_file(str(root)) is not None:
        from kgpu.hw.simulator.amd.kernel import SimulatedAmdKernel

        return SimulatedAmdKernel(root)
    return HostKernel(call)
