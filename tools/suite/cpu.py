"""How much processor time a part and each of its tests took, with all that they started.

A part has a control group for that. What a real lab's pods use is not counted: their kubelet gives them groups of
their own. Times on a clock say how much else ran beside a test; these say what the test itself costs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")
# Not that of a lab's groups, which tests must not leave behind.
PREFIX: Final = "suite-of-kgpu-"
FOLDER: Final = "KGPU_SUITE_CPU"
"""In the environment of a part: the folder of its control group."""
_JOIN: Final = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def make(name: str, root: Path = ROOT) -> Path | None:
    """A new control group, on version 1 (the tree ``cpuacct``) or 2; None where none can be made."""
    tree = root / "cpuacct" if (root / "cpuacct").is_dir() else root
    for old in tree.glob(f"{PREFIX}*"):  # of a run that was killed
        owner = old.name.removeprefix(PREFIX).partition("-")[0]
        if not (PROC / owner).exists():
            remove(old)
    made = tree / f"{PREFIX}{os.getpid()}-{name}"
    try:
        made.mkdir()
    except OSError:
        return None
    if seconds(made) is not None:
        return made
    remove(made)
    return None


def within(group: Path | None, command: list[str]) -> list[str]:
    """The command that runs this one in the group."""
    return ["sh", "-c", _JOIN, str(group), *command] if group else command


def seconds(group: Path) -> float | None:
    """What all that ever ran in the group has used; None where the group does not tell."""
    with suppress(OSError, ValueError):
        return int((group / "cpuacct.usage").read_text()) / 1e9
    with suppress(OSError, ValueError, StopIteration):
        lines = (group / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("usage_usec ")) / 1e6
    return None


def remove(group: Path) -> None:
    """The group, unless something still runs in it."""
    with suppress(OSError):
        group.rmdir()
