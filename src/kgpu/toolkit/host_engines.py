"""The container engines of a real node, as the role's keeper and leaving see them.

Host files are read below the host's root; a folder is made writable only while it is written to. What is configured is
remembered before the first byte of it changes.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError, KubeletError
from kgpu.base.threads import beside
from kgpu.formats.names import STATE_DIR
from kgpu.host.engines.model import Engine, EngineOffer, EnginePlace, FileChange, Version
from kgpu.host.engines.paths import MountedPaths
from kgpu.host.engines.places import find_places, place_for
from kgpu.host.writable import writable
from kgpu.kubelet.cri import ContainerRuntime, CriClient
from kgpu.toolkit.engine.model import Check, EngineContext, EngineOutcome
from kgpu.toolkit.engine.programs import EngineValidator, parse_version, with_version
from kgpu.toolkit.engine.restart import restarter
from kgpu.toolkit.engine.run import configure, preview, unconfigure
from kgpu.toolkit.memory import FOLDER, Configured, EngineMemory
from kgpu.toolkit.release import release
from kgpu.toolkit.settings import ToolkitSettings

SCRATCH: Final = f"{STATE_DIR}/{FOLDER}"
"""The host's folder in which an engine's program finds the config that it is to check."""


@dataclass(slots=True)
class HostEngines:
    """``host_root`` is the host's ``/`` as this process sees it, ``state_dir`` kgpu's own folder on its disk."""

    host_root: Path
    state_dir: Path
    clock: Clock = field(default_factory=SystemClock)
    _versions: dict[tuple[str, int, int], Version | None] = field(default_factory=dict)
    _restart: str = ""

    @property
    def memory(self) -> EngineMemory:
        """The memory of what has been configured on this node."""
        return EngineMemory(self.state_dir)

    @property
    def paths(self) -> MountedPaths:
        """The host's paths as this process opens them."""
        return MountedPaths.at(self.host_root, {SCRATCH: self.state_dir / FOLDER})

    async def find(self, settings: ToolkitSettings) -> EnginePlace | None:
        self._restart = settings.restart
        place = await beside(_choose, settings, self.paths)
        return None if place is None else await self._running_version(await self._with_version(place))

    def pending(self, place: EnginePlace, wanted: EngineOffer) -> tuple[FileChange, ...]:
        return preview(place, wanted, self._context(place, self._restart, None)).changes

    async def configure(self, place: EnginePlace, wanted: EngineOffer, check: Check | None) -> EngineOutcome:
        try:
            self.memory.put(Configured(place=place, restart=self._restart))
        except OSError as error:
            raise HostError(
                f"what is done to {place.flavour} can't be remembered in {self.state_dir}: {error.strerror}",
                "a folder on this node's disk that may be written",
                "choose another --state-dir, or mount it",
            ) from error
        with self._writable(place):
            return await configure(place, wanted, self._context(place, self._restart, check))

    def runtime(self, place: EnginePlace) -> ContainerRuntime | None:
        if place.engine is Engine.DOCKER or not place.socket:
            return None
        return CriClient(self.paths.local(place.socket))

    def folders(self, place: EnginePlace) -> tuple[Path, ...]:
        files = filter(None, (place.config, place.drop_in, place.template))
        return tuple(dict.fromkeys(self.paths.local(posixpath.dirname(path)) for path in files))

    async def release(self) -> None:
        """Give every engine of this node back its own config. Raises HostError."""

        async def undo(engine: Configured) -> EngineOutcome:
            with self._writable(engine.place):
                return await unconfigure(engine.place, self._context(engine.place, engine.restart, None))

        await release(self.memory, undo)

    def _context(self, place: EnginePlace, restart: str, check: Check | None) -> EngineContext:
        return EngineContext(
            paths=self.paths,
            state_dir=self.state_dir,
            restarter=restarter(restart, self.paths, place),
            validator=EngineValidator(self.paths, SCRATCH),
            check=check,
            clock=self.clock,
        )

    @contextmanager
    def _writable(self, place: EnginePlace) -> Iterator[None]:
        if self.host_root == Path("/"):
            yield  # a host that forbids it itself is left so
            return
        with writable(self.folders(place)):
            yield

    async def _running_version(self, place: EnginePlace) -> EnginePlace:
        """Where its program was not found, what runs tells its version."""
        runtime = self.runtime(place)
        if place.version is not None or runtime is None:
            return place
        try:
            return replace(place, version=parse_version((await runtime.status()).version))
        except KubeletError:
            return place

    async def _with_version(self, place: EnginePlace) -> EnginePlace:
        """Its program is asked once for each build of it."""
        try:
            status = os.stat(self.paths.local(place.binary)) if place.binary else None
        except OSError:
            status = None
        if status is None:
            return place
        key = (place.binary, status.st_ino, status.st_mtime_ns)
        if key not in self._versions:
            self._versions[key] = (await with_version(place, self.paths)).version
        return replace(place, version=place.version or self._versions[key])


def _choose(settings: ToolkitSettings, paths: MountedPaths) -> EnginePlace | None:
    if settings.engine is None and not settings.config:
        places = find_places(paths, kubelet_socket=settings.socket)
        if not places:
            return None
        place = places[0]
        return place if settings.drop_in is None else replace(place, drop_in=settings.drop_in, imported=False)
    return place_for(
        settings.engine or Engine.CONTAINERD,
        paths,
        config=settings.config,
        drop_in=settings.drop_in,
        socket=settings.socket,
    )
