"""A driver root: where this process sees the driver's files, and where the container runtime on the host sees them.

Both differ when kgpu runs in a container that has the host's root mounted. Symbolic links are followed inside the root:
a driver container's absolute link means its own tree, not ours.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from kgpu.formats.cdi import DeviceNode

_MAX_LINKS: Final = 40


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

    def resolve(self, inside: str) -> str | None:
        """The path inside with every link followed within the tree; None when it isn't there or links go in circles."""
        todo = [part for part in inside.split("/") if part]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop(0)
            if part == ".":
                continue
            if part == "..":
                del done[-1:]
                continue
            candidate = self.local("/".join([*done, part]))
            try:
                mode = candidate.lstat().st_mode
                target = os.readlink(candidate) if stat.S_ISLNK(mode) else ""
            except OSError:
                return None
            if not target:
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            todo[:0] = [piece for piece in target.split("/") if piece]
            if target.startswith("/"):
                done = []
        return "/" + "/".join(done)

    def names(self, folder: str) -> tuple[str, ...]:
        """The sorted names in a folder inside; empty when it can't be listed."""
        resolved = self.resolve(folder)
        if resolved is None:
            return ()
        try:
            return tuple(sorted(os.listdir(self.local(resolved))))
        except OSError:
            return ()


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
        return "/state" if self.files.here != Path("/") and self.files.local("/state").is_file() else None

    def has_node(self, path: str) -> bool:
        """Whether the device node (or a plain file that stands in for it) is there."""
        return self.dev.local(path).exists()

    def is_stand_in(self, path: str) -> bool:
        """True for a plain file in place of a device node: a simulated root made without the right to make nodes."""
        return self.dev.local(path).is_file()

    def device_node(self, path: str) -> DeviceNode:
        """The node for a CDI spec, with its place on the host where that differs."""
        host = self.dev.on_host(str(PurePosixPath(path)))
        return DeviceNode(path=path, host_path="" if host == path else host)
