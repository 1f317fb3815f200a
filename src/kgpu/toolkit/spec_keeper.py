"""The CDI spec of this node's GPUs, for as long as the toolkit role runs: it is there and true.

Written at the start and whenever GPUs, MIG devices, the driver or a source of one of its mounts change, whole and only
when its content differs. A driver that can't be read leaves the last spec where it is: what it names may still be in
use, and a spec that vanished would stop pods that are being started. It is taken away when the policy wants no toolkit,
and while a file of another program names the same devices: a name in two files of one folder is a name that no runtime
resolves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import UserError
from kgpu.base.inotify import ENTRIES, Inotify, nearest_existing
from kgpu.base.service import Complaint, StateSink, ignore_state, running
from kgpu.base.threads import beside
from kgpu.formats.cdi import dump_spec
from kgpu.formats.names import CDI_DIR, CDI_MANAGEMENT_KIND, CDI_NVIDIA_KIND
from kgpu.host.root import DriverRoot
from kgpu.hw.follow import follow_events
from kgpu.hw.port import DriverReleasedError, Inventory, Reader
from kgpu.toolkit.cdi_support import EngineSupport
from kgpu.toolkit.config import AUTO, GenerateConfig
from kgpu.toolkit.model import Generated
from kgpu.toolkit.run import generate, keep_spec
from kgpu.toolkit.sources import PAUSE_SECONDS, SpecSources, follow_sources
from kgpu.toolkit.specs import read_folders

log = logging.getLogger(__name__)

SPEC_NAME: Final = f"{CDI_NVIDIA_KIND.replace('/', '-')}.json"
MANAGEMENT_NAME: Final = f"{CDI_MANAGEMENT_KIND.replace('/', '-')}.json"
CALM_SECONDS: Final = 30.0
"""Seconds between two looks at the hardware when no event reports a change."""
TROUBLE_SECONDS: Final = 2.0


def _ignore_path(path: Path) -> None:
    del path


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecContext:
    """Everything that the keeper gets from outside.

    ``engines`` are those that have to read the spec. ``management``: a second spec, of every node of the driver, for
    what manages GPUs. ``on_write`` hears of a file whenever it was written, ``remove`` takes one away if it is kgpu's.
    ``on_state(ready, reason)`` hears whether the spec is there.
    """

    reader: Reader
    root: DriverRoot
    report: AdviceSink
    cdi_dir: Path = Path(CDI_DIR)
    clock: Clock = field(default_factory=SystemClock)
    on_state: StateSink = ignore_state
    on_write: Callable[[Path], None] = _ignore_path
    remove: Callable[[Path], None] = _ignore_path
    engines: Callable[[], Iterable[EngineSupport]] = tuple
    management: bool = False


async def run(ctx: SpecContext) -> None:
    """Keep the spec true until cancelled."""
    await _Keeper(ctx).run()


def make_spec(
    inventory: Inventory, root: DriverRoot, *, mode: str = AUTO, engines: Iterable[EngineSupport] = ()
) -> Generated:
    """The spec for these GPUs and this driver: names by index, by UUID, and ``all``; what is not whole is left out.

    Raises HostError and ConfigError.
    """
    return generate(lambda: inventory, root, GenerateConfig(mode=mode), engines=engines)


def foreign(folder: Path, own: Path, kind: str) -> str:
    """The path of another file in the folder that has devices of this kind, "" if there is none."""
    for found in read_folders([folder]):
        if found.spec is not None and found.spec.kind == kind and Path(found.path) != own and found.names:
            return found.path
    return ""


def _listing(folder: Path) -> Hashable:
    """The folder's files with what shows whether one was replaced or changed."""
    try:
        with os.scandir(folder) as entries:
            found = [(one.name, one.stat(follow_symlinks=False)) for one in entries]
    except OSError:
        return ()
    return tuple(sorted((name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in found))


class _Keeper:
    def __init__(self, ctx: SpecContext) -> None:
        self._ctx = ctx
        self._path = ctx.cdi_dir / SPEC_NAME
        self._key: Hashable = None
        self._complaint = Complaint(ctx.report, reason="CdiNotWritten", severity=Severity.ERROR)
        self._other = ""
        self._seen: Hashable = None
        self._notes: tuple[str, ...] = ()
        self._sources: SpecSources | None = None
        self._wake = asyncio.Event()

    async def run(self) -> None:
        async with Inotify() as inotify:
            events = follow_events(self._ctx.reader, lambda _event: self._wake.set(), clock=self._ctx.clock)
            async with running(toolkit_events=events, toolkit_folder=self._follow_folder(inotify)):
                while True:
                    self._wake.clear()
                    well = await self._look()
                    inotify.watch(self._folders(), ENTRIES)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(CALM_SECONDS if well else TROUBLE_SECONDS):
                            await self._wake.wait()
                    await self._ctx.clock.sleep(PAUSE_SECONDS)

    async def _look(self) -> bool:
        try:
            inventory = await self._ctx.reader.inventory()
            generated = await beside(self._bring_in_line, inventory)
        except DriverReleasedError as released:  # the spec holds as it is
            self._ctx.on_state(self._key is not None, released, released.REASON)
            return False
        except UserError as problem:
            self._complaint.of(problem)
            self._ctx.on_state(False, problem)
            return False
        if self._complaint.over():
            self._ctx.report(
                Advice(
                    subject=str(self._path), what="the CDI spec can be written", why="its trouble is over",
                    reason="CdiWritten",
                )
            )  # fmt: skip
        if generated is not None:
            self._tell(generated)
        if self._other:
            self._ctx.on_state(True, f"{self._other} of another program names the GPUs, so kgpu writes no second one")
        else:
            self._ctx.on_state(True, str(self._path))
        return True

    def _bring_in_line(self, inventory: Inventory) -> Generated | None:
        """Bring the spec in line; return it when there is something to log about it, else None."""
        ctx = self._ctx
        listing = _listing(ctx.cdi_dir)
        if listing != self._seen:
            self._other = foreign(ctx.cdi_dir, self._path, CDI_NVIDIA_KIND)
            self._seen = listing
        if self._other:
            ctx.remove(self._path)
        key = (_key(inventory, ctx.root), bool(self._other))
        stale = self._sources is None or self._sources.changed()
        if key == self._key and (self._other or (self._path.is_file() and not stale)):
            return None
        engines = tuple(ctx.engines())
        before = SpecSources.snapshot(ctx.root)
        generated = make_spec(inventory, ctx.root, engines=engines)
        specs = [generated.spec]
        is_news = key != self._key
        if not self._other:
            is_news |= self._write(self._path, generated)
        if ctx.management:
            try:
                management = make_spec(inventory, ctx.root, mode="management")
                specs.append(management.spec)
                self._write(self._path.with_name(MANAGEMENT_NAME), management)
            except UserError as error:
                log.info("CDI: no devices for management: %s", error.one_line())
        self._sources = before.of_specs(specs)
        self._key = key
        return generated if is_news else None

    def _write(self, path: Path, generated: Generated) -> bool:
        """Write the spec if it differs; return whether it did."""
        written = keep_spec(path, dump_spec(generated.spec, "json"))
        self._ctx.on_write(path)
        return written

    def _tell(self, generated: Generated) -> None:
        log.info("%s: devices: %d", self._path, len(generated.spec.devices))
        if generated.notes != self._notes:
            self._notes = generated.notes
            for note in generated.notes:
                log.info("CDI: %s", note)

    async def _follow_folder(self, inotify: Inotify) -> None:
        """Wake up when a file is gone (the folder may be emptied at any time), or a daemon has come or gone."""
        async for _ in follow_sources(inotify, self._folders, self._stale, CALM_SECONDS):
            self._wake.set()

    def _folders(self) -> set[Path]:
        """The folders to watch now; for a missing one its nearest parent."""
        daemons = self._sources.folders() if self._sources is not None else set()
        return {nearest_existing(self._ctx.cdi_dir), *daemons}

    def _stale(self) -> Hashable:
        """The state now where it affects the spec, else None."""
        listing = _listing(self._ctx.cdi_dir)
        missing = not (self._other or self._path.is_file())
        news = self._sources.changed_daemons() if self._sources is not None else None
        is_so = listing == self._seen and not missing and news is None
        return None if is_so else (self._seen, listing, missing, news)


def _key(inventory: Inventory, root: DriverRoot) -> Hashable:
    """What the spec depends on, so that the driver's files are looked for only when something changed."""
    devices = tuple(
        (gpu.uuid, gpu.index, gpu.usable, gpu.mig_enabled, gpu.partitions, tuple(map(root.has_node, gpu.device_nodes)))
        for gpu in inventory.accelerators
    )
    return inventory.driver_version, root, devices
