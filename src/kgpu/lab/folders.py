"""The folders of labs: which there are, and of which kind each is."""

from __future__ import annotations

from pathlib import Path

from kgpu.lab import common
from kgpu.lab.port import EMBEDDED, REAL


def kind_of(folder: Path) -> str:
    """``embedded`` or ``real``, "" when there is no lab in the folder."""
    if (folder / common.EMBEDDED_STATE).exists():
        return EMBEDDED
    return REAL if (folder / common.REAL_STATE).exists() else ""


def names() -> list[str]:
    """The labs of this user in the usual place, running or not."""
    root = common.labs_root()
    try:
        return sorted(entry.name for entry in root.iterdir() if kind_of(entry))
    except OSError:
        return []
