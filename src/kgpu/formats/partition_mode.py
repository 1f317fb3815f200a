"""The modes by which AMD's driver parts a GPU, and their names: ``cpx_nps4``, as in resources, labels and layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from kgpu.formats import names

COMPUTE: Final[Mapping[str, int]] = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": 8}
"""Compute modes, and into how many parts each divides a GPU of eight dies."""
MEMORY: Final[Mapping[str, int]] = {"NPS1": 1, "NPS2": 2, "NPS4": 4, "NPS8": 8}
"""Memory modes, and into how many parts each divides the memory."""
WHOLE: Final = "SPX"
_MODE: Final = re.compile(f"({'|'.join(COMPUTE)})_({'|'.join(MEMORY)})".lower(), re.ASCII)


class PartedLayout(Protocol):
    @property
    def devices(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class PartitionMode:
    """By what a GPU is parted, in the driver's spelling: ``CPX``, ``NPS4``."""

    compute: str
    memory: str

    @property
    def name(self) -> str:
        """As resources and labels name it: ``cpx_nps4``."""
        return f"{self.compute}_{self.memory}".lower()


def parse_mode(name: str) -> PartitionMode | None:
    """The mode that is named so, None for a name that is none."""
    found = _MODE.fullmatch(name)
    return PartitionMode(found[1].upper(), found[2].upper()) if found is not None else None


def label_of(layouts: Iterable[PartedLayout]) -> str:
    """The Node label that asks for such layouts."""
    return names.AMD_PROFILE_LABEL if by_modes(layouts) else names.MIG_CONFIG_LABEL


def by_modes(layouts: Iterable[PartedLayout]) -> bool:
    """Whether layouts part GPUs by modes, and not into slices."""
    return any(parse_mode(name) is not None for layout in layouts for name in layout.devices)
