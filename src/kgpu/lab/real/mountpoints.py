"""Folders on the host over which the node's own are mounted, in the node's namespace only.

A mount needs a folder to sit on. Those that are missing are made, recorded and removed again; one that another lab's
node sits on is left to the last lab, because removing a folder detaches what is mounted on it elsewhere. So is one
that somebody put files into meanwhile: it serves others now.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path


def missing(targets: Iterable[str]) -> list[str]:
    """The folders to make so that every target exists, parents first."""
    needed: list[str] = []
    for target in targets:
        chain = [target, *map(str, Path(target).parents)]
        absent = [folder for folder in chain if not os.path.isdir(folder)]
        needed += [folder for folder in reversed(absent) if folder not in needed]
    return needed


def in_use(*, but: str = "") -> set[str]:
    """Every mount point in any mount namespace of this machine other than our own, and than ``but``."""
    points: set[str] = set()
    namespaces = {namespace("self"), but}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        mount_namespace = namespace(pid)
        if mount_namespace and mount_namespace not in namespaces:
            namespaces.add(mount_namespace)
            with contextlib.suppress(OSError):
                points |= parse_mountinfo(Path(f"/proc/{pid}/mountinfo").read_text())
    return points


def namespace(pid: str) -> str:
    """The mount namespace of a process, "" where that is not known."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/mnt")
    return ""


def parse_mountinfo(text: str) -> set[str]:
    """The mount points in the text of ``/proc/PID/mountinfo``; octal escapes are resolved."""
    points = set()
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            points.add(fields[4].encode("latin-1").decode("unicode_escape"))
    return points


def claim(targets: Iterable[str]) -> list[str]:
    """The folders that this lab must remove in the end: those it will make, and those another lab's node sits on."""
    targets = list(targets)
    # A mount point of another lab that has none of its own files was made by that lab.
    shared = [target for target in targets if os.path.isdir(target) and target in in_use() and not os.listdir(target)]
    return [*missing(targets), *shared]


def make(folders: Iterable[str]) -> None:
    """Make the folders, parents first."""
    for folder in folders:
        os.makedirs(folder, exist_ok=True)


def remove(folders: Iterable[str], *, own: str = "") -> list[str]:
    """Remove the folders, children first; those that could not be.

    Another lab's mount points are left to it, and folders that hold files to whoever made these. ``own`` is the mount
    namespace of the node that sat on them: whoever had looked into it may take a moment longer to end than it did.
    """
    busy, left = in_use(but=own), []
    for folder in sorted(folders, key=len, reverse=True):
        if folder in busy or any(point.startswith(f"{folder}/") for point in busy):
            continue
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                left.append(folder)
    return left
