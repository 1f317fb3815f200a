"""The driver's own nvidia-smi: where it is in a root, and how it is run there.

A simulated driver root has no system around it: its nvidia-smi runs outside of it, with the simulation's state.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Final

from kgpu.formats.names import ENV_HW_STATE
from kgpu.host.chroot import in_root
from kgpu.host.commands import CommandResult, run
from kgpu.host.driver.layouts import BINARY_DIRS
from kgpu.host.root import Tree

SMI: Final = "nvidia-smi"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_smi(root: str) -> str | None:
    """The program's path in the root, None if it has none."""
    tree = Tree.at(root)
    programs = (tree.resolve(f"{folder}/{SMI}") for folder in BINARY_DIRS)
    return next((program for program in programs if program is not None and tree.is_file(program)), None)


def ask_smi(
    root: str, program: str, words: Sequence[str], *, seconds: float, library: str, state: str = "",
    keep_open: Collection[int] = (),
) -> CommandResult:  # fmt: skip
    """Run it for at most ``seconds``. ``library`` is the driver's NVML as seen here, "" to leave it to the loader;
    ``state`` the simulated driver's file, "" for a real one. Raises HostError if it can't be run.
    """
    if state:
        command = [f"{root}{program}", *words]
        environment = {ENV_HW_STATE: state, "LD_LIBRARY_PATH": os.path.dirname(library)}
    else:
        command = in_root(root, [program, *words])
        environment = {"LD_LIBRARY_PATH": os.path.dirname(library[len(root.rstrip("/")) :])}
    return run(command, seconds=seconds, env={"PATH": _PATH, "LC_ALL": "C", **environment}, keep_open=keep_open)
