"""What the commands of ``kgpu lab`` have in common: which lab, and the command lines that they advise."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kgpu.base.errors import LabError

if TYPE_CHECKING:
    from kgpu.lab.port import About, Lab

F = TypeVar("F", bound=Callable[..., Any])


def which_lab(function: F) -> F:
    """Adds ``--name`` and ``--dir``."""
    name = click.option("--name", default="lab", show_default=True, metavar="NAME", help="Which lab.")
    folder = click.option(
        "--dir",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="The lab's folder. Default: ~/.local/state/kgpu/lab/NAME.",
    )
    return name(folder(function))


def open_lab(name: str, folder: Path | None, *, kind: str = "") -> Lab:
    """The lab of that name, with the settings it was made with."""
    from kgpu.lab import find, progress

    return find.find(name, folder, kind=kind, progress=progress.for_terminal())


def require_running(there: Lab, folder: Path | None) -> None:
    """Raises LabError when it is not up."""
    if not there.running:
        about = there.about
        raise LabError(
            f'there is no running lab "{about.name}" in {about.folder}',
            "a lab that is up",
            f'start it with "{up_line(about, folder)}".{whose()}',
        )


def line(verb: str, name: str, folder: Path | None) -> str:
    """The command line for ``verb`` about the same lab."""
    words = ["kgpu", "lab", *verb.split(), *([] if name == "lab" else ["--name", name])]
    return shlex.join([*words, *(["--dir", str(folder)] if folder else [])])


def up_line(about: About, folder: Path | None) -> str:
    """The command line that brings this lab up, with its settings."""
    return line(shlex.join(["up", *about.up_words]), about.name, folder)


def whose() -> str:
    """A hint for those who are not root."""
    return "" if os.geteuid() == 0 else " A lab that root made is seen by root alone: try sudo."
