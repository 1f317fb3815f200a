"""The cgroup under which a lab's pods live, on version 1 (one tree per controller), version 2 and mixed machines.

It is made by ``create`` and removed with everything below it by ``remove``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError

ROOT: Final = Path("/sys/fs/cgroup")
_WANTED: Final = ("cpu", "cpuset", "io", "memory", "hugetlb", "pids")
_POLL_S: Final = 0.1


def trees(root: Path = ROOT) -> list[Path]:
    """The mount points of every cgroup tree: ``root`` itself on version 2, its folders otherwise."""
    if (root / "cgroup.controllers").exists():
        return [root]
    if not root.is_dir():
        raise LabError(f"there is no {root}", "mounted cgroups", "mount them, or use another machine")
    return [folder for folder in sorted(root.iterdir()) if folder.is_dir() and not folder.is_symlink()]


def create(name: str, root: Path = ROOT) -> tuple[str, ...]:
    """Make the cgroup in every tree, ready for children; the folders made. Raises LabError."""
    folders = []
    for tree in trees(root):
        folder = tree / name
        try:
            folder.mkdir(exist_ok=True)
            _prepare(tree, folder)
        except OSError as error:
            raise LabError(
                f"cgroup {folder} can't be made: {error.strerror}",
                "a writable cgroup tree with its controllers",
                "run as root; in a container, give it the machine's cgroup namespace and a writable /sys/fs/cgroup",
            ) from error
        folders.append(str(folder))
    return tuple(folders)


def _prepare(tree: Path, folder: Path) -> None:
    if (tree / "cgroup.controllers").exists():
        have = set((tree / "cgroup.controllers").read_text().split())
        for owner in (tree, folder):
            for controller in sorted(have & set(_WANTED)):
                (owner / "cgroup.subtree_control").write_text(f"+{controller}")
    # On version 1 a cpuset without CPUs takes no process, and its children inherit nothing.
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (tree / file).exists() and not (tree / "cgroup.controllers").exists():
            (folder / file).write_text((tree / file).read_text())


def remove(folders: Iterable[str], *, deadline_s: float = 15.0) -> list[str]:
    """Remove the cgroups and all below them, waiting for their last processes; those that stayed."""
    until = time.monotonic() + deadline_s
    left = [folder for folder in folders if os.path.isdir(folder)]
    while left:
        for folder in left:
            for current, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(current)
        left = [folder for folder in left if os.path.isdir(folder)]
        if left and time.monotonic() > until:
            break
        if left:
            time.sleep(_POLL_S)
    return left
