"""A driver root: the path of the driver's files in this process, and their path for the container runtime on the host.

The two differ if kgpu runs in a container with the host's root mounted. Symbolic links are followed inside the root: a
driver container's absolute link refers to its own tree, not ours.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from kgpu.base.symlinks import resolve_inside
from kgpu.formats.cdi import CdiDeviceNode, CdiMount
from kgpu.formats.simulated import state_file

READ_ONLY: Final = ("ro", "nosuid", "nodev", "bind")
"""How a file of the host's is mounted."""


def read_some(path: Path, limit: int) -> bytes:
    """The first ``limit`` bytes of a regular file or a file of /proc or /sys; b"" if it can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        read = b""
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            while len(read) < limit and (more := os.read(descriptor, limit - len(read))):
                read += more
        return read
    except OSError:
        return b""
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Tree:
    """One folder tree: ``here`` is its path in this process, ``host`` the runtime's. Paths inside begin with /."""

    here: Path
    host: str

    @classmethod
    def at(cls, here: Path | str, host: str = "") -> Tree:
        """A tree; ``host`` is the same path if not given."""
        path = Path(os.path.abspath(here))
        return cls(path, host.rstrip("/") or ("/" if host else str(path)))

    def local(self, inside: str) -> Path:
        """The path inside as this process opens it; links are not followed."""
        return self.here / inside.lstrip("/")

    def on_host(self, inside: str) -> str:
        """The path inside as the runtime on the host opens it."""
        return inside if self.host == "/" else self.host + inside

    def from_host(self, path: str) -> str | None:
        """The path inside for the runtime's ``path`` on the host; None if it is not in this tree."""
        if self.host == "/":
            return path
        return path.removeprefix(self.host) if path.startswith(f"{self.host}/") else None

    def resolve(self, inside: str) -> str | None:
        """The path inside with every link followed within the tree; None if it is missing or links loop."""
        return resolve_inside(str(self.here), inside)

    def names(self, folder: str) -> tuple[str, ...]:
        """The sorted names in a folder inside; empty if it can't be listed."""
        resolved = self.resolve(folder)
        if resolved is None:
            return ()
        try:
            return tuple(sorted(os.listdir(self.local(resolved))))
        except OSError:
            return ()

    def kind(self, inside: str) -> int:
        """The file type with links followed within the tree: ``stat.S_IFREG``, ``S_IFDIR``, ...; 0 for nothing."""
        resolved = self.resolve(inside)
        try:
            return stat.S_IFMT(self.local(resolved).lstat().st_mode) if resolved is not None else 0
        except OSError:
            return 0

    def is_file(self, inside: str) -> bool:
        """Whether it is a regular file, with links followed within the tree."""
        return self.kind(inside) == stat.S_IFREG

    def is_dir(self, inside: str) -> bool:
        """Whether it is a folder, with links followed within the tree."""
        return self.kind(inside) == stat.S_IFDIR

    def read(self, inside: str, limit: int) -> bytes:
        """The first ``limit`` bytes of a regular file; b"" if it can't be read or is a pipe."""
        resolved = self.resolve(inside)
        return read_some(self.local(resolved), limit) if resolved is not None else b""


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """Where the driver's files (``files``) and its device nodes (``dev``) are; device paths begin with /dev."""

    files: Tree
    dev: Tree

    @classmethod
    def at(
        cls, driver: Path | str = "/", *, dev: Path | str = "", driver_host: str = "", dev_host: str = ""
    ) -> DriverRoot:
        """Roots by path. Without ``dev``, device nodes are in the driver root if it has dev/nvidiactl,
        else in ``/``.
        """
        files = Tree.at(driver, driver_host)
        if dev:
            return cls(files, Tree.at(dev, dev_host))
        if (files.here / "dev" / "nvidiactl").exists():
            return cls(files, Tree.at(files.here, dev_host or files.host))
        return cls(files, Tree.at("/", dev_host))

    @property
    def state_file(self) -> str | None:
        """The simulation's state file inside the root, None on real hardware."""
        return "/state" if state_file(str(self.files.here)) is not None else None

    def has_node(self, path: str) -> bool:
        """Whether the device node (or a plain file that stands in for it) exists, with links followed in the root."""
        resolved = self.dev.resolve(path)
        return resolved is not None and self.dev.local(resolved).exists()

    def is_stand_in(self, path: str) -> bool:
        """True for a plain file in place of a device node, as in a simulated root made without permission to make
        nodes.
        """
        return self.dev.local(path).is_file()

    def device_node(self, path: str) -> CdiDeviceNode:
        """The node for a CDI spec, with its real path on the host if that differs.

        A runtime does not accept links as nodes, and would follow folders' links out of the root.
        """
        host = self.dev.on_host(self.dev.resolve(path) or str(PurePosixPath(path)))
        return CdiDeviceNode(path=path, host_path="" if host == path else host)

    def settings(self, paths: Iterable[str]) -> tuple[CdiMount, ...]:
        """For a CDI spec, a mount of each of these files that is there, which containers can't write."""
        return tuple(
            CdiMount(host_path=self.files.on_host(path), container_path=path, options=READ_ONLY)
            for path in paths
            if self.files.is_file(path)
        )
