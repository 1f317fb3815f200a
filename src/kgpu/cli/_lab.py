"""What the commands of ``kgpu lab`` have in common: which lab, and the command lines that they advise."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import LabError
from kgpu.cli import _complete_lab

if TYPE_CHECKING:
    from kgpu.lab.port import About, Lab

F = TypeVar("F", bound=Callable[..., Any])
SHOWN: Final = 10


def which_lab(function: F) -> F:
    """Adds ``--name`` and ``--dir``; where neither is given it is the lab that the shell is about, or the only one."""
    return lab_options(_with_lab(function, said_or_meant))


def new_lab(function: F) -> F:
    """Adds ``--name`` and ``--dir`` to a command that makes a lab: which others there are does not matter to it."""
    return lab_options(_with_lab(function, _said_or_new), default="that of KGPU_LAB, or lab")


def said_or_meant(name: str | None, folder: Path | None) -> tuple[str, Path | None]:
    """The lab that was said, else the one that is meant (``kgpu.lab.folders``). Raises LabError."""
    from kgpu.lab import folders

    return folders.chosen(name, folder, os.environ)


def _said_or_new(name: str | None, folder: Path | None) -> tuple[str, Path | None]:
    from kgpu.lab import folders

    said = None if name or folder else folders.named(os.environ)
    return said or (name or folders.USUAL, folder)


def _with_lab(function: F, rule: Callable[[str | None, Path | None], tuple[str, Path | None]]) -> F:
    @functools.wraps(function)
    def with_lab(*args: Any, name: str | None, folder: Path | None, **kwargs: Any) -> Any:
        name, folder = rule(name, folder)
        return function(*args, name=name, folder=folder, **kwargs)

    return with_lab  # type: ignore[return-value]  # what click calls has the same parameters


def lab_options(function: F, *, default: str = "the one of KGPU_LAB or KUBECONFIG, or the only one") -> F:
    """Adds ``--name`` and ``--dir`` as they were given: the parameters ``name`` and ``folder``, None when not."""
    name = click.option(
        "--name", metavar="NAME", shell_complete=_complete_lab.labs, help=f"Which lab. Default: {default}."
    )
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


def machine_root(name: str, folder: Path | None, node: str = "") -> Path:
    """The simulated driver root of a lab's node, of its only one with simulated GPUs where none is named.

    Raises LabError.
    """
    from kgpu.lab.nodes import manage

    there = open_lab(name, folder)
    # A real lab's first node is not among the simulated ones.
    roots = {machine.node: machine.root for machine in there.hardware() if machine.root.exists()}
    if node:
        return roots.get(node) or manage.hw_root(there.about.folder, node)
    if len(roots) == 1:
        return next(iter(roots.values()))
    if not roots:
        require_running(there, folder)
        raise LabError(
            f'the lab "{name}" has no node with simulated GPUs', "a node, or a simulated driver root",
            f'bring one up with "{line("up", name, folder)}", or give --root DIR',
        )  # fmt: skip
    raise LabError(
        f'the lab "{name}" has {len(roots)} nodes with simulated GPUs, and none is named',
        f"one of: {_some(sorted(roots))}", "say which with --node",
    )  # fmt: skip


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
