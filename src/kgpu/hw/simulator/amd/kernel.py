"""The kernel of a simulated AMD node: what becomes of a write to a GPU's modes, and of a driver that is loaded anew.

As the driver does it: a compute mode comes at once and is refused while a program uses the GPU; a memory mode is noted,
and in force once the driver was loaded anew, with the compute mode that goes with it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kgpu.hw import sysfs
from kgpu.hw.simulator.amd import node_file, operate, tree


class SimulatedAmdKernel:
    """Implements ``kgpu.hw.partitioning.ModeKernel`` for the node whose files are in ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def store(self, path: str, text: str) -> None:
        """Write an attribute. Raises OSError; blocks for a GPU that hangs."""
        bus, name = path.split("/")[-2:]
        profile = node_file.read(self._root).profile
        index = next((number for number, gpu in enumerate(profile.gpus) if gpu.bus == bus), None)
        if index is None or not os.path.exists(path):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if tree.HANG in node_file.read(self._root).gpus[index].faults:
            sysfs.raw(os.path.join(os.path.dirname(path), tree.HUNG_FILES[0]))
        code = operate.store_mode(self._root, index, name.removeprefix("current_").removesuffix("_partition"), text)
        if code:
            raise OSError(code, os.strerror(code), path)

    def reload(self) -> None:
        """Unload the driver and load it again. Raises HwError while a program uses a GPU."""
        operate.unload(self._root)
        operate.load(self._root)
