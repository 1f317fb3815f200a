"""What a CDI spec was made from: it has to be made anew when any of that comes, goes, or is another file.

A mount whose source has gone keeps every new container with a GPU from starting; a folder in /tmp whose maker took it
away may come back as somebody's link to any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from kgpu.base.inotify import ENTRIES, Inotify
from kgpu.formats.cdi import ContainerEdits, Spec
from kgpu.host.driver.programs import IPC_PLACES
from kgpu.host.root import DriverRoot, Tree

PAUSE_SECONDS: Final = 0.25
"""The least time between two looks: /tmp, where MPS has its folder, never rests."""

_Place: TypeAlias = tuple[Tree, str]


@dataclass(frozen=True, slots=True)
class SpecSources:
    """``mounted`` are the places that a spec names, ``looked_for`` the sockets of daemons, which may come and go;
    ``seen`` is what was there.
    """

    root: DriverRoot
    mounted: tuple[_Place, ...]
    looked_for: tuple[_Place, ...]
    seen: tuple[Hashable, ...]

    @classmethod
    def snapshot(cls, root: DriverRoot) -> SpecSources:
        """The daemons' sockets before specs are made: one that comes later is in no spec, and is a change."""
        looked_for = tuple((root.files, place) for place in IPC_PLACES)
        return cls(root, (), looked_for, _identities(looked_for))

    def of_specs(self, specs: Iterable[Spec]) -> SpecSources:
        """The sources of specs that were made since then: what they name under the root, and the daemons' sockets."""
        mounted = tuple(dict.fromkeys(place for spec in specs for place in _places(self.root, spec)))
        return SpecSources(self.root, mounted, self.looked_for, (*_identities(mounted), *self.seen))

    def changed(self) -> bool:
        """Whether the specs may no longer be what they should; always while something that they name is missing."""
        now = _identities((*self.mounted, *self.looked_for))
        return now != self.seen or None in now[: len(self.mounted)]

    def changed_daemons(self) -> Hashable:
        """None while the daemons, which come and go while the driver stays, are as they were; else what was and what is
        there. Takes a few system calls.
        """
        now = _identities(self.looked_for)
        return None if now == self.seen[len(self.mounted) :] else (self.seen, now)

    def folders(self) -> set[Path]:
        """The folders in which daemons come and go, as far as they are there."""
        near = {_nearest(tree, inside.rpartition("/")[0]) for tree, inside in self.looked_for}
        return {tree.local(inside) for tree, inside in near}


async def follow_sources(
    inotify: Inotify, folders: Callable[[], Iterable[Path]], state: Callable[[], Hashable], calm: float
) -> AsyncGenerator[None, None]:
    """Yield whenever specs may be wrong: ``state`` is then not None, and differs for each new reason.

    Changes from before the folders were watched are seen, too. A state that stays is yielded once, and again after
    ``calm`` seconds.
    """
    yielded: Hashable = None
    while True:
        inotify.watch(folders(), ENTRIES)
        now = state()
        if now is not None and now != yielded:
            yielded = now
            yield
        elif not await inotify.wait(calm) or now is None:
            yielded = None
        await asyncio.sleep(PAUSE_SECONDS)


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
    """The identity and owner of the file there, links followed within the tree; None if there is none."""
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
