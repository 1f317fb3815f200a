"""What a CDI spec was made from: it has to be made anew when any of that comes, goes, or is another file.

A mount whose source has gone keeps every new container with a GPU from starting; a folder in /tmp whose maker took it
away may come back as somebody's link to any other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from kgpu.formats.cdi import ContainerEdits, Spec
from kgpu.host.driver.programs import IPC_PLACES
from kgpu.host.root import DriverRoot, Tree

_Place: TypeAlias = tuple[Tree, str]


@dataclass(frozen=True, slots=True)
class Sources:
    """``mounted`` are the places that a spec names, ``looked_for`` those where a daemon may begin or end to be met;
    ``seen`` is what was there.
    """

    root: DriverRoot
    mounted: tuple[_Place, ...]
    looked_for: tuple[_Place, ...]
    seen: tuple[Hashable, ...]

    @classmethod
    def of(cls, root: DriverRoot, specs: Iterable[Spec]) -> Sources:
        """What these specs rest on now; of their sources, those under the root."""
        mounted = tuple(dict.fromkeys(place for spec in specs for place in _places(root, spec)))
        looked_for = tuple((root.files, place) for place in IPC_PLACES)
        return cls(root, mounted, looked_for, _identities((*mounted, *looked_for)))

    def changed(self) -> bool:
        """Whether the specs may no longer be what they should; always while something that they name is missing."""
        now = _identities((*self.mounted, *self.looked_for))
        return now != self.seen or None in now[: len(self.mounted)]

    def met_changed(self) -> bool:
        """The same for daemons alone, which come and go while the driver stays; a few calls of the kernel."""
        return _identities(self.looked_for) != self.seen[len(self.mounted) :]

    def folders(self) -> set[Path]:
        """The folders in which daemons come and go, as far as they are there."""
        near = {_nearest(tree, inside.rpartition("/")[0]) for tree, inside in self.looked_for}
        return {tree.local(inside) for tree, inside in near}


def _places(root: DriverRoot, spec: Spec) -> Iterator[_Place]:
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    for one in edits:
        yield from _of_edits(root, one)


def _of_edits(root: DriverRoot, edits: ContainerEdits) -> Iterator[_Place]:
    for mount in edits.mounts:
        if (inside := root.files.from_host(mount.host_path)) is not None:
            yield root.files, inside
    for node in edits.device_nodes:
        if (inside := root.dev.from_host(node.host_path or node.path)) is not None:
            yield root.dev, inside


def _identities(places: Iterable[_Place]) -> tuple[Hashable, ...]:
    return tuple(_identity(tree, inside) for tree, inside in places)


def _identity(tree: Tree, inside: str) -> Hashable:
    """Which file is there, links followed within the tree, and whose; None for nothing."""
    resolved = tree.resolve(inside)
    try:
        status = tree.local(resolved).lstat() if resolved is not None else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_mode, status.st_uid) if status is not None else None


def _nearest(tree: Tree, folder: str) -> _Place:
    """The folder inside, links followed, or the closest above it that is there."""
    while folder and (not tree.is_dir(folder)):
        folder = folder.rpartition("/")[0]
    return tree, tree.resolve(folder or "/") or "/"
