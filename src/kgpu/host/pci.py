"""The functions on a PCI bus from /sys, and their small files.

A missing or unreadable file gives an empty text; a bus that can't be read raises OSError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.host.root import read_some

DEVICES: Final = "sys/bus/pci/devices"
_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Function:
    """One function's folder. ``vendor`` and ``pci_class`` are hex without 0x (``10de``, ``030200``)."""

    folder: Path
    vendor: str
    pci_class: str

    @property
    def address(self) -> str:
        return self.folder.name

    def text(self, name: str) -> str:
        """A file's text without surrounding white space."""
        return line(self.folder / name)

    def hex(self, name: str) -> str:
        return _hex(self.folder / name)

    def number(self, name: str) -> int | None:
        """A file's integer, None if it has none."""
        found = self.text(name)
        return int(found) if found.lstrip("-").isdecimal() and len(found) < 12 else None


def functions(bus: Path) -> Iterator[Function]:
    """All functions in a ``DEVICES`` folder, by address. Raises OSError if the folder can't be read."""
    for address in sorted(os.listdir(bus)):
        here = bus / address
        yield Function(here, _hex(here / "vendor"), _hex(here / "class"))


def line(path: Path) -> str:
    """A small file's text without surrounding white space."""
    return read_some(path, _MAX).decode("utf-8", "replace").strip()


def _hex(path: Path) -> str:
    return line(path).removeprefix("0x").lower()
