"""Packed PCI ids as NVIDIA's programs write them: ``0x20B210DE`` is device 20B2 of vendor 10DE, perhaps followed by a
colon and the subsystem's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ID: Final = re.compile(r"0[xX][0-9a-fA-F]{1,8}|0|[1-9][0-9]{0,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PciFilter:
    """Models of GPUs by their packed PCI id; ``subsystem`` None for any. A text that is no id has ``device`` None and
    matches nothing, as in mig-parted.
    """

    text: str
    device: int | None = None
    subsystem: int | None = None

    def matches(self, device: int, subsystem: int) -> bool:
        """Whether a GPU with these packed ids is meant."""
        return self.device is not None and self.device == device and self.subsystem in {None, subsystem}


def parse_pci_filter(text: str) -> PciFilter:
    """Read a filter; what is no packed id matches nothing."""
    device, colon, subsystem = text.partition(":")
    first, second = _packed(device), _packed(subsystem) if colon else None
    if first is None or (colon and second is None):
        return PciFilter(text)
    return PciFilter(text, first, second)


def packed_text(number: int) -> str:
    """The spelling of mig-parted's default configs: ``0x20B210DE``."""
    return f"0x{number:08X}"


def _packed(text: str) -> int | None:
    number = int(text, 0) if _ID.fullmatch(text) else None
    return number if number is not None and number < 1 << 32 else None
