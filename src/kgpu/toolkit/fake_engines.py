"""A node's container engine in memory, for tests of the role: a config as bytes, and what runs by it.

``configure`` appends one line to the config and takes the engine along, as a real one does when all goes well.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.host.engines.model import Engine, EngineOffer, EnginePlace, FileChange
from kgpu.kubelet.cri import ContainerRuntime, RuntimeStatus
from kgpu.kubelet.cri_fake import FakeCriRuntime
from kgpu.toolkit.engine.model import Check, EngineOutcome
from kgpu.toolkit.settings import ToolkitSettings

LINE: Final = b"kgpu was here\n"
PLACE: Final = EnginePlace(
    engine=Engine.CONTAINERD,
    flavour="containerd",
    config="/etc/containerd/config.toml",
    socket="/run/containerd/containerd.sock",
    service="containerd",
)
PLAIN: Final = RuntimeStatus(
    name="containerd", version="2.1.4", handlers=("", "runc"), default_handler="runc", cdi=True
)


class FakeEngines:
    """``place`` None: no engine. ``fail``: configuring is refused with this. ``deaf``: it restarts and is as before."""

    def __init__(self, place: EnginePlace | None = PLACE, *, folder: Path = Path("/nowhere"), cri: bool = True) -> None:
        self.place = place
        self.config = b"version = 3\n"
        self.running = FakeCriRuntime(PLAIN)
        self.fail = ""
        self.deaf = False
        self.restarts = 0
        self.undone = 0
        self._folder = folder
        self._cri = cri

    async def find(self, settings: ToolkitSettings) -> EnginePlace | None:
        del settings
        return self.place

    def pending(self, place: EnginePlace, wanted: EngineOffer) -> tuple[FileChange, ...]:
        del wanted
        if LINE in self.config:
            return ()
        return (FileChange(place.config, self.config, self.config + LINE, "handlers"),)

    async def configure(self, place: EnginePlace, wanted: EngineOffer, check: Check | None) -> EngineOutcome:
        if not self.pending(place, wanted):
            return EngineOutcome()
        self.restarts += 1
        if self.fail:
            raise HostError(self.fail, "a config that the engine takes", "see its log")
        changes = self.pending(place, wanted)
        self.config += LINE
        if not self.deaf:
            names = tuple(handler.name for handler in wanted.handlers)
            self.running.state = dataclasses.replace(self.running.state, handlers=("", "runc", *names))
        problem = await check() if check is not None else ""
        if problem:
            raise HostError(f"it came back otherwise: {problem}", "an engine that follows its config", "see its log")
        return EngineOutcome(changes=changes, restarted=True)

    async def unconfigure(self, place: EnginePlace) -> EngineOutcome:
        changes = (FileChange(place.config, self.config, self.config.replace(LINE, b""), "leaving"),)
        if self.fail:
            raise HostError(self.fail, "a config that the engine takes", "see its log")
        self.config = self.config.replace(LINE, b"")
        self.running.state = PLAIN
        self.undone += 1
        return EngineOutcome(changes=changes, restarted=True)

    def runtime(self, place: EnginePlace) -> ContainerRuntime | None:
        del place
        return self.running if self._cri else None

    def folders(self, place: EnginePlace) -> tuple[Path, ...]:
        del place
        return (self._folder,)
