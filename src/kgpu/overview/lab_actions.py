"""What the buttons of a lab do to its simulated GPUs. Nowhere else is there anything that changes what is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.hw.simulator import operate


@dataclass(frozen=True, slots=True)
class _LabAction:
    """A button: its name in the form, what it says, and the fault that it makes, "" to repair."""

    name: str
    label: str
    fault: str = ""


_ACTIONS: Final = (
    _LabAction("lose", "Lose", "lost"),
    _LabAction("ecc", "Memory error", "ecc"),
    _LabAction("heat", "Overheat", "hot"),
    _LabAction("repair", "Repair"),
)


class LabGpus:
    """The GPUs of a lab; ``roots`` says where the simulated driver of each node is now."""

    actions: Final = tuple((row.name, row.label) for row in _ACTIONS)
    """The buttons: their names and what they say."""

    def __init__(self, roots: Callable[[], Mapping[str, Path]]) -> None:
        self._roots = roots

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes whose GPUs can be broken."""
        return frozenset(self._roots())

    def act(self, action: str, node: str, gpu: str) -> None:
        """Press a button. Raises UserError for what there is none for."""
        row = next((row for row in _ACTIONS if row.name == action), None)
        root = self._roots().get(node)
        if row is None or root is None or not (gpu.isascii() and gpu.isdigit() and len(gpu) < 4):
            raise ConfigError("there is no such button", "an action, a node and a GPU of this lab", "reload the page")
        if row.fault:
            operate.inject(root, row.fault, gpu=int(gpu))
        else:
            operate.clear(root, int(gpu))
