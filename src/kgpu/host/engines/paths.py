"""Translates the host's paths: to below the host's root, or to a mount of one of its folders.

A container with a read-only host root has the folders that it may write mounted elsewhere; a host path is then found
below the mount with the longest matching prefix.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kgpu.base.errors import HostError
from kgpu.host.engines.globs import matches
from kgpu.host.root import Tree


class MountedPaths:
    """Host paths as this process opens them. ``mounts`` maps host folders to their mount points here."""

    def __init__(self, tree: Tree, mounts: Mapping[str, Path] | None = None) -> None:
        self.tree = tree
        rows = [(host.rstrip("/"), here) for host, here in (mounts or {}).items()]
        self._mounts = sorted(rows, key=lambda row: len(row[0]), reverse=True)

    @classmethod
    def at(cls, root: Path | str = "/", mounts: Mapping[str, Path] | None = None) -> MountedPaths:
        """The paths of a host whose root is at ``root`` here."""
        return cls(Tree.at(root, "/"), mounts)

    def local(self, path: str) -> Path:
        """The path as this process opens it, with links followed as the host would. Raises HostError as
        ``real`` does.
        """
        real = self.real(path)
        for host, here in self._mounts:
            if real == host or real.startswith(host + "/"):
                return here / real[len(host) :].lstrip("/")
        return self.tree.local(real)

    def glob(self, pattern: str) -> tuple[str, ...]:
        """The existing host paths that match a pattern of Go's ``filepath.Glob``, sorted."""
        folders = [""]
        for part in pattern.strip("/").split("/"):
            if not any(char in part for char in "*?["):
                folders = [f"{folder}/{part}" for folder in folders]
                continue
            folders = [
                f"{folder}/{name}" for folder in folders for name in self._names(folder or "/") if matches(part, name)
            ]
        return tuple(sorted(filter(self.exists, folders)))

    def _names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self.local(folder))
        except (HostError, OSError):
            return []

    def real(self, path: str) -> str:
        """The host path with links followed in its existing part; the rest stays as it is.

        Raises HostError for a dangling link.
        """
        resolved = self.tree.resolve(path)
        if resolved is not None:
            return resolved
        head, _, name = path.rstrip("/").rpartition("/")
        real = f"{self.real(head).rstrip('/')}/{name}" if head else f"/{name}"
        if self.tree.local(real).is_symlink():  # opened here, it would lead out of the host's root
            raise HostError(
                f"{path} is a link that leads to nothing on this host",
                "a file, or a link to one",
                "repair the link, or take it away",
            )
        return real

    def exists(self, path: str) -> bool:
        """Whether something exists at the path, with links followed."""
        try:
            return self.local(path).exists()
        except (HostError, OSError):
            return False
