"""Simulated nodes of vendors whose drivers show files: which one a root or a profile is of, and what can be done to it.

NVIDIA's are the others: their state is shared memory, which C libraries map (``state.py``).
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final, Protocol

from kgpu.formats import names
from kgpu.hw.simulator.amd import operate as amd
from kgpu.hw.simulator.amd.node_file import LAYOUT as AMD_LAYOUT
from kgpu.hw.simulator.amd.profiles import AmdProfile
from kgpu.hw.simulator.box import node as box
from kgpu.hw.simulator.box.model import BoxProfile
from kgpu.hw.simulator.node_file import layout_of


class Simulation(Protocol):
    """What people do to such a node. Input errors are ``ConfigError``, an unusable root is ``HwError``."""

    def create(self, profile: Any, root: Path, *, seed: str = "") -> None:
        """Make the node's files in the folder ``root``."""

    def inject(
        self, root: Path, fault: str, *, gpu: int | None = None, count: int = 1, corrected: bool = False
    ) -> None:
        """Make a fault happen to a GPU."""

    def clear(self, root: Path, gpu: int | None = None) -> None:
        """Make one GPU, or all of them, healthy again."""

    def add_process(self, root: Path, gpu: int, *, pid: int, memory_mib: int) -> None:
        """Let a process use a GPU."""

    def remove_process(self, root: Path, gpu: int, pid: int) -> None:
        """Let it end."""

    def unload(self, root: Path) -> None:
        """Unload the driver."""

    def load(self, root: Path, version: str | None = None) -> str:
        """Load it again; its version."""

    def reboot(self, root: Path) -> None:
        """What a machine is after a boot."""

    def snapshot(self, root: Path) -> dict[str, Any]:
        """The node as it is now."""


AMD: Final[Simulation] = amd
_BOXES: Final = {names.GAUDI: 0x484C, names.INTEL: 0x494E54}


def vendor_of(root: Path | str) -> str:
    """Whose accelerators a root has; NVIDIA also where there is no node."""
    layout = layout_of(root)
    if layout == AMD_LAYOUT:
        return names.AMD
    return next((name for name, number in _BOXES.items() if number == layout), names.NVIDIA)


def simulation_of(root: Path | str) -> Simulation | None:
    """What makes and changes the node of a root; None for NVIDIA's, and where there is no node."""
    vendor = vendor_of(root)
    if vendor == names.AMD:
        return AMD
    return _box(vendor) if vendor in _BOXES else None


def title_of(root: Path | str) -> str:
    """What such a node has, for people."""
    return {names.AMD: "AMD GPUs", names.GAUDI: "Gaudi accelerators", names.INTEL: "Intel GPUs"}[vendor_of(root)]


def simulation_for(profile: AmdProfile | BoxProfile) -> Simulation:
    """What makes a node of a profile."""
    return AMD if isinstance(profile, AmdProfile) else _box(profile.vendor)


def with_version(profile: AmdProfile | BoxProfile, version: str) -> AmdProfile | BoxProfile:
    """The profile with another driver version. Raises ConfigError."""
    return amd.with_version(profile, version) if isinstance(profile, AmdProfile) else box.with_version(profile, version)


def _box(name: str) -> Simulation:
    found: Simulation = importlib.import_module(f"kgpu.hw.simulator.box.{name}").SIMULATION
    return found
