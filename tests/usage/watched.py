"""An agent's watcher over a driver that a test sets, on a machine whose clock a test moves."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgpu.base.advice import Advice
from kgpu.base.clock import VirtualClock
from kgpu.base.http import AwaitedPage, Request, Response
from kgpu.formats.names import NVIDIA
from kgpu.formats.usage import RecordedGpu, UsageState, decode
from kgpu.formats.usage_now import LINES_PATH, NOW_PATH, UsageNow
from kgpu.formats.usage_now import decode as decode_now
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Accelerator, Inventory, Process, Reading
from kgpu.usage.live import HeardAgent, judged
from kgpu.usage.looks import LookedHolder
from kgpu.usage.run import UsageContext, UsageWatcher
from kgpu.usage.states import IdleRules
from kgpu.usage.store import UsageStore

GPU = Accelerator(vendor=NVIDIA, index=0, uuid="GPU-1", name="NVIDIA L4", memory_mib=23034)
BEGIN = dt.datetime(2026, 7, 20, tzinfo=dt.UTC)
POD = LookedHolder(namespace="team", pod="p", uid="u1", container="main", owner="Deployment/p")


class SetHolders:
    """A ``HoldersPort`` that says what a test sets."""

    def __init__(self) -> None:
        self.now: Mapping[str, tuple[LookedHolder, ...]] | None = {}

    async def holders(self, inventory: Inventory) -> Mapping[str, tuple[LookedHolder, ...]] | None:
        del inventory
        return self.now

    async def close(self) -> None:
        """Nothing is open."""


class HungReader(FakeReader):
    """A driver whose readings hang while ``hung``."""

    hung = False

    async def readings(self, keys: Any = None) -> tuple[Reading, ...]:
        if self.hung:
            await asyncio.Event().wait()
        return await super().readings(keys)


@dataclass(slots=True)
class WatchedNode:
    """An agent on a machine whose clock a test moves; ``start`` again is a restart after a kill."""

    folder: Path
    name: str = "n1"
    labels: tuple[str, ...] = ()
    about: Any = None
    boot: str = "boot-1"
    now: float = 1000.0
    wall_off: float = 0.0
    patience: float = 0.05
    advice: list[Advice] = field(default_factory=list)
    states: list[tuple[Any, ...]] = field(default_factory=list)
    holders: SetHolders = field(default_factory=SetHolders)
    checked_at: float = 0.0
    """When kgpu itself worked on the GPU last."""
    reader: Any = field(
        default_factory=lambda: HungReader(Inventory(vendor=NVIDIA, driver_version="1", accelerators=(GPU,)))
    )
    watcher: UsageWatcher = field(init=False)

    async def start(self) -> None:
        self.watcher = UsageWatcher(
            UsageContext(
                node=self.name, labels=self.labels, about_node=self.about, reader=self.reader, holders=self.holders, store=UsageStore(self.folder / "u.sqlite", days=14, max_bytes=1 << 22),
                report=self.advice.append, on_state=lambda *said: self.states.append(said), clock=VirtualClock(),
                wall=lambda: BEGIN + dt.timedelta(seconds=self.now + self.wall_off), uptime=lambda: self.now,
                boot=lambda: self.boot, patience=self.patience,
                checked=lambda uuid, since: uuid == "GPU-1" and self.checked_at >= since > 0,
            )
        )  # fmt: skip
        await self.watcher.start()

    async def looks(self, count: int) -> None:
        for _ in range(count):
            self.now += 10.0
            await self.watcher.look()

    def busy(self, percent: float) -> None:
        self.reader.set_readings(
            [Reading(uuid="GPU-1", values={"utilization_percent": percent, "memory_used_mib": 2000.0, "power_w": 30.0})]
        )
        self.reader.set_processes([Process(uuid="GPU-1", pid=7)])

    async def page(self, path: str, query: str = "") -> Response:
        page = self.watcher.pages()[path]
        assert isinstance(page, AwaitedPage)
        return await page.page(Request("GET", path, query=query))

    async def said(self) -> UsageNow:
        return decode_now((await self.page(NOW_PATH)).body, place="test")

    async def state(self, rules: IdleRules | None = None) -> UsageState:
        (device,) = judged([HeardAgent(await self.said(), 0.0)], rules or IdleRules(), 0.0)
        return device.verdict.state

    async def lines(self, after: str = "") -> tuple[str, list[RecordedGpu]]:
        body = (await self.page(LINES_PATH, f"after={after}")).body
        assert isinstance(body, bytes)
        first, *rest = body.splitlines()
        found = [decode(line, place="test") for line in rest]
        return json.loads(first)["cursor"], [line for line in found if isinstance(line, RecordedGpu)]
