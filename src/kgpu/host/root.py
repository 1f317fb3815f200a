"""A driver root: where this process sees the driver's files, and where the container runtime on the host sees them.

Both differ when kgpu runs in a container that has the host's root mounted. Symbolic links are followed inside the root:
a driver container's absolute link means its own tree, not ours.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kgpu.base.symlinks import resolve_inside
from kgpu.formats.cdi import CdiDeviceNode
from kgpu.formats.simulated import state_file


def read_some(path: Path, limit: int) -> bytes:
    """The first ``limit`` bytes of a regular file or of a file of /proc or /sys; nothing when it can't be read."""
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
    """One folder tree: ``here`` as this process sees it, ``host`` as the runtime sees it. Paths inside begin with /."""

    here: Path
    host: str

    @classmethod
    def at(cls, here: Path | str, host: str = "") -> Tree:
        """A tree; ``host`` is the same path when not given."""
        path = Path(os.path.abspath(here))
        return cls(path, host.rstrip("/") or ("/" if host else str(path)))

    def local(self, inside: str) -> Path:
        """A path inside as this process opens it; links are not followed."""
        return self.here / inside.lstrip("/")

    def on_host(self, inside: str) -> str:
        """A path inside as the runtime on the host opens it."""
        return inside if self.host == "/" else self.host + inside

    def from_host(self, path: str) -> str | None:
        """The path inside of what the runtime on the host opens as ``path``; None for what is not in this tree."""
        if self.host == "/":
            return path
        return path.removeprefix(self.host) if path.startswith(f"{self.host}/") else None

    def resolve(self, inside: str) -> str | None:
        """The path inside with every link followed within the tree; None when it isn't there or links go in circles."""
        return resolve_inside(str(self.here), inside)

    def names(self, folder: str) -> tuple[str, ...]:
        """The sorted names in a folder inside; empty when it can't be listed."""
        resolved = self.resolve(folder)
        if resolved is None:
            return ()
        try:
            return tuple(sorted(os.listdir(self.local(resolved))))
        except OSError:
            return ()

    def kind(self, inside: str) -> int:
        """What is there after following links within the tree: ``stat.S_IFREG``, ``S_IFDIR``, ...; 0 for nothing."""
        resolved = self.resolve(inside)
        try:
            return stat.S_IFMT(self.local(resolved).lstat().st_mode) if resolved is not None else 0
        except OSError:
            return 0

    def is_file(self, inside: str) -> bool:
        """Whether a regular file is there, links followed within the tree."""
        return self.kind(inside) == stat.S_IFREG

    def is_dir(self, inside: str) -> bool:
        """Whether a folder is there, links followed within the tree."""
        return self.kind(inside) == stat.S_IFDIR

    def read(self, inside: str, limit: int) -> bytes:
        """The first ``limit`` bytes of a regular file; nothing when it can't be read, or is a pipe that would block."""
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
        """Roots by path; without ``dev`` the driver root when it has a ``dev`` folder with nvidia nodes, else ``/``."""
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
        """Whether the device node (or a plain file that stands in for it) is there, with links followed in the root."""
        resolved = self.dev.resolve(path)
        return resolved is not None and self.dev.local(resolved).exists()

    def is_stand_in(self, path: str) -> bool:
        """True for a plain file in place of a device node: a simulated root made without the right to make nodes."""
        return self.dev.local(path).is_file()

    def device_node(self, path: str) -> CdiDeviceNode:
        """The node for a CDI spec, with its real place on the host where that differs.

        A runtime takes no links for nodes, and would follow those of folders out of the root.
        """
        host = self.dev.on_host(self.dev.resolve(path) or str(PurePosixPath(path)))
        return CdiDeviceNode(path=path, host_path="" if host == path else host)
