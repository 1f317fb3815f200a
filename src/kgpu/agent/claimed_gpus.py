"""For the device plugin: which of this node's GPUs claims have, so that none is handed out twice while a node changes
from one way of handing out to the other. ``counted_gpus`` is the same for the DRA driver.

What claims have stands in the DRA driver's records, which are written before a claim gets anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgpu.base.change_notifier import ChangeNotifier
from kgpu.base.inotify import ENTRIES, folder_changes, nearest_existing
from kgpu.formats.names import DRA_DRIVERS

if TYPE_CHECKING:
    from kgpu.agent.ordered import OrderedGpus

LOOK_SECONDS: Final = 30.0
"""How often the records are looked for without an event from the kernel."""


def claims_folder(plugins: Path, driver: str) -> Path:
    """Where a DRA driver keeps its records, below the kubelet's folder of plugins."""
    return plugins / driver / "claims"


def claims_folders(plugins: Path) -> tuple[Path, ...]:
    """Those of every vendor's driver: which one a node has shows only once its hardware is read."""
    return tuple(claims_folder(plugins, driver) for driver in sorted(DRA_DRIVERS))


class ClaimedGpus:
    """The GPUs to offer to no pod, because a claim has them or the operator has ordered them back. ``run`` is to run
    beside the plugin.
    """

    def __init__(self, ordered: OrderedGpus | None, folders: Sequence[Path], *, boot: str) -> None:
        self._ordered = ordered
        self._folders = folders
        self._boot = boot
        self._news = ChangeNotifier()
        self._stamps: tuple[int, ...] = ()
        self._claimed: Mapping[str, str] = {}
        self._look()

    @property
    def withdrawn(self) -> Mapping[str, str]:
        """By UUID, and why. What was recorded before the call is in it: an allocation asks here."""
        self._look()
        return {**self._claimed, **(self._ordered.withdrawn if self._ordered is not None else {})}

    @property
    def revision(self) -> int:
        """Grows with every change."""
        return self._news.revision

    async def changed(self, after: int) -> int:
        """Wait until ``revision`` differs from ``after``; returns it."""
        return await self._news.changed(after)

    async def run(self) -> None:
        """Notice changes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_records())
            if self._ordered is not None:
                group.create_task(self._follow_orders(self._ordered))

    async def _follow_records(self) -> None:
        changes = folder_changes(
            lambda: {nearest_existing(folder) for folder in self._folders}, seconds=LOOK_SECONDS, mask=ENTRIES
        )
        async with contextlib.aclosing(changes):
            async for _ in changes:
                self._stamps = ()  # two changes within a tick of the clock leave the same time behind
                self._look()

    async def _follow_orders(self, ordered: OrderedGpus) -> None:
        revision = ordered.revision
        while True:
            revision = await ordered.changed(revision)
            self._news.notify()

    def _look(self) -> None:
        """Read the records again if a folder has changed: each record comes and goes by a new name in it."""
        stamps = tuple(map(_stamp, self._folders))
        if stamps == self._stamps:
            return
        self._stamps, before = stamps, self._claimed
        found: dict[str, str] = {}
        for folder, stamp in zip(self._folders, stamps, strict=True):
            found |= _read(folder, self._boot) if stamp else {}
        self._claimed = found
        if self._claimed != before:
            self._news.notify()


def _stamp(folder: Path) -> int:
    """When the folder changed last, 0 for none."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _read(folder: Path, boot: str) -> Mapping[str, str]:
    from kgpu.dra.records import claimed_gpus  # not where there never was a claim

    return claimed_gpus(folder, boot=boot)
