"""A manager of partition modes with a simulated AMD node: its Node and its operator are in the hands of a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kgpu.agent.config_file import FileConfigSource
from kgpu.formats import names
from kgpu.hw.amd.modes import AmdModes
from kgpu.hw.open import open_modes
from kgpu.hw.partitioning import ModePartitioner
from kgpu.hw.simulator.amd import node_file
from kgpu.hw.simulator.amd.kernel import SimulatedAmdKernel
from kgpu.mig.manager.cutting import NodeCutter
from kgpu.mig.manager.memory import MODES_FILE_NAME, MemoryFile
from kgpu.mig.modes.kind import LABEL, PartitionModes, ProfileLookup
from tests.mig.manager.manager_world import World


class MeddledKernel(SimulatedAmdKernel):
    """A kernel before and after whose steps ``meddle(step, done)`` is called, which may raise."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meddle: Callable[[str, bool], None] = lambda _step, _done: None

    def store(self, path: str, text: str) -> None:
        step = path.rsplit("/", 1)[-1]
        self.meddle(step, False)
        super().store(path, text)
        self.meddle(step, True)

    def reload(self) -> None:
        self.meddle("reload", False)
        super().reload()
        self.meddle("reload", True)


def shown(root: Path) -> list[str]:
    """The modes that the node's GPUs have."""
    return [f"{gpu.compute}/{gpu.memory}" for gpu in node_file.read(root).gpus]


class ModesWorld(World):
    """One simulated MI300X node. ``profiles`` is the content of its config.json, None for no file."""

    names = LABEL

    def __init__(
        self, folder: Path, root: Path, *, operations: bool = True, profiles: Mapping[str, Any] | None = None
    ) -> None:  # fmt: skip
        super().__init__(folder, operations=operations, config=None)
        self.root = root
        self.kernel = MeddledKernel(root)
        self.vendor = names.AMD
        self.config = folder / "config.json"
        if profiles is not None:
            self.config.write_text(json.dumps(profiles))
        self.source = FileConfigSource(self.config)

    def driver_modes(self) -> ModePartitioner:
        """The driver, as far as it is loaded."""
        open_modes(driver_root=self.root, kernel=self.kernel)
        return AmdModes(self.root, self.kernel)

    def cutter(self) -> NodeCutter:
        lookup = ProfileLookup(given=self.source, absent=lambda: not self.config.exists())
        return NodeCutter(
            kind=PartitionModes(open_driver=self.driver_modes, lookup=lookup),
            memory=MemoryFile(self.folder / "state" / MODES_FILE_NAME, boot=self.boot),
        )

    @property
    def modes(self) -> list[str]:
        return shown(self.root)
