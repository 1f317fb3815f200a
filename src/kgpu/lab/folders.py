"""The folders of labs: which there are, of which kind each is, and which of them is meant where none is named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError
from kgpu.lab import common
from kgpu.lab.port import EMBEDDED, REAL

USUAL: Final = "lab"
ENV_LAB: Final = "KGPU_LAB"
"""The lab that is meant where none is named: its name, or a path to its folder."""


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


def chosen(name: str | None, folder: Path | None, environ: Mapping[str, str]) -> tuple[str, Path | None]:
    """The lab that was said by name or folder, else the one that is ``meant``. Raises LabError."""
    return (name or USUAL, folder) if name or folder else meant(environ)


def meant(environ: Mapping[str, str]) -> tuple[str, Path | None]:
    """Name and folder (None: the usual place) of the lab that a command is about which names none.

    It is that of ``KGPU_LAB``, that of the kubeconfig in use, the only one that there is, else the one with the usual
    name.

    Raises LabError when there are several and none of them has that name.
    """
    if said := named(environ):
        return said
    folder = Path(environ.get("KUBECONFIG", "").split(os.pathsep)[0]).absolute().parent
    if environ.get("KUBECONFIG") and kind_of(folder):
        return (folder.name, None) if folder.parent == common.labs_root() else (USUAL, folder)
    there = names()
    if len(there) > 1 and USUAL not in there:
        raise LabError(
            f"there are {len(there)} labs, and none is named", f"one of: {', '.join(there)}",
            f"say which with --name, or set {ENV_LAB}",
        )  # fmt: skip
    return (there[0] if len(there) == 1 else USUAL), None


def named(environ: Mapping[str, str]) -> tuple[str, Path | None] | None:
    """What ``KGPU_LAB`` says, None where it says nothing."""
    said = environ.get(ENV_LAB, "")
    if os.sep in said:
        return USUAL, Path(said)
    return (said, None) if said else None
