"""bash and zsh as parsers of what is to be pasted; zsh is this machine's, or Debian's, which is fetched and not installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from tests import debian, on_real

CACHE: Final = Path.home() / ".cache" / "kgpu" / "tests" / "zsh"
unavailable = partial(on_real.unavailable, what="zsh")


def parsed(shell: str, steps: Iterable[str]) -> dict[str, str]:
    """What a shell says of the lines that it can't parse, by line; nothing is run."""
    found = {}
    for step in steps:
        done = subprocess.run([shell, "-n"], input=f"{step}\n", capture_output=True, text=True, check=False)
        if done.returncode or done.stderr:
            found[step] = done.stderr.strip()
    return found


def zsh(folder: Path) -> str:
    """This machine's zsh, or Debian's unpacked below a folder; where it can't be had the test is skipped."""
    own = shutil.which("zsh")
    if own is not None:
        return own
    try:
        debian.unpack(debian.package("zsh", CACHE), folder)
    except debian.NotToBeHad as error:
        unavailable(str(error))
    found = str(folder / "bin" / "zsh")
    done = subprocess.run([found, "-fc", "print well"], capture_output=True, text=True, check=False)
    if done.stdout != "well\n":
        unavailable(f"Debian's does not run on this machine: {done.stderr.strip()}")
    return found
